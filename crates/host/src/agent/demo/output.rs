//! The output of a script: events, piece by piece, at a pace.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use breakbulk_lifecycle::{Answer, Ask, BlockKind, Call, Ending, Event, Failure, Id, ToolResult, Usage};
use serde_json::Value;
use tokio::sync::mpsc;

use super::text::{Random, hash, pieces};
use super::{DemoConfig, NAME};
use crate::agent::{Clock, EventSender, NoListener};

/// Emits the events of a script, for one turn.
pub(super) struct ScriptOutput {
    pub(super) config: DemoConfig,
    /// Where commands run and files are written.
    pub(super) directory: PathBuf,
    pub(super) random: Random,
    pub(super) pace: Duration,
    events: EventSender,
    clock: Arc<dyn Clock>,
    answers: mpsc::Receiver<(Id, Answer)>,
    /// Answers that arrived before the script waited for them.
    answered: HashMap<Id, Answer>,
    /// The prefix of all ids of this turn.
    stem: String,
    message: Id,
    messages: u32,
    blocks: u32,
    tools: u32,
    pieces: u64,
}

/// Why a script ends early.
#[derive(Debug)]
pub(super) enum ScriptEnd {
    /// Nobody listens.
    NoListener,
    /// It was to fail.
    Failed(Failure),
}

impl From<NoListener> for ScriptEnd {
    fn from(_gone: NoListener) -> Self {
        Self::NoListener
    }
}

impl ScriptOutput {
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
            random: Random::new(config.seed, turn),
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

    pub(super) async fn begin_turn(&self, turn: Id) -> Result<(), ScriptEnd> {
        self.emit(Event::TurnStarted { turn }).await
    }

    pub(super) async fn begin_message(&mut self) -> Result<(), ScriptEnd> {
        self.messages += 1;
        self.message = Id::from(format!("{}-m{}", self.stem, self.messages));
        self.emit(Event::MessageStarted { message: self.message.clone(), agent: None }).await
    }

    pub(super) async fn end_message(&self) -> Result<(), ScriptEnd> {
        self.emit(Event::MessageEnded { message: self.message.clone() }).await
    }

    /// A message of one text.
    pub(super) async fn tell(&mut self, text: &str) -> Result<(), ScriptEnd> {
        self.begin_message().await?;
        self.say(text).await?;
        self.end_message().await
    }

    /// A block of text.
    pub(super) async fn say(&mut self, text: &str) -> Result<(), ScriptEnd> {
        let block = self.speak(BlockKind::Text, text).await?;
        self.end_block(block, None).await
    }

    /// A block of text that does not end.
    pub(super) async fn break_off(&mut self, text: &str) -> Result<(), ScriptEnd> {
        self.speak(BlockKind::Text, text).await.map(drop)
    }

    /// A block of thinking.
    pub(super) async fn think(&mut self, text: &str) -> Result<(), ScriptEnd> {
        let block = self.speak(BlockKind::Thinking, text).await?;
        self.end_block(block, None).await
    }

    /// A call, with its input.
    pub(super) async fn call(
        &mut self,
        name: &str,
        title: &str,
        intention: String,
        input: &Value,
    ) -> Result<Id, ScriptEnd> {
        self.tools += 1;
        let tool = Id::from(format!("{}-t{}", self.stem, self.tools));
        let call = Call { tool: tool.clone(), name: name.into(), title: title.into(), intention: Some(intention) };
        let input = input.to_string();
        let block = self.speak(BlockKind::ToolInput(call), &input).await?;
        self.end_block(block, Some(input)).await?;
        Ok(tool)
    }

    pub(super) async fn ask(&self, tool: &Id, title: &str, message: String) -> Result<(), ScriptEnd> {
        let ask = Ask { title: title.to_owned(), message, editable: true, choices: Vec::new() };
        self.emit(Event::ToolAsked { tool: tool.clone(), ask }).await
    }

    /// Waits until somebody has answered what was asked about a call.
    pub(super) async fn answer(&mut self, tool: &Id) -> Result<Answer, ScriptEnd> {
        let answer = loop {
            if let Some(answer) = self.answered.remove(tool) {
                break answer;
            }
            let (of, answer) = self.answers.recv().await.ok_or(ScriptEnd::NoListener)?;
            self.answered.insert(of, answer);
        };
        self.emit(Event::ToolAnswered { tool: tool.clone(), answer: answer.clone() }).await?;
        Ok(answer)
    }

    pub(super) async fn start(&self, tool: &Id) -> Result<(), ScriptEnd> {
        self.emit(Event::ToolStarted { tool: tool.clone() }).await
    }

    pub(super) async fn done(&self, tool: Id, result: ToolResult) -> Result<(), ScriptEnd> {
        self.emit(Event::ToolEnded { tool, ending: Ending::Done(result) }).await
    }

    pub(super) async fn cancelled(&self, tool: Id, reason: Option<String>) -> Result<(), ScriptEnd> {
        self.emit(Event::ToolEnded { tool, ending: Ending::Cancelled { reason } }).await
    }

    /// Emits an invented usage: four bytes of the prompt, and each piece of output, count as one token.
    pub(super) async fn usage(&self, prompt_bytes: usize) -> Result<(), ScriptEnd> {
        let input_tokens = u64::try_from(prompt_bytes / 4).ok();
        let output_tokens = Some(self.pieces);
        let model = Some(NAME.to_owned());
        self.emit(Event::Usage(Usage { input_tokens, output_tokens, model, ..Usage::default() })).await
    }

    async fn speak(&mut self, kind: BlockKind, text: &str) -> Result<Id, ScriptEnd> {
        let (message, kind_of) = (self.message.clone(), kind.kind());
        let block = Id::from(format!("b{}", self.blocks));
        self.blocks += 1;
        self.emit(Event::BlockStarted { message: message.clone(), block: block.clone(), kind }).await?;
        for text in pieces(text, &mut self.random) {
            self.clock.sleep(self.pace).await;
            self.pieces += 1;
            let (message, block) = (message.clone(), block.clone());
            self.emit(Event::BlockDelta { message, block, kind: kind_of, text }).await?;
        }
        Ok(block)
    }

    async fn end_block(&self, block: Id, input: Option<String>) -> Result<(), ScriptEnd> {
        self.emit(Event::BlockEnded { message: self.message.clone(), block, input }).await
    }

    async fn emit(&self, event: Event) -> Result<(), ScriptEnd> {
        Ok(self.events.send(event).await?)
    }
}
