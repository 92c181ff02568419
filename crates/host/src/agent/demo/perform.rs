//! The scripts.

use ahp_types::state::Message;
use breakbulk_lifecycle::{Answer, Content, Failure, Id, ToolResult};
use serde_json::{Value, json};

use super::recall::Recall;
use super::script::{HELP, Script, Wish};
use super::teller::{Stop, Teller};
use super::words::{self, quoted};
use super::{edit, run};

/// Plays what a prompt asks for, with what was known before it.
pub(super) async fn perform(mut teller: Teller, turn: Id, message: Message, recall: Recall) -> Result<(), Stop> {
    teller.begin_turn(turn).await?;
    let wish = Wish::read(&message.text, &teller.config);
    if wish.is_slow {
        teller.pace = teller.config.slow_pace;
    }
    match wish.script {
        Script::Echo => echo(&mut teller, &message).await?,
        Script::Think => think(&mut teller).await?,
        Script::Recall => teller.tell(&recall.said()).await?,
        Script::Fail => return fail(&mut teller).await,
        Script::Tools(count) => tools(&mut teller, count).await?,
        Script::Big(bytes) => big(&mut teller, bytes).await?,
        Script::Run(argv) => command(&mut teller, argv).await?,
        Script::Edit { file, text } => write(&mut teller, &file, &text).await?,
        Script::Wrong(why) => teller.tell(&format!("(demo) {why} This is what I can do:\n\n{HELP}")).await?,
    }
    teller.usage(message.text.len()).await
}

async fn echo(teller: &mut Teller, message: &Message) -> Result<(), Stop> {
    let attached = message.attachments.as_ref().map_or(0, Vec::len);
    teller.begin_message().await?;
    teller.think("(demo) No model thinks here; a script says what comes next.").await?;
    teller
        .say(&format!(
            "I am the **demo** agent, a script without a model. You sent {} bytes and {attached} attachments:\n\n\
             {}\n\nThis is what I can do:\n\n{HELP}",
            message.text.len(),
            quoted(&message.text),
        ))
        .await?;
    teller.end_message().await
}

async fn think(teller: &mut Teller) -> Result<(), Stop> {
    teller.begin_message().await?;
    for step in 1..=3 {
        let number = teller.chance.below(100);
        teller
            .think(&format!(
                "(demo) Thought {step} of 3. A cargo that is too big for one hold is opened and shipped in pieces; I \
                 count {number} of them, and none may be lost or change its place."
            ))
            .await?;
    }
    teller.say("(demo) I have thought about it three times.").await?;
    teller.end_message().await
}

async fn fail(teller: &mut Teller) -> Result<(), Stop> {
    teller.begin_message().await?;
    teller.think("(demo) This will not end well, as requested.").await?;
    teller.break_off("(demo) I was about to say something, but in the middle of a wo").await?;
    Err(Stop::Failed(Failure::new("demo", "The demo failed because it was asked to (/fail).")))
}

/// The commands of `/tools`, in turn. They only look.
fn harmless(number: u32) -> Vec<String> {
    let argv: &[&str] = match number % 3 {
        0 => &["pwd"],
        1 => &["ls"],
        _ => &["uname"],
    };
    argv.iter().map(|word| (*word).to_owned()).collect()
}

/// Several calls in one message; all are asked about at once, and may be answered in any order.
async fn tools(teller: &mut Teller, count: u32) -> Result<(), Stop> {
    teller.begin_message().await?;
    teller.say(&format!("(demo) I call {count} tools.")).await?;
    let mut calls = Vec::new();
    for number in 0..count {
        let argv = harmless(number);
        calls.push((call_command(teller, &argv).await?, argv));
    }
    teller.end_message().await?;
    for (tool, argv) in &calls {
        ask_command(teller, tool, argv).await?;
    }
    let mut ran = 0;
    for (tool, argv) in calls {
        ran += u32::from(answered_command(teller, tool, argv).await?);
    }
    teller.tell(&format!("(demo) {ran} of {count} tools did what they were called for.")).await
}

async fn command(teller: &mut Teller, argv: Vec<String>) -> Result<(), Stop> {
    teller.begin_message().await?;
    teller.say("(demo) I want to run a command in your workspace.").await?;
    let tool = call_command(teller, &argv).await?;
    teller.end_message().await?;
    ask_command(teller, &tool, &argv).await?;
    let said = if answered_command(teller, tool, argv).await? { "It is done." } else { "It was not done." };
    teller.tell(&format!("(demo) {said}")).await
}

async fn call_command(teller: &mut Teller, argv: &[String]) -> Result<Id, Stop> {
    let intention = format!("Run {}", shown(argv));
    teller.call("demo_run", "Demo: run a command", intention, &json!({ "argv": argv })).await
}

async fn ask_command(teller: &Teller, tool: &Id, argv: &[String]) -> Result<(), Stop> {
    let place = teller.directory.display();
    teller.ask(tool, "Demo: run a command", format!("The demo wants to run {} in {place}", shown(argv))).await
}

