"""A small client of the Agent Host Protocol over `websockets`: requests, actions, one prompt at a time.

How a message becomes frames is a layer of its own: `Plain` here, and another in ahp_segments.py.
"""

import asyncio
import itertools
import json

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

ROOT = "ahp-root://"
PATIENCE = 40


class Plain:
    """One message, one frame."""

    capabilities = None

    def split(self, text):
        yield text

    def take(self, frame):
        """The message that this frame completes, or None."""
        return json.loads(frame)

    def negotiated(self, result):
        pass


class Closed(Exception):
    pass


class Client:
    """One connection. `actions` has all that came, in order; `error` whatever ended it."""

    def __init__(self, link, layer):
        self.link, self.layer = link, layer
        self.ids, self.client_seqs = itertools.count(1), itertools.count(1)
        self.waiting, self.actions, self.errors = {}, [], []
        self.changed = asyncio.Event()
        self.reader = asyncio.create_task(self.read())

    @classmethod
    async def open(cls, url, layer, max_size):
        return cls(await connect(url, max_size=max_size, proxy=None, compression=None), layer)

    async def read(self):
        try:
            async for frame in self.link:
                message = self.layer.take(frame)
                if message is not None:
                    self.dispatch(message)
                self.changed.set()
        except ConnectionClosed:
            pass
        except Exception as error:
            self.errors.append(error)
            await self.link.close(4400, "invalid messageSegment")
        await self.link.wait_closed()
        for answer in self.waiting.values():
            if not answer.done():
                answer.set_exception(Closed(f"{self.link.close_code} {self.link.close_reason}"))
        self.changed.set()

    def dispatch(self, message):
        if message.get("method") == "action":
            self.actions.append(message["params"])
        elif "id" in message and "method" not in message:
            self.waiting.pop(message["id"]).set_result(message)

    async def send(self, message):
        text = json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False)
        for frame in self.layer.split(text):
            await self.link.send(frame)

    async def ask(self, method, **params):
        """The answer's `result`, or an exception."""
        answer = await self.answer(method, **params)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    async def answer(self, method, **params):
        id = next(self.ids)
        self.waiting[id] = asyncio.get_running_loop().create_future()
        waiting = self.waiting[id]
        await self.send({"id": id, "method": method, "params": {"channel": ROOT, **params}})
        return await asyncio.wait_for(waiting, PATIENCE)

    async def initialize(self, client_id):
        more = {"capabilities": self.layer.capabilities} if self.layer.capabilities else {}
        versions = ["1.0.0"]
        result = await self.ask("initialize", protocolVersions=versions, clientId=client_id, **more)
        self.layer.negotiated(result)
        return result

    async def reconnect(self, client_id, seen, channels):
        more = {"capabilities": self.layer.capabilities} if self.layer.capabilities else {}
        result = await self.ask(
            "reconnect", clientId=client_id, lastSeenServerSeq=seen, subscriptions=channels, **more
        )
        return result

    async def begin(self, session):
        """Makes a session, and follows it and its chat; gives the chat."""
        await self.ask("createSession", channel=session)
        state = (await self.ask("subscribe", channel=session))["snapshot"]["state"]
        await self.ask("subscribe", channel=state["defaultChat"])
        return state["defaultChat"]

    async def prompt(self, chat, turn, text):
        action = {
            "type": "chat/turnStarted",
            "turnId": turn,
            "startedAt": "2026-01-01T00:00:00.000Z",
            "message": {"text": text, "origin": {"kind": "user"}},
        }
        params = {"channel": chat, "clientSeq": next(self.client_seqs), "action": action}
        await self.send({"method": "dispatchAction", "params": params})

    async def until(self, is_so):
        """Waits for something; gives it. Ends with the connection, too."""

        async def wait():
            while True:
                self.changed.clear()
                if found := is_so():
                    return found
                if self.reader.done():
                    raise Closed(f"{self.link.close_code} {self.link.close_reason}")
                await self.changed.wait()

        return await asyncio.wait_for(wait(), PATIENCE)

    async def ended(self):
        """Waits for the end of the connection: its code and reason."""
        await asyncio.wait_for(asyncio.shield(self.reader), PATIENCE)
        assert not self.errors, self.errors
        return self.link.close_code, self.link.close_reason

    def find(self, type, turn):
        return [it for it in self.actions if it["action"]["type"] == type and it["action"].get("turnId") == turn]

    async def turn(self, turn):
        await self.until(lambda: self.find("chat/turnComplete", turn))

    def seqs(self, channel):
        return [it["serverSeq"] for it in self.actions if it["channel"] == channel]


def in_order(seqs):
    """Nothing twice, nothing out of order."""
    return all(before < after for before, after in zip(seqs, seqs[1:]))


def result_text(completed):
    return completed["action"]["result"]["content"][0]["text"]


def say(*words):
    print(*words, flush=True)
