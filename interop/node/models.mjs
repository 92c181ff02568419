// A fake model server for agents of any vendor: llmock. Its model does what the last prompt says, as in messages_api.mjs: say, run,
// tick, recall. Prints its address, and ends when its standard input does.
import { LLMock } from "@copilotkit/aimock";

const TICKS = 3_000;

const text = (content) => (typeof content === "string" ? content : (content ?? []).map((part) => part.text ?? "").join("\n"));

function answer({ messages }) {
  const last = messages.at(-1);
  if (last?.role === "tool") return { content: `The call gave: ${text(last.content)}` };
  const prompts = messages.filter((message) => message.role === "user").map((message) => text(message.content));
  const prompt = prompts.at(-1) ?? "";
  const [word] = prompt.split(" ", 1);
  const rest = prompt.slice(word.length + 1);
  switch (word) {
    case "say": return { content: rest };
    case "run": {
      const call = { name: "bash", arguments: JSON.stringify({ command: rest, description: "As you said" }) };
      return { content: "I run it.", toolCalls: [{ id: `call_${messages.length}`, ...call }] };
    }
    case "recall": return { content: prompts.join(" | ") };
    default: return { content: "Something else" };
  }
}

const mock = new LLMock({ port: 0, host: "127.0.0.1", logLevel: "silent", chunkSize: 8 });
const isTick = ({ messages }) => messages.at(-1)?.role === "user" && text(messages.at(-1).content).startsWith("tick");
mock.addFixture({ match: { predicate: isTick }, response: { content: "tick ".repeat(TICKS) }, latency: 20, chunkSize: 5 });
mock.addFixture({ match: {}, response: answer });
await mock.start();
console.log(mock.url);
process.stdin.resume().on("end", () => process.exit(0));
