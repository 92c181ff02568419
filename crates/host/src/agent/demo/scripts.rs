//! The scripts of the demo.

use ahp_types::state::Message;
use breakbulk_lifecycle::{Answer, Content, Failure, Id, ToolResult};
use serde_json::{Value, json};

use super::output::{ScriptEnd, ScriptOutput};
use super::prompt::{HELP, ParsedPrompt, Script};
use super::recall::Recall;
use super::text::{self, quoted};
use super::{edit, run};

/// Runs the script that a prompt asks for.
pub(super) async fn perform(
    mut output: ScriptOutput,
    turn: Id,
    message: Message,
    recall: Recall,
) -> Result<(), ScriptEnd> {
    output.begin_turn(turn).await?;
    let parsed = ParsedPrompt::read(&message.text, &output.config);
    if parsed.is_slow {
        output.pace = output.config.slow_pace;
    }
    match parsed.script {
        Script::Echo => echo(&mut output, &message).await?,
        Script::Think => think(&mut output).await?,
        Script::Recall => output.tell(&recall.said()).await?,
        Script::Fail => return fail(&mut output).await,
        Script::Tools(count) => tools(&mut output, count).await?,
        Script::Big(bytes) => big(&mut output, bytes).await?,
        Script::Run(argv) => command(&mut output, argv).await?,
        Script::Edit { file, text } => write(&mut output, &file, &text).await?,
        Script::Wrong(why) => output.tell(&format!("(demo) {why} This is what I can do:\n\n{HELP}")).await?,
    }
    output.usage(message.text.len()).await
}

async fn echo(output: &mut ScriptOutput, message: &Message) -> Result<(), ScriptEnd> {
    let attached = message.attachments.as_ref().map_or(0, Vec::len);
    output.begin_message().await?;
    output.think("(demo) No model thinks here; a script says what comes next.").await?;
    output
        .say(&format!(
            "I am the **demo** agent, a script without a model. You sent {} bytes and {attached} attachments:\n\n\
             {}\n\nThis is what I can do:\n\n{HELP}",
            message.text.len(),
            quoted(&message.text),
        ))
        .await?;
    output.end_message().await
}

async fn think(output: &mut ScriptOutput) -> Result<(), ScriptEnd> {
    output.begin_message().await?;
    for step in 1..=3 {
        let number = output.random.below(100);
        output
            .think(&format!(
                "(demo) Thought {step} of 3. A cargo that is too big for one hold is opened and shipped in pieces; I \
                 count {number} of them, and none may be lost or change its place."
            ))
            .await?;
    }
    output.say("(demo) I have thought about it three times.").await?;
    output.end_message().await
}

