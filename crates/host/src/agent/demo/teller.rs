//! How the demo speaks: piece by piece, at a pace.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use breakbulk_lifecycle::{Answer, Ask, BlockKind, Call, Ending, Event, Failure, Id, ToolResult, Usage};
use serde_json::Value;
use tokio::sync::mpsc;

use super::words::{Chance, hash, pieces};
use super::{DemoConfig, NAME};
use crate::agent::{Clock, EventSender, Gone};

/// Says what a script wants said, in one turn.
pub(super) struct Teller {
    pub(super) config: DemoConfig,
    /// Where commands run and files are written.
    pub(super) directory: PathBuf,
    pub(super) chance: Chance,
    pub(super) pace: Duration,
    events: EventSender,
    clock: Arc<dyn Clock>,
    answers: mpsc::Receiver<(Id, Answer)>,
    /// What was answered before anybody waited for it.
    answered: HashMap<Id, Answer>,
    /// Begins all names of this turn.
    stem: String,
    message: Id,
    messages: u32,
    blocks: u32,
    tools: u32,
    pieces: u64,
}

/// Why a script does not go on.
#[derive(Debug)]
pub(super) enum Stop {
    /// Nobody listens.
    Gone,
    /// It was to fail.
    Failed(Failure),
}

impl From<Gone> for Stop {
    fn from(_gone: Gone) -> Self {
        Self::Gone
    }
}

impl Teller {
    pub(super) fn new(
        config: DemoConfig,
        directory: PathBuf,
        turn: &Id,
        events: EventSender,
        clock: Arc<dyn Clock>,
        answers: mpsc::Receiver<(Id, Answer)>,
    ) -> Self {
        Self {
            config,
            directory,
            chance: Chance::new(config.seed, turn),
            pace: config.pace,
            events,
            clock,
            answers,
            answered: HashMap::new(),
            stem: format!("{NAME}-{:016x}", hash(turn)),
            message: Id::from(""),
            messages: 0,
            blocks: 0,
            tools: 0,
            pieces: 0,
        }
    }

    pub(super) async fn begin_turn(&self, turn: Id) -> Result<(), Stop> {
        self.emit(Event::TurnStarted { turn }).await
    }

    pub(super) async fn begin_message(&mut self) -> Result<(), Stop> {
        self.messages += 1;
        self.message = Id::from(format!("{}-m{}", self.stem, self.messages));
        self.emit(Event::MessageStarted { message: self.message.clone(), agent: None }).await
    }

    pub(super) async fn end_message(&self) -> Result<(), Stop> {
        self.emit(Event::MessageEnded { message: self.message.clone() }).await
    }

    /// A message of one text.
    pub(super) async fn tell(&mut self, text: &str) -> Result<(), Stop> {
        self.begin_message().await?;
        self.say(text).await?;
        self.end_message().await
    }

    /// A block of text.
    pub(super) async fn say(&mut self, text: &str) -> Result<(), Stop> {
        let block = self.speak(BlockKind::Text, text).await?;
        self.end_block(block, None).await
    }

    /// A block of text that does not end.
    pub(super) async fn break_off(&mut self, text: &str) -> Result<(), Stop> {
        self.speak(BlockKind::Text, text).await.map(drop)
    }

    /// A block of thinking.
    pub(super) async fn think(&mut self, text: &str) -> Result<(), Stop> {
        let block = self.speak(BlockKind::Thinking, text).await?;
        self.end_block(block, None).await
    }

    /// A call, with its input.
    pub(super) async fn call(&mut self, name: &str, title: &str, intention: String, input: &Value) -> Result<Id, Stop> {
        self.tools += 1;
        let tool = Id::from(format!("{}-t{}", self.stem, self.tools));
        let call = Call { tool: tool.clone(), name: name.into(), title: title.into(), intention: Some(intention) };
        let input = input.to_string();
        let block = self.speak(BlockKind::ToolInput(call), &input).await?;
        self.end_block(block, Some(input)).await?;
        Ok(tool)
    }

    pub(super) async fn ask(&self, tool: &Id, title: &str, message: String) -> Result<(), Stop> {
        let ask = Ask { title: title.to_owned(), message, editable: true, choices: Vec::new() };
        self.emit(Event::ToolAsked { tool: tool.clone(), ask }).await
    }

    /// Waits until somebody has answered what was asked about a call.
    pub(super) async fn answer(&mut self, tool: &Id) -> Result<Answer, Stop> {
        let answer = loop {
            if let Some(answer) = self.answered.remove(tool) {
                break answer;
            }
            let (of, answer) = self.answers.recv().await.ok_or(Stop::Gone)?;
            self.answered.insert(of, answer);
        };
        self.emit(Event::ToolAnswered { tool: tool.clone(), answer: answer.clone() }).await?;
        Ok(answer)
    }

    pub(super) async fn start(&self, tool: &Id) -> Result<(), Stop> {
        self.emit(Event::ToolStarted { tool: tool.clone() }).await
    }

    pub(super) async fn done(&self, tool: Id, result: ToolResult) -> Result<(), Stop> {
        self.emit(Event::ToolEnded { tool, ending: Ending::Done(result) }).await
    }

    pub(super) async fn cancelled(&self, tool: Id, reason: Option<String>) -> Result<(), Stop> {
        self.emit(Event::ToolEnded { tool, ending: Ending::Cancelled { reason } }).await
    }

    /// What the turn would have cost: what was read, in words of four bytes, and the pieces that were said.
    pub(super) async fn usage(&self, prompt_bytes: usize) -> Result<(), Stop> {
        let input_tokens = u64::try_from(prompt_bytes / 4).ok();
        let output_tokens = Some(self.pieces);
        let model = Some(NAME.to_owned());
        self.emit(Event::Usage(Usage { input_tokens, output_tokens, cache_read_tokens: None, model })).await
    }

    async fn speak(&mut self, kind: BlockKind, text: &str) -> Result<Id, Stop> {
        let (message, kind_of) = (self.message.clone(), kind.kind());
        let block = Id::from(format!("b{}", self.blocks));
        self.blocks += 1;
        self.emit(Event::BlockStarted { message: message.clone(), block: block.clone(), kind }).await?;
        for text in pieces(text, &mut self.chance) {
            self.clock.sleep(self.pace).await;
            self.pieces += 1;
            let (message, block) = (message.clone(), block.clone());
            self.emit(Event::BlockDelta { message, block, kind: kind_of, text }).await?;
        }
        Ok(block)
    }

    async fn end_block(&self, block: Id, input: Option<String>) -> Result<(), Stop> {
        self.emit(Event::BlockEnded { message: self.message.clone(), block, input }).await
    }

    async fn emit(&self, event: Event) -> Result<(), Stop> {
        Ok(self.events.send(event).await?)
    }
}
