"""A client that segments, written from the RFC's text alone."""

import asyncio
import base64
import json
import secrets
import sys

from ahp_client import Client, Closed, Plain, in_order, result_text, say

SESSION = "ahp-session:/segments"
METHOD = "ahp/messageSegment"


class Segments:
    """The segmenting layer of one connection."""

    def __init__(self, frame_bytes, message_bytes=33_554_432, groups=8):
        self.frame_bytes, self.message_bytes, self.groups = frame_bytes, message_bytes, groups
        self.capabilities = {
            "chunking": {
                "maxIncomingFrameBytes": frame_bytes,
                "maxIncomingMessageBytes": message_bytes,
                "maxIncomingGroups": groups,
                "groupTimeoutMs": 30_000,
            }
        }
        self.table, self.peer = {}, None
        self.segments_in = self.segments_out = self.messages = 0

    # What the server takes is known from its answer to `initialize`, and outlives the connection.
    def negotiated(self, result):
        self.peer = result["capabilities"]["chunking"]
        assert self.peer["maxIncomingMessageBytes"] >= self.peer["maxIncomingFrameBytes"] > 0, self.peer
        assert self.peer.get("maxIncomingGroups", 1) >= 1, self.peer

    def split(self, text):
        body = text.encode()
        if self.peer is None or len(body) <= self.peer["maxIncomingFrameBytes"]:
            return [text]
        assert len(body) <= self.peer["maxIncomingMessageBytes"], "too large for the server"
        return self.segments(body)

    def segments(self, body):
        group = secrets.token_hex(16)
        envelope = len(self.frame(group, 65_535, 65_535, ""))
        size = (self.peer["maxIncomingFrameBytes"] - envelope) // 4 * 3
        parts = [body[at : at + size] for at in range(0, len(body), size)]
        for index, part in enumerate(parts):
            self.segments_out += 1
            yield self.frame(group, index, len(parts), base64.b64encode(part).decode())

    @staticmethod
    def frame(group, index, total, data):
        params = {"groupId": group, "index": index, "total": total, "data": data}
        return json.dumps({"jsonrpc": "2.0", "method": METHOD, "params": params})

    def take(self, frame):
        assert len(frame.encode()) <= self.frame_bytes, "a frame beyond what was advertised"
        message = json.loads(frame)
        if message.get("method") != METHOD:
            self.messages += 1
            return message
        assert "id" not in message, "a control notification has no id"
        return self.segment(**message["params"])

    def segment(self, groupId, index, total, data):
        self.segments_in += 1
        assert isinstance(groupId, str) and 1 <= len(groupId.encode()) <= 128, groupId
        assert type(index) is int and type(total) is int and 0 <= index < total < 2**16, (index, total)
        if groupId not in self.table:
            assert index == 0, "a group begins with its first segment"
            assert len(self.table) < self.groups, "too many groups"
            self.table[groupId] = {"total": total, "next": 0, "parts": [], "bytes": 0}
        group = self.table[groupId]
        assert group["total"] == total and group["next"] == index, (group["total"], group["next"], total, index)
        part = base64.b64decode(data, validate=True)
        group["parts"].append(part)
        group["bytes"] += len(part)
        group["next"] += 1
        assert group["bytes"] <= self.message_bytes, "too large a message"
        if group["next"] < total:
            return None
        del self.table[groupId]
        message = json.loads(b"".join(group["parts"]).decode())
        assert message.get("method") != METHOD, "a segment in segments"
        self.messages += 1
        return message


async def large(url):
    layer = Segments(65_536)
    client = await Client.open(url, layer, 65_536)
    hello = await client.initialize("rfc")
    say(f"rfc: the host takes {hello['capabilities']['chunking']}")
    chat = await client.begin(SESSION)
    await client.prompt(chat, "t1", "/big 5MB")
    await client.turn("t1")
    [completed] = client.find("chat/toolCallComplete", "t1")
    assert len(result_text(completed).encode()) == 5_000_000
    assert layer.segments_in > 100, layer.segments_in
    say(f"rfc: a result of 5 MB in {layer.segments_in} segments")

    piece = '積荷を小分けにする 🚢 "größe" \\ \n'
    prompt = piece * (20_000_000 // len(piece.encode()))
    before = layer.segments_in
    await client.prompt(chat, "t2", prompt)
    await client.ask("ping")
    await client.until(lambda: client.find("chat/turnStarted", "t2"))
    [started] = client.find("chat/turnStarted", "t2")
    assert started["action"]["message"]["text"] == prompt
    assert started["origin"]["clientId"] == "rfc", started["origin"]
    await client.turn("t2")
    assert in_order([it["serverSeq"] for it in client.actions])
    sent, back = layer.segments_out, layer.segments_in - before
    say(f"rfc: a prompt of {len(prompt.encode())} bytes in {sent} segments, and back in {back}")
    assert not layer.table, "all groups are complete"
    await client.link.close()


async def resume(url):
    first = Segments(65_536)
    client = await Client.open(url, first, 65_536)
    await client.initialize("rfc")
    chat = await client.begin(SESSION)
    channels = [SESSION, chat]
    witness = await Client.open(url, Plain(), None)
    await witness.initialize("witness")
    for channel in channels:
        await witness.ask("subscribe", channel=channel)
    await client.prompt(chat, "t1", "/big 5MB")
    heard = client.actions

    # Cut in the middle of the large group, then in the middle of the answer to `reconnect`, each time further on.
    layer, result = first, None
    for count, frame_bytes in [(10, 65_536), (25, 16_384), (200, 65_536), (80, 16_384)]:
        in_middle = lambda: any(group["next"] >= count for group in layer.table.values())
        await client.until(in_middle)
        client.link.transport.abort()
        await client.ended()
        assert layer.table, "a group was under way"
        if result:
            [failed] = await asyncio.gather(result, return_exceptions=True)
            assert isinstance(failed, Closed), failed
        seen = max((it["serverSeq"] for it in heard), default=0)
        peer, layer = layer.peer, Segments(frame_bytes)
        layer.peer = peer
        say(f"rfc: cut at segment {count}; back with seq {seen} and frames of {frame_bytes}")
        client = await Client.open(url, layer, frame_bytes)
        result = asyncio.create_task(client.reconnect("rfc", seen, channels))
    result = await result
    assert result["type"] == "replay" and result.get("missing", []) == [], result["type"]
    replayed = result["actions"]
    heard = heard + replayed
    client.actions = heard + client.actions
    await client.turn("t1")
    [completed] = client.find("chat/toolCallComplete", "t1")
    assert len(result_text(completed).encode()) == 5_000_000
    await client.prompt(chat, "t2", "And now?")
    await client.turn("t2")
    await witness.turn("t2")
    assert in_order([it["serverSeq"] for it in client.actions])
    ours, all = client.seqs(chat), witness.seqs(chat)
    assert ours == all, (ours, all)
    say(f"rfc: {len(replayed)} actions replayed; {len(ours)} of the chat, as one has them whose link was never cut")
    await client.link.close()
    await witness.link.close()


TESTS = {"large": large, "resume": resume}
asyncio.run(TESTS[sys.argv[1]](sys.argv[2]))
