"""A WebSocket peer on the `websockets` package, with the commands and events of ../node/ws_peer.mjs."""

import asyncio
import json
import sys

from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed, InvalidStatus

links = {}


def say(event, **rest):
    sys.stdout.write(json.dumps({"event": event, **rest}) + "\n")
    sys.stdout.flush()


async def keep(id, link):
    links[id] = link
    say("open", id=id)
    try:
        async for text in link:
            say("message", id=id, text=text)
    except ConnectionClosed:
        pass
    await link.wait_closed()
    say("closed", id=id, code=link.close_code, reason=link.close_reason)


async def dial(id, url, headers=None, origin=None):
    try:
        link = await connect(url, additional_headers=headers, origin=origin, max_size=None, proxy=None)
    except InvalidStatus as refused:
        return say("refused", id=id, status=refused.response.status_code)
    except OSError as error:
        return say("failed", id=id, why=str(error))
    await keep(id, link)


async def listen():
    count = 0

    async def handle(link):
        nonlocal count
        count += 1
        await keep(count, link)

    server = await serve(handle, "127.0.0.1", 0, max_size=None)
    say("listening", port=server.sockets[0].getsockname()[1])


async def do(deed):
    match deed.pop("do"):
        case "listen":
            await listen()
        case "connect":
            await dial(**deed)
        case "send":
            await links[deed["id"]].send(deed["text"])
        case "close":
            await links[deed["id"]].close(deed["code"], deed.get("reason", ""))
        case "cut":
            # Ends the TCP connection without a word.
            links[deed["id"]].transport.abort()


async def main():
    lines = asyncio.StreamReader(limit=1 << 26)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    tasks = set()
    while line := await lines.readline():
        task = asyncio.create_task(do(json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


asyncio.run(main())
