// A small fake of the Messages API, for the Claude Code program. Its model does what the last prompt says:
//
//   say WORDS     answers with these words
//   run COMMAND   calls the shell, and says what came of it
//   see           says how many images it was shown
//   tick          says "tick" until nobody listens, for at most two minutes
//   recall        says all prompts that it remembers
//
// Prints its address, and ends when its standard input does.
import { createServer } from "node:http";

const ANSWER_MS = 120_000;

const parts = (content) => (typeof content === "string" ? [{ type: "text", text: content }] : content);
const text = (content) => parts(content).filter((part) => part.type === "text").map((part) => part.text).join("\n");
// What the program itself adds to a prompt is in tags or brackets.
const isPrompt = (part) => part.type === "text" && !/^\s*[<[]/.test(part.text);

/** What the model answers to these messages: words, and maybe a call. */
function answer(messages) {
  const said = messages.filter((message) => message.role === "user").flatMap((message) => parts(message.content));
  const last = messages.filter((message) => message.role === "user").at(-1);
  const result = parts(last?.content ?? []).findLast((part) => part.type === "tool_result");
  if (result) return { words: `The call gave: ${text(result.content ?? "")}` };
  const prompts = said.filter(isPrompt).map((part) => part.text);
  const prompt = prompts.at(-1) ?? "";
  const [word] = prompt.split(" ", 1);
  const rest = prompt.slice(word.length + 1);
  switch (word) {
    case "say": return { words: rest };
    case "run": return { words: "I run it.", call: { name: "Bash", input: { command: rest, description: "As you said" } } };
    case "see": return { words: `I see ${said.filter((part) => part.type === "image").length} image` };
    case "tick": return { ticks: true };
    case "recall": return { words: prompts.join(" | ") };
    default: return { words: "Something else" };
  }
}

/** Streams an answer as the API does: blocks that begin, grow and stop. */
async function stream(response, message, { words, call, ticks }) {
  const send = (event) => response.write(`event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`);
  let index = 0;
  const begin = (block) => send({ type: "content_block_start", index, content_block: block });
  const grow = (delta) => send({ type: "content_block_delta", index, delta });
  const stop = () => send({ type: "content_block_stop", index: index++ });
  send({ type: "message_start", message });
  begin({ type: "text", text: "" });
  for (const word of words?.match(/\S+\s*|\s+/g) ?? []) grow({ type: "text_delta", text: word });
  for (const end = Date.now() + ANSWER_MS; ticks && !response.destroyed && Date.now() < end;) {
    grow({ type: "text_delta", text: "tick " });
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  stop();
  if (call) {
    begin({ type: "tool_use", id: `toolu_${message.id}`, name: call.name, input: {} });
    // In pieces that are no JSON alone.
    const json = JSON.stringify(call.input);
    [json.slice(0, 7), json.slice(7)].forEach((piece) => grow({ type: "input_json_delta", partial_json: piece }));
    stop();
  }
  const delta = { stop_reason: call ? "tool_use" : "end_turn", stop_sequence: null };
  send({ type: "message_delta", delta, usage: message.usage });
  send({ type: "message_stop" });
  response.end();
}

let count = 0;
const server = createServer(async (request, response) => {
  let body = "";
  for await (const piece of request) body += piece;
  if (request.method !== "POST" || !request.url.startsWith("/v1/messages")) return response.writeHead(404).end("{}");
  const asked = JSON.parse(body);
  response.setHeader("content-type", asked.stream ? "text/event-stream" : "application/json");
  if (request.url.includes("count_tokens")) return response.end(JSON.stringify({ input_tokens: 10 }));
  const usage = { input_tokens: 10, output_tokens: 5, cache_creation_input_tokens: 0, cache_read_input_tokens: 0 };
  const message = { id: `msg_${++count}_${process.pid}`, type: "message", role: "assistant", model: asked.model,
    content: [], stop_reason: null, stop_sequence: null, usage };
  const given = answer(asked.messages);
  if (asked.stream) return stream(response, message, given);
  const content = [{ type: "text", text: given.words ?? "" }];
  response.end(JSON.stringify({ ...message, content, stop_reason: "end_turn" }));
});
server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}`));
process.stdin.resume().on("end", () => process.exit(0));
