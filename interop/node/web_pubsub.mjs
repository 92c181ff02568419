// The official SDKs of Azure Web PubSub as client and as service, against the relay whose connection string is in the environment.
import assert from "node:assert/strict";
import { createInterface } from "node:readline";
import { WebPubSubServiceClient } from "@azure/web-pubsub";
import { WebPubSubClient } from "@azure/web-pubsub-client";

const HUB = "agents";
const service = new WebPubSubServiceClient(process.env.CONNECTION_STRING, HUB, { allowInsecureConnection: true });
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Has all connections cut. */
async function cut() {
  console.log("cut");
  await lines.next();
}

async function until(what, is) {
  for (let waited = 0; waited < 30_000; waited += 20) {
    if (is()) return;
    await pause(20);
  }
  assert.fail(`not in time: ${what}`);
}

const ALL = ["webpubsub.joinLeaveGroup", "webpubsub.sendToGroup"];

/** A client that has connected, with all that it got. */
async function connected(userId, roles = ALL) {
  const getClientAccessUrl = async () => (await service.getClientAccessToken({ userId, roles })).url;
  const client = new WebPubSubClient({ getClientAccessUrl });
  const seen = { groups: [], server: [], connections: [], ended: 0 };
  client.on("connected", (event) => seen.connections.push(event.connectionId));
  client.on("disconnected", () => (seen.ended += 1));
  client.on("group-message", ({ message }) => seen.groups.push(message));
  client.on("server-message", ({ message }) => seen.server.push(message.data));
  await client.start();
  await until("connected", () => seen.connections.length === 1);
  return { client, seen, id: () => seen.connections.at(-1) };
}

async function refusal(work) {
  try {
    await work();
  } catch (error) {
    return error.errorDetail?.name ?? error.message;
  }
  return assert.fail("it was not refused");
}

async function clientAndService() {
  const ann = await connected("ann");
  const bob = await connected("bob");
  await bob.client.joinGroup("g");
  await ann.client.sendToGroup("g", "hello \"größe\" 🚢", "text", { noEcho: true });
  await ann.client.sendToGroup("g", { a: [1, 2.5, null] }, "json");
  await ann.client.sendToGroup("g", new Uint8Array([0, 255, 7]).buffer, "binary");
  await until("messages of a group", () => bob.seen.groups.length === 3);
  const [text, json, binary] = bob.seen.groups;
  assert.deepEqual([text.data, text.fromUserId, text.group], ["hello \"größe\" 🚢", "ann", "g"]);
  assert.deepEqual(json.data, { a: [1, 2.5, null] });
  assert.deepEqual([...new Uint8Array(binary.data)], [0, 255, 7]);

  // The same number twice is sent once.
  const first = await ann.client.sendToGroup("g", "once", "text", { ackId: 777 });
  const second = await ann.client.sendToGroup("g", "once", "text", { ackId: 777 });
  assert.deepEqual([first.isDuplicated, second.isDuplicated], [false, true]);

  // From the service.
  const plain = { contentType: "text/plain" };
  await service.group("g").sendToAll({ from: "service" });
  await service.sendToUser("bob", "to bob", plain);
  await service.sendToConnection(bob.id(), "to the connection", plain);
  await service.sendToAll("to all", plain);
  const isThere = () => bob.seen.server.length === 3 && bob.seen.groups.length === 5 && ann.seen.server.length === 1;
  await until("messages of the service", isThere);
  assert.deepEqual(bob.seen.server, ["to bob", "to the connection", "to all"]);
  assert.deepEqual(bob.seen.groups.slice(3).map((message) => message.data), ["once", { from: "service" }]);
  assert.deepEqual(ann.seen.server, ["to all"]);
  const exists = [
    await service.connectionExists(ann.id()), await service.connectionExists("nobody"),
    await service.groupExists("g"), await service.groupExists("h"),
    await service.userExists("bob"), await service.userExists("carl"),
  ];
  assert.deepEqual(exists, [true, false, true, false, true, false]);
  await service.group("h").addConnection(ann.id());
  await service.group("h").addUser("bob");
  assert.equal(await service.groupExists("h"), true);
  await service.group("h").removeConnection(ann.id());
  await service.group("h").removeUser("bob");
  assert.equal(await service.groupExists("h"), false);

  // Without a role.
  const carl = await connected("carl", []);
  assert.equal(await refusal(() => carl.client.joinGroup("g")), "Forbidden");
  assert.equal(await refusal(() => carl.client.sendToGroup("g", "x", "text")), "Forbidden");
  assert.equal(await service.hasPermission(carl.id(), "joinLeaveGroup", { targetName: "g" }), false);
  await service.grantPermission(carl.id(), "joinLeaveGroup", { targetName: "g" });
  assert.equal(await service.hasPermission(carl.id(), "joinLeaveGroup", { targetName: "g" }), true);
  await carl.client.joinGroup("g");
  await service.revokePermission(carl.id(), "joinLeaveGroup", { targetName: "g" });
  assert.equal(await refusal(() => carl.client.joinGroup("h")), "Forbidden");

  // What nobody here handles.
  await carl.client.sendEvent("event", "data", "text");
  assert.match(await refusal(() => carl.client.invokeEvent("event", "data", "text")), /NotSupported/);

  await service.closeConnection(carl.id(), { reason: "enough" });
  await until("the end of a connection", () => carl.seen.ended === 1);
  carl.client.stop();

  await recovers(ann, bob);
  await refusesLongFrames(ann);
  ann.client.stop();
  bob.client.stop();
}

/** Messages that are sent while connections are cut arrive once, in order. */
async function recovers(ann, bob) {
  const COUNT = 150;
  const before = bob.seen.groups.length;
  const sending = (async () => {
    for (let n = 0; n < COUNT; n++) {
      for (;;) {
        try {
          // The client would take a new number for another attempt.
          await ann.client.sendToGroup("g", `${n}`, "text", { ackId: 10_000 + n });
          break;
        } catch {
          await pause(20);
        }
      }
      if (n % 10 === 0) await pause(30);
    }
  })();
  for (let n = 0; n < 3; n++) {
    await pause(100);
    await cut();
    await pause(1_200);
  }
  await sending;
  await until("all messages", () => bob.seen.groups.length >= before + COUNT);
  await pause(300);
  const numbers = bob.seen.groups.slice(before).map((message) => Number(message.data));
  assert.deepEqual(numbers, Array.from({ length: COUNT }, (_, n) => n));
  assert.deepEqual([ann.seen.connections.length, bob.seen.connections.length], [1, 1], "recovered, and not begun again");
}

/** A frame over 1 MB closes the connection, which recovers: the client tries four times. */
async function refusesLongFrames(ann) {
  const error = await refusal(() => ann.client.sendToGroup("g", "x".repeat(1_100_000), "text"));
  assert.match(error, /disconnected/i);
  assert.equal(ann.seen.connections.length, 1);
}

/** The service forgets a connection as soon as it is lost. */
async function forgotten() {
  const ann = await connected("ann");
  await ann.client.joinGroup("g");
  await cut();
  await until("another connection", () => ann.seen.connections.length === 2);
  await pause(500);
  await service.group("g").sendToAll("welcome back", { contentType: "text/plain" });
  await until("a message of the group", () => ann.seen.groups.length === 1);
  assert.equal(ann.seen.groups[0].data, "welcome back");
  ann.client.stop();
}

await (process.argv[2] === "forgotten" ? forgotten() : clientAndService());
console.log("all of it holds");
process.exit(0);
