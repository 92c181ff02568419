"""A client that has never heard of segments: each message is one frame, whatever its length."""

import asyncio
import json
import sys

from ahp_client import ROOT, Client, Plain, in_order, result_text, say

SESSION = "ahp-session:/plain"
# What `websockets` takes in one message when nobody tells it otherwise.
DEFAULT = 2**20


async def session(url):
    client = await Client.open(url, Plain(), DEFAULT)
    hello = await client.initialize("plain")
    assert hello["protocolVersion"] == "1.0.0", hello
    assert (await client.ask("listSessions"))["items"] == []
    chat = await client.begin(SESSION)
    assert [it["resource"] for it in (await client.ask("listSessions"))["items"]] == [SESSION]
    await client.prompt(chat, "t1", "What is break bulk?")
    await client.turn("t1")
    deltas = client.find("chat/delta", "t1")
    assert len(deltas) > 3, deltas
    assert in_order([it["serverSeq"] for it in client.actions])
    # Half of what it takes comes whole.
    await client.prompt(chat, "t2", "/big 500KB")
    await client.turn("t2")
    [completed] = client.find("chat/toolCallComplete", "t2")
    assert len(result_text(completed).encode()) == 500_000
    await client.link.close()
    say(f"plain: {len(deltas)} deltas, a result of 500,000 bytes, {len(client.actions)} actions in order")


async def beyond_client(url):
    """The client itself refuses what is too long. The host, which cannot know that, goes on for others, and for it."""
    client = await Client.open(url, Plain(), DEFAULT)
    await client.initialize("plain")
    chat = await client.begin(SESSION)
    await client.prompt(chat, "t1", "/big 5MB")
    await client.ended()
    # The host was in the middle of its frame, and had no place for a goodbye.
    code = client.link.protocol.close_sent.code
    assert code == 1009, code
    seen = max(it["serverSeq"] for it in client.actions)
    say(f"plain: a result of 5 MB ended its link with {code} after seq {seen}")
    # One that takes more comes back to all of it.
    again = await Client.open(url, Plain(), None)
    result = await again.reconnect("plain", seen, [SESSION, chat])
    assert result["type"] == "replay", result["type"]
    again.actions = [it for it in result["actions"]] + again.actions
    await again.turn("t1")
    [completed] = again.find("chat/toolCallComplete", "t1")
    assert len(result_text(completed).encode()) == 5_000_000
    assert in_order([it["serverSeq"] for it in client.actions + again.actions])
    await again.prompt(chat, "t2", "Still there?")
    await again.turn("t2")
    await again.link.close()
    say(f"plain: back with a longer arm: {len(again.actions)} actions, nothing missing")


async def beyond_cap(url):
    """The way to this client takes 64 KiB, and the client no segments: what is longer comes by reference."""
    client = await Client.open(url, Plain(), 65_536)
    await client.initialize("plain")
    chat = await client.begin(SESSION)
    await client.prompt(chat, "t0", "Hello")
    await client.turn("t0")
    before = max(it["serverSeq"] for it in client.actions)
    await client.prompt(chat, "t1", "/big 5MB")
    await client.turn("t1")
    await client.prompt(chat, "t2", "/big 20KB")
    await client.turn("t2")
    assert in_order([it["serverSeq"] for it in client.actions])
    await by_reference(client, chat, client.actions)
    await client.link.close()
    say(f"plain, capped: {len(client.actions)} actions, one of them by reference")
    # It comes back to the same, as often as it likes.
    for n in range(3):
        again = await Client.open(url, Plain(), 65_536)
        answer = await again.answer("reconnect", clientId="plain", lastSeenServerSeq=before, subscriptions=[SESSION, chat])
        result = answer["result"]
        if result["type"] == "replay":
            await by_reference(again, chat, result["actions"])
        else:
            assert chat in [it["resource"] for it in result["snapshots"]], result
            assert "ahp-content:" in json.dumps(result["snapshots"])
        say(f"plain, capped: back to a {result['type']}")
        await again.prompt(chat, f"more {n}", "Still there?")
        await again.turn(f"more {n}")
        await again.link.close()


async def by_reference(client, chat, actions):
    """The large result is a reference; who reads it is told that it is too long for this way."""
    [completed] = [it for it in actions if it["action"]["type"] == "chat/toolCallComplete" and it["action"]["turnId"] == "t1"]
    [block] = completed["action"]["result"]["content"]
    assert block["type"] == "resource" and block["sizeHint"] == 5_000_000, block
    error = (await client.answer("resourceRead", channel=chat, uri=block["uri"]))["error"]
    assert error["code"] == -32011 and error["data"]["reason"] == "messageTooLarge", error


async def long(url):
    """A pasted prompt of 20 MB, a written file of 30 MB: each is one frame, to a host that nobody told of it."""
    client = await Client.open(url, Plain(), None)
    await client.initialize("plain")
    chat = await client.begin(SESSION)
    prompt = "pasted line\n" * (20_000_000 // 12)
    await client.prompt(chat, "t1", prompt)
    await client.turn("t1")
    [started] = client.find("chat/turnStarted", "t1")
    assert started["action"]["message"]["text"] == prompt
    hello = (await client.ask("listSessions"))["items"][0]
    uri = f"{hello['workingDirectories'][0]}/written.txt"
    data = "a line of the file that is written\n" * (30_000_000 // 35)
    await client.ask("resourceWrite", uri=uri, data=data, encoding="utf-8")
    assert (await client.ask("resourceRead", uri=uri))["data"] == data
    # Longer than 15 MiB it comes back in many frames; to send it so is as good.
    text = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "ping", "params": {"text": data}})
    client.waiting[0] = asyncio.get_running_loop().create_future()
    pong = client.waiting[0]
    await client.link.send(text[at : at + 900_000] for at in range(0, len(text), 900_000))
    await asyncio.wait_for(pong, 40)
    await client.link.close()
    say(f"plain: a prompt of {len(prompt)} bytes, a file of {len(data)} bytes each way")


async def beyond_host(url):
    client = await Client.open(url, Plain(), None)
    await client.initialize("plain")
    chat = await client.begin(SESSION)
    try:
        await client.prompt(chat, "t1", "x" * 34_000_000)
    except Exception as error:
        say(f"plain: sending failed: {type(error).__name__}")
    code, reason = await client.ended()
    say(f"plain: a frame of 34 MB ended the link with {code} {reason!r}")
    assert code == 1009, (code, reason)
    again = await Client.open(url, Plain(), None)
    await again.initialize("plain")
    state = (await again.ask("subscribe", channel=chat))["snapshot"]["state"]
    assert state["turns"] == [] and "activeTurn" not in state, state
    await again.link.close()


TESTS = {"session": session, "long": long, "beyond-client": beyond_client, "beyond-cap": beyond_cap, "beyond-host": beyond_host}
asyncio.run(TESTS[sys.argv[1]](sys.argv[2]))