/// Runs a command if that is allowed; says whether it did what it was to do.
async fn answered_command(teller: &mut Teller, tool: Id, argv: Vec<String>) -> Result<bool, Stop> {
    let Some(edited) = allowed(teller, &tool).await? else { return Ok(false) };
    let argv = match edited.map(|input| input_argv(&input)) {
        None => argv,
        Some(Some(argv)) => argv,
        Some(None) => return failed(teller, tool, "The edited input is not {\"argv\":[…]}.").await,
    };
    let limits = run::Limits { time: teller.config.command_time, bytes: teller.config.command_bytes };
    let result = match run::run(&argv, &teller.directory, limits).await {
        Ok(ran) => ran.into_result(&shown(&argv)),
        Err(error) => ToolResult::failed(format!("Could not run {}", shown(&argv)), error.to_string()),
    };
    let success = result.success;
    teller.done(tool, result).await?;
    Ok(success)
}

async fn big(teller: &mut Teller, bytes: u64) -> Result<(), Stop> {
    teller.begin_message().await?;
    teller.say(&format!("(demo) I call a tool whose result has {bytes} bytes.")).await?;
    let intention = format!("Produce {bytes} bytes");
    let tool = teller.call("demo_big", "Demo: produce bytes", intention, &json!({ "bytes": bytes })).await?;
    teller.end_message().await?;
    teller.start(&tool).await?;
    let mut chance = teller.chance.clone();
    let made = tokio::task::spawn_blocking(move || words::filler(bytes, &mut chance)).await;
    let text = made.unwrap_or_default();
    teller.done(tool, ToolResult::text(format!("Produced {} bytes", text.len()), text)).await?;
    teller.tell("(demo) There it is.").await
}

async fn write(teller: &mut Teller, file: &str, text: &str) -> Result<(), Stop> {
    // What is announced is exactly what is written.
    let text = &edit::with_line_end(text);
    teller.begin_message().await?;
    teller.say("(demo) I want to write a file in your workspace.").await?;
    let input = json!({ "file": file, "text": text });
    let tool = teller.call("demo_edit", "Demo: write a file", format!("Write {file}"), &input).await?;
    teller.end_message().await?;
    let place = teller.directory.display();
    let message = format!("The demo wants to write {} bytes to {file} in {place}", text.len());
    teller.ask(&tool, "Demo: write a file", message).await?;
    let said = if written(teller, tool, file, text).await? { "It is written." } else { "It was not written." };
    teller.tell(&format!("(demo) {said}")).await
}

async fn written(teller: &mut Teller, tool: Id, file: &str, text: &str) -> Result<bool, Stop> {
    let Some(edited) = allowed(teller, &tool).await? else { return Ok(false) };
    let (file, text) = match edited.map(|input| input_edit(&input)) {
        None => (file.to_owned(), text.to_owned()),
        Some(Some(edit)) => edit,
        Some(None) => return failed(teller, tool, "The edited input is not {\"file\":…,\"text\":…}.").await,
    };
    let (directory, name) = (teller.directory.clone(), file.clone());
    let done = tokio::task::spawn_blocking(move || edit::write(&directory, &name, &text)).await;
    let result = match done {
        Ok(Ok(written)) => {
            let edit = Content::Edit { uri: written.uri, added: written.added, removed: written.removed };
            ToolResult { success: true, summary: format!("Wrote {file}"), content: vec![edit], error: None }
        }
        Ok(Err(error)) => ToolResult::failed(format!("Could not write {file}"), error.to_string()),
        Err(error) => ToolResult::failed(format!("Could not write {file}"), error.to_string()),
    };
    let success = result.success;
    teller.done(tool, result).await?;
    Ok(success)
}

/// Waits for the answer. If it allows the call, that runs now, with another input if somebody has edited it.
async fn allowed(teller: &mut Teller, tool: &Id) -> Result<Option<Option<String>>, Stop> {
    match teller.answer(tool).await? {
        Answer::Allowed { input, .. } => {
            teller.start(tool).await?;
            Ok(Some(input))
        }
        Answer::Denied { reason, .. } => {
            teller.cancelled(tool.clone(), reason).await?;
            Ok(None)
        }
        Answer::Withdrawn => {
            teller.cancelled(tool.clone(), None).await?;
            Ok(None)
        }
    }
}

async fn failed(teller: &Teller, tool: Id, why: &str) -> Result<bool, Stop> {
    teller.done(tool, ToolResult::failed("Did nothing", why)).await?;
    Ok(false)
}

fn input_argv(input: &str) -> Option<Vec<String>> {
    let mut input: Value = serde_json::from_str(input).ok()?;
    let argv: Vec<String> = serde_json::from_value(input.get_mut("argv")?.take()).ok()?;
    (!argv.is_empty()).then_some(argv)
}

fn input_edit(input: &str) -> Option<(String, String)> {
    let input: Value = serde_json::from_str(input).ok()?;
    Some((input.get("file")?.as_str()?.to_owned(), input.get("text")?.as_str()?.to_owned()))
}

/// A command for people to read.
fn shown(argv: &[String]) -> String {
    format!("`{}`", argv.join(" "))
}
