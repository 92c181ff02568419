//! What happens in a case, one thing after the other.

use bytes::Bytes;
use serde::Deserialize;

use super::expect::Expect;
use super::text::Text;
use super::wire;

/// One thing that happens. Times are in milliseconds.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Step {
    /// A frame arrives.
    Frame(Text),
    /// A frame arrives, of which the link knows more than the text.
    FrameFrom(From),
    /// A segment arrives: group, index, total, and the text that its data stands for.
    Segment(String, u64, u64, Text),
    /// The segments of a message arrive.
    Segments(Segments),
    /// Many frames arrive; `{n}` in the text counts them.
    Flood {
        /// The first number.
        #[serde(default)]
        from: u64,
        count: u64,
        frame: Text,
        #[serde(default)]
        meta: MetaSpec,
    },
    /// The application sends a message. The first one has ticket 1, the next 2, and so on.
    Send(Text),
    /// The application sends a message that it marked free.
    SendFree(Text),
    /// The application sends a message to someone.
    SendTo(From),
    /// The application sends many messages; `{n}` in the text counts them from 0.
    SendMany { count: u64, text: Text },
    /// The link says how much it takes.
    Capacity(CapacitySpec),
    /// Time passes, and nobody looks at the clock.
    Wait(u64),
    /// Time passes, and the driver acts on each timeout when it is due.
    Sleep(u64),
    /// The driver acts on a timeout now.
    Timeout(Now),
    /// The peer sends nothing more.
    EndOfInput(Now),
    /// The driver stops reading, or goes on.
    Pause(bool),
    /// The application or the link closes.
    Close(CloseSpec),
    /// The link says what became of a frame of ours; the first one is 1.
    Ack(AckSpec),
    /// The link takes so many frames. Needs `"hold": true` in the setup.
    Take(usize),
    /// Another principal asks the budget for so many bytes, and keeps them if it gets them.
    Crowd(u64),
    /// So does another connection of the same principal.
    CrowdSelf(u64),
    /// They give everything back.
    Uncrowd(Now),
    /// The application says that a message brought it up to a seq.
    NoteSeq(u64, u64),
    /// The link is lost: what was negotiated goes to the next connection.
    Reconnect(Now),
    /// What must have happened so far, since the last of these.
    Expect(Box<Expect>),
}

/// Written as `true`.
#[derive(Debug, Deserialize)]
#[serde(try_from = "bool")]
pub(super) struct Now;

impl TryFrom<bool> for Now {
    type Error = &'static str;

    fn try_from(value: bool) -> Result<Self, Self::Error> {
        if value { Ok(Self) } else { Err("this step is written as true") }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct From {
    pub(super) text: Text,
    pub(super) meta: MetaSpec,
}

/// What a link knows about a frame.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct MetaSpec {
    pub(super) peer: Option<String>,
    pub(super) id: Option<String>,
    pub(super) about: Option<String>,
    pub(super) supports_parts: bool,
}

/// The segments of one message, cut at given lengths.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Segments {
    group: String,
    of: Text,
    /// Bytes in each segment but the last.
    each: Option<usize>,
    /// Where to cut.
    cuts: Option<Vec<usize>>,
    /// Which segments arrive: from this one, up to and without that one.
    only: Option<(usize, usize)>,
}

impl Segments {
    /// The frames, in order; each is made when it is its turn.
    pub(super) fn frames(&self) -> Result<impl Iterator<Item = Bytes> + '_, String> {
        let text = &self.of.0;
        let total = match (self.each, &self.cuts) {
            (Some(each), None) if each > 0 => text.len().div_ceil(each),
            (None, Some(cuts)) if cuts.is_sorted() && cuts.last().is_none_or(|last| *last <= text.len()) => {
                cuts.len() + 1
            }
            _ => return Err("segments are cut by each, or by cuts that lie in the text one after the other".into()),
        };
        let (from, to) = self.only.unwrap_or((0, total));
        if from >= to || to > total {
            return Err(format!("there are {total} segments"));
        }
        Ok((from..to).map(move |index| {
            let part = text.get(self.cut(index)..self.cut(index + 1)).unwrap_or_default();
            wire::segment(&self.group, index as u64, total as u64, part).into()
        }))
    }

    /// Where segment `index` begins.
    fn cut(&self, index: usize) -> usize {
        let end = self.of.0.len();
        match (self.each, &self.cuts) {
            (Some(each), _) => (each * index).min(end),
            (None, Some(cuts)) => index.checked_sub(1).map_or(0, |at| cuts.get(at).copied().unwrap_or(end)),
            (None, None) => 0,
        }
    }
}

/// How much a link takes.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CapacitySpec {
    pub(super) cap: u64,
    /// Bytes that it adds to each text.
    #[serde(default)]
    pub(super) fixed: u64,
    /// Whether it puts each text in a JSON string.
    #[serde(default)]
    pub(super) escapes: bool,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CloseSpec {
    Normal,
    Restart,
    Peer(u16),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AckSpec {
    pub(super) frame: usize,
    pub(super) result: AckResult,
    /// The link's name for the frame.
    #[serde(default)]
    pub(super) id: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AckResult {
    Taken,
    TooLarge,
    TooFast,
    Other,
}
