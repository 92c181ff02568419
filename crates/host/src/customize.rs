//! Customizations for agents that the workspace contains, and completion of file names in messages.
//!
//! [`find`] walks the working directories for instructions (`AGENTS.md`, `CLAUDE.md`, `.github/copilot-instructions.md`,
//! `*.instructions.md`), skills (`skills/NAME/SKILL.md`) and MCP servers (`.mcp.json`), and makes of them what
//! `session/customizationsChanged` has. The walk is bounded, and a link never leads it out of its directory. [`complete`]
//! answers `completions` with files.

mod classify;
mod complete;
mod front_matter;
mod walk;

use std::collections::HashMap;
use std::path::PathBuf;

use ahp_types::state::{ChildCustomization, Customization, CustomizationEnablement};

pub(crate) use self::complete::typed_command;
pub use self::complete::{COMMAND_TRIGGER, CompleteConfig, TRIGGERS, complete};

/// The limits of the search for customizations.
#[derive(Debug, Clone)]
pub struct CustomizeConfig {
    /// Directories below each working directory. By default 8 deep.
    pub max_depth: usize,
    /// Files and directories that are looked at, of each working directory. By default 100,000.
    pub max_entries: usize,
    /// Customizations of each working directory. By default 10,000.
    pub max_found: usize,
    /// What is read of one file: its beginning, where it describes itself. By default 64 KiB.
    pub max_head_bytes: usize,
    /// The largest `.mcp.json` that is read. By default 1 MiB.
    pub max_manifest_bytes: usize,
}

impl Default for CustomizeConfig {
    fn default() -> Self {
        Self {
            max_depth: 8,
            max_entries: 100_000,
            max_found: 10_000,
            max_head_bytes: 64 << 10,
            max_manifest_bytes: 1 << 20,
        }
    }
}

/// The customizations in these directories. If a limit is reached, the directory has a warning.
///
/// Their order and ids are the same each time, so that two lists can be compared.
pub async fn find(dirs: Vec<PathBuf>, config: CustomizeConfig) -> Vec<Customization> {
    let search = move || dirs.iter().flat_map(|dir| classify::search(dir, &config)).collect();
    // If the closure panics, which it should not, nothing was found.
    tokio::task::spawn_blocking(search).await.unwrap_or_default()
}

/// Copies the enablement of customizations from an earlier search. New ones are enabled.
pub fn keep_enablement(found: &mut [Customization], before: &[Customization]) {
    let mut choices = Enablement::default();
    before.iter().for_each(|customization| choices.note(customization));
    found.iter_mut().for_each(|customization| choices.apply(customization));
}

/// Enablement by id.
#[derive(Default)]
struct Enablement<'a> {
    enabled: HashMap<&'a str, bool>,
    decisions: HashMap<&'a str, &'a Vec<CustomizationEnablement>>,
}

impl<'a> Enablement<'a> {
    fn note(&mut self, customization: &'a Customization) {
        let (id, children) = match customization {
            Customization::Directory(directory) => {
                self.enabled.insert(&directory.id, directory.enabled);
                (&directory.id, &directory.children)
            }
            Customization::Plugin(plugin) => (&plugin.id, &plugin.children),
            Customization::McpServer(server) => (&server.id, &None),
            Customization::Unknown(_) => return,
        };
        let decisions = match customization {
            Customization::Plugin(plugin) => plugin.enablement.as_ref(),
            Customization::McpServer(server) => server.enablement.as_ref(),
            _ => None,
        };
        self.decisions.extend(decisions.map(|decisions| (id.as_str(), decisions)));
        let children = children.iter().flatten().filter_map(|child| match child {
            ChildCustomization::Rule(rule) => Some((rule.id.as_str(), rule.enabled?)),
            ChildCustomization::Skill(skill) => Some((skill.id.as_str(), skill.enabled?)),
            _ => None,
        });
        self.enabled.extend(children);
    }

    fn apply(&self, customization: &mut Customization) {
        match customization {
            Customization::Directory(directory) => {
                directory.enabled = self.enabled.get(directory.id.as_str()).copied().unwrap_or(directory.enabled);
                for child in directory.children.iter_mut().flatten() {
                    let (id, enabled) = match child {
                        ChildCustomization::Rule(rule) => (&rule.id, &mut rule.enabled),
                        ChildCustomization::Skill(skill) => (&skill.id, &mut skill.enabled),
                        _ => continue,
                    };
                    *enabled = self.enabled.get(id.as_str()).copied().or(*enabled);
                }
            }
            Customization::McpServer(server) => {
                server.enablement = self.decisions.get(server.id.as_str()).map(|&decisions| decisions.clone());
            }
            Customization::Plugin(_) | Customization::Unknown(_) => {}
        }
    }
}
