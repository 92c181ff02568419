//! The options of a permission request, as choices of an ask, and an answer as the agent's own option.

use agent_client_protocol_schema::v1::{
    PermissionOption, PermissionOptionKind, RequestPermissionOutcome, SelectedPermissionOutcome,
};

use crate::{Answer, Ask, Choice};

/// Put before the id of a choice that holds for longer than once, if the agent's id does not say so.
const ALWAYS: &str = "always";

/// The options of one request.
#[derive(Debug)]
pub(super) struct Options(Vec<PermissionOption>);

impl Options {
    pub(super) const fn new(options: Vec<PermissionOption>) -> Self {
        Self(options)
    }

    /// What somebody is asked.
    pub(super) fn ask(&self, title: &str) -> Ask {
        let choices = self.0.iter().map(|option| Choice {
            id: choice_id(option),
            label: option.name.clone(),
            allows: allows(option.kind),
        });
        Ask { title: title.to_owned(), message: title.to_owned(), editable: false, choices: choices.collect() }
    }

    /// The option that an answer stands for. A plain yes or no takes the one that holds once, where there is one. An answer
    /// for which the agent offers nothing cancels its request.
    pub(super) fn outcome(&self, answer: &Answer) -> RequestPermissionOutcome {
        let (choice, kinds) = match answer {
            Answer::Allowed { choice, .. } => {
                (choice, [PermissionOptionKind::AllowOnce, PermissionOptionKind::AllowAlways])
            }
            Answer::Denied { choice, .. } => {
                (choice, [PermissionOptionKind::RejectOnce, PermissionOptionKind::RejectAlways])
            }
            Answer::Withdrawn => return RequestPermissionOutcome::Cancelled,
        };
        let is_same = |option: &PermissionOption| allows(option.kind) == answer.allows();
        let chosen =
            choice.as_ref().and_then(|id| self.0.iter().find(|option| choice_id(option) == *id && is_same(option)));
        let plain = || kinds.iter().find_map(|kind| self.0.iter().find(|option| option.kind == *kind));
        match chosen.or_else(plain) {
            Some(option) => {
                RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new(option.option_id.clone()))
            }
            None => RequestPermissionOutcome::Cancelled,
        }
    }
}

/// The id of a choice: the agent's own, marked if it holds for longer than once and does not say so.
fn choice_id(option: &PermissionOption) -> String {
    let id = &option.option_id.0;
    let is_lasting = matches!(option.kind, PermissionOptionKind::AllowAlways | PermissionOptionKind::RejectAlways);
    if is_lasting && !id.to_ascii_lowercase().contains(ALWAYS) { format!("{ALWAYS}:{id}") } else { id.to_string() }
}

const fn allows(kind: PermissionOptionKind) -> bool {
    matches!(kind, PermissionOptionKind::AllowOnce | PermissionOptionKind::AllowAlways)
}
