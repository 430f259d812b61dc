"""An agent on python-socketio's plain client: it prints as JSON what it reads, and answers the first message."""

import asyncio
import json
import sys
from typing import Any

import aiohttp
import socketio

TOKEN, AGENT, URL, SESSION, PANEL = sys.argv[1:]


async def main() -> None:
    done = asyncio.Event()
    client = socketio.AsyncClient(serializer="msgpack")

    async def read(batch: dict[str, Any]) -> None:
        for event in batch["events"]:
            payload = event["payload"]
            if payload["author"] == AGENT:
                done.set()
                continue
            print(json.dumps({"chat": batch["sessionId"], "seq": event["seq"], **payload}), flush=True)
            if batch["sessionId"] == SESSION:
                body = {"sessionId": SESSION, "content": "You said it", "replyTo": payload["messageId"]}
                async with (
                    aiohttp.ClientSession(headers={"X-Claw-Token": TOKEN}) as http,
                    http.post(f"{URL}/api/claw/sessions/send", json=body) as answer,
                ):
                    assert (await answer.json())["code"] == 200

    client.on("claw.session.events", read)
    client.on("claw.panel.events", read)
    await client.connect(URL, auth={"token": TOKEN}, transports=["websocket"])
    subscription = {"sessionIds": [SESSION], "cursors": {}, "limit": 100}
    assert (await client.call("com.claw.im.subscribeSessions", subscription))["result"]
    assert (await client.call("com.claw.im.subscribePanels", {"panelIds": [PANEL]}))["result"]
    print(json.dumps({"ready": True}), flush=True)
    await done.wait()
    await client.disconnect()


asyncio.run(main())
