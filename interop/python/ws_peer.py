"""A WebSocket peer on the `websockets` package, with the commands and events of ../node/ws_peer.mjs.

One more: {"do":"relay","to","max_size","tls"?}, which listens too, and says `relayed` {frames,longest} (there and back) of
each connection that has ended.
"""

import asyncio
import json
import ssl
import sys

from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus

links = {}


def say(event, **rest):
    sys.stdout.write(json.dumps({"event": event, **rest}) + "\n")
    sys.stdout.flush()


async def keep(id, link, limit=None, code=None):
    links[id] = link
    say("open", id=id)
    try:
        async for text in link:
            if limit is None or len(text) <= limit:
                say("message", id=id, text=text)
            elif code:
                await link.close(code)
            else:
                link.transport.abort()
    except ConnectionClosed:
        pass
    await link.wait_closed()
    say("closed", id=id, code=link.close_code, reason=link.close_reason)


def secured(purpose, tls):
    """What the certificates in `tls` make of a connection; nothing without them."""
    if tls is None:
        return None
    context = ssl.create_default_context(purpose, cafile=tls.get("ca"))
    if tls.get("cert"):
        context.load_cert_chain(tls["cert"], tls["key"])
    if purpose is ssl.Purpose.CLIENT_AUTH and tls.get("ca"):
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def dial(id, url, headers=None, origin=None, tls=None):
    context = secured(ssl.Purpose.SERVER_AUTH, tls)
    more = {"ssl": context} if context else {}
    try:
        link = await connect(url, additional_headers=headers, origin=origin, max_size=None, proxy=None, **more)
    except InvalidStatus as refused:
        return say("refused", id=id, status=refused.response.status_code)
    except (OSError, InvalidMessage) as error:
        return say("failed", id=id, why=str(error))
    await keep(id, link)


async def listen(tls=None, limit=None, code=None):
    count = 0

    async def handle(link):
        nonlocal count
        count += 1
        await keep(count, link, limit, code)

    server = await serve(handle, "127.0.0.1", 0, max_size=None, ssl=secured(ssl.Purpose.CLIENT_AUTH, tls))
    say("listening", port=server.sockets[0].getsockname()[1])


async def relay(to, max_size, tls=None):
    """Takes each client to `to`, frame by frame, as a managed relay does: none may be longer than `max_size`."""

    async def carry(source, sink):
        frames, longest = 0, 0
        try:
            async for text in source:
                frames, longest = frames + 1, max(longest, len(text.encode()))
                await sink.send(text)
        except ConnectionClosed:
            pass
        await sink.close(source.close_code if source.close_code in range(1000, 1004) else 1011)
        return frames, longest

    async def handle(client):
        async with connect(to, max_size=max_size, proxy=None) as server:
            there, back = await asyncio.gather(carry(client, server), carry(server, client))
        say("relayed", frames=[there[0], back[0]], longest=[there[1], back[1]])

    server = await serve(handle, "127.0.0.1", 0, max_size=max_size, ssl=secured(ssl.Purpose.CLIENT_AUTH, tls))
    say("listening", port=server.sockets[0].getsockname()[1])


async def do(deed):
    match deed.pop("do"):
        case "listen":
            await listen(**deed)
        case "relay":
            await relay(**deed)
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
