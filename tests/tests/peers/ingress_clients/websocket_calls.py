"""A WebSocket server (`serve HOST PORT`), and a client (`call HOST PORT NAME`)."""

import asyncio
import socket
import sys

from websockets.asyncio.server import serve as start
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

# Generous: the machine may be busy.
LIMIT = 120
LARGE = 2 << 20
closed = asyncio.Queue()


async def handle(client):
    try:
        async for message in client:
            if message == "close":
                await client.close(4001, "as asked")
            elif message == "how was the last one closed?":
                await client.send(await asyncio.wait_for(closed.get(), LIMIT))
            else:
                await client.send(message)
    except ConnectionClosed:
        pass
    if client.close_code >= 4002:
        await closed.put(f"{client.close_code} {client.close_reason}")


async def serve(host, port):
    async with start(handle, host, int(port), max_size=LARGE):
        print("ready", flush=True)
        await asyncio.get_running_loop().create_future()


def call(host, port, name):
    def open_one():
        return connect(
            f"ws://{name}/ws",
            sock=socket.create_connection((host, int(port))),
            max_size=LARGE,
            open_timeout=LIMIT,
        )

    with open_one() as client:
        for message in ["text: ä", b"\0\xff", "", b"x" * LARGE]:
            client.send(message)
            assert client.recv(LIMIT) == message
        assert client.ping().wait(LIMIT)
        client.send("close")
        try:
            client.recv(LIMIT)
            raise AssertionError("it is open")
        except ConnectionClosed as ended:
            assert (ended.rcvd.code, ended.rcvd.reason) == (4001, "as asked")
    with open_one() as client:
        client.close(4002, "the client is done")
    with open_one() as client:
        client.send("how was the last one closed?")
        assert client.recv(LIMIT) == "4002 the client is done"
    print("done")


mode, *words = sys.argv[1:]
asyncio.run(serve(*words)) if mode == "serve" else call(*words)