async fn fail(output: &mut ScriptOutput) -> Result<(), ScriptEnd> {
    output.begin_message().await?;
    output.think("(demo) This will not end well, as requested.").await?;
    output.break_off("(demo) I was about to say something, but in the middle of a wo").await?;
    Err(ScriptEnd::Failed(Failure::new("demo", "The demo failed because it was asked to (/fail).")))
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
async fn tools(output: &mut ScriptOutput, count: u32) -> Result<(), ScriptEnd> {
    output.begin_message().await?;
    output.say(&format!("(demo) I call {count} tools.")).await?;
    let mut calls = Vec::new();
    for number in 0..count {
        let argv = harmless(number);
        calls.push((call_command(output, &argv).await?, argv));
    }
    output.end_message().await?;
    for (tool, argv) in &calls {
        ask_command(output, tool, argv).await?;
    }
    let mut ran = 0;
    for (tool, argv) in calls {
        ran += u32::from(answered_command(output, tool, argv).await?);
    }
    output.tell(&format!("(demo) {ran} of {count} tools did what they were called for.")).await
}

async fn command(output: &mut ScriptOutput, argv: Vec<String>) -> Result<(), ScriptEnd> {
    output.begin_message().await?;
    output.say("(demo) I want to run a command in your workspace.").await?;
    let tool = call_command(output, &argv).await?;
    output.end_message().await?;
    ask_command(output, &tool, &argv).await?;
    let said = if answered_command(output, tool, argv).await? { "It is done." } else { "It was not done." };
    output.tell(&format!("(demo) {said}")).await
}

async fn call_command(output: &mut ScriptOutput, argv: &[String]) -> Result<Id, ScriptEnd> {
    let intention = format!("Run {}", shown(argv));
    output.call("demo_run", "Demo: run a command", intention, &json!({ "argv": argv })).await
}

async fn ask_command(output: &ScriptOutput, tool: &Id, argv: &[String]) -> Result<(), ScriptEnd> {
    let place = output.directory.display();
    output.ask(tool, "Demo: run a command", format!("The demo wants to run {} in {place}", shown(argv))).await
}

/// Runs a command if the user allows it; returns whether it succeeded.
async fn answered_command(output: &mut ScriptOutput, tool: Id, argv: Vec<String>) -> Result<bool, ScriptEnd> {
    let Some(edited) = allowed(output, &tool).await? else { return Ok(false) };
    let argv = match edited.map(|input| input_argv(&input)) {
        None => argv,
        Some(Some(argv)) => argv,
        Some(None) => return failed(output, tool, "The edited input is not {\"argv\":[…]}.").await,
    };
    let limits = run::CommandLimits { time: output.config.command_time, bytes: output.config.command_bytes };
    let result = match run::run(&argv, &output.directory, limits).await {
        Ok(ran) => ran.into_result(&shown(&argv)),
        Err(error) => ToolResult::failed(format!("Could not run {}", shown(&argv)), error.to_string()),
    };
    let success = result.success;
    output.done(tool, result).await?;
    Ok(success)
}

async fn big(output: &mut ScriptOutput, bytes: u64) -> Result<(), ScriptEnd> {
    output.begin_message().await?;
    output.say(&format!("(demo) I call a tool whose result has {bytes} bytes.")).await?;
    let intention = format!("Produce {bytes} bytes");
    let tool = output.call("demo_big", "Demo: produce bytes", intention, &json!({ "bytes": bytes })).await?;
    output.end_message().await?;
    output.start(&tool).await?;
    let mut random = output.random.clone();
    let made = tokio::task::spawn_blocking(move || text::filler(bytes, &mut random)).await;
    let text = made.unwrap_or_default();
    output.done(tool, ToolResult::text(format!("Produced {} bytes", text.len()), text)).await?;
    output.tell("(demo) There it is.").await
}

async fn write(output: &mut ScriptOutput, file: &str, text: &str) -> Result<(), ScriptEnd> {
    // What is announced is exactly what is written.
    let text = &edit::with_line_end(text);
    output.begin_message().await?;
    output.say("(demo) I want to write a file in your workspace.").await?;
    let input = json!({ "file": file, "text": text });
    let tool = output.call("demo_edit", "Demo: write a file", format!("Write {file}"), &input).await?;
    output.end_message().await?;
    let place = output.directory.display();
    let message = format!("The demo wants to write {} bytes to {file} in {place}", text.len());
    output.ask(&tool, "Demo: write a file", message).await?;
    let said = if written(output, tool, file, text).await? { "It is written." } else { "It was not written." };
    output.tell(&format!("(demo) {said}")).await
}

async fn written(output: &mut ScriptOutput, tool: Id, file: &str, text: &str) -> Result<bool, ScriptEnd> {
    let Some(edited) = allowed(output, &tool).await? else { return Ok(false) };
    let (file, text) = match edited.map(|input| input_edit(&input)) {
        None => (file.to_owned(), text.to_owned()),
        Some(Some(edit)) => edit,
        Some(None) => return failed(output, tool, "The edited input is not {\"file\":…,\"text\":…}.").await,
    };
    let (directory, name) = (output.directory.clone(), file.clone());
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
    output.done(tool, result).await?;
    Ok(success)
}

/// Waits for the user's answer. If the call is allowed, starts it; returns the input if the user has edited it.
async fn allowed(output: &mut ScriptOutput, tool: &Id) -> Result<Option<Option<String>>, ScriptEnd> {
    match output.answer(tool).await? {
        Answer::Allowed { input, .. } => {
            output.start(tool).await?;
            Ok(Some(input))
        }
        Answer::Denied { reason, .. } => {
            output.cancelled(tool.clone(), reason).await?;
            Ok(None)
        }
        Answer::Withdrawn => {
            output.cancelled(tool.clone(), None).await?;
            Ok(None)
        }
    }
}

async fn failed(output: &ScriptOutput, tool: Id, why: &str) -> Result<bool, ScriptEnd> {
    output.done(tool, ToolResult::failed("Did nothing", why)).await?;
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
