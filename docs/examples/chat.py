"""A chat over the WebSocket channel: `python chat.py ws://127.0.0.1:8765 TOKEN`. An empty line ends it."""

import asyncio
import json
import sys
from uuid import uuid4

from websockets.asyncio.client import ClientConnection, connect


async def show(line: ClientConnection) -> None:
    async for raw in line:
        frame = json.loads(raw)
        if frame["type"] in ("reply", "notice", "error"):
            print(frame.get("text") or frame["reason"])
        elif frame["type"] == "ack" and not frame["accepted"]:
            print("(not taken: nobody has let you in yet)")


async def chat(url: str, token: str) -> None:
    async with connect(url) as line, asyncio.TaskGroup() as tasks:
        await line.send(json.dumps({"type": "hello", "token": token}))
        shown = tasks.create_task(show(line))  # also what comes unasked, such as a reminder
        while words := await asyncio.to_thread(input):
            await line.send(json.dumps({"type": "message", "id": uuid4().hex, "text": words}))
        shown.cancel()


if __name__ == "__main__":
    asyncio.run(chat(*sys.argv[1:]))
