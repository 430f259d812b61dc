"""A gateway that is killed again and again, and lines that break: every message gets its one reply over the wire."""

import asyncio
import json
import random
from pathlib import Path

import pytest

from nanobot.testing.model_server import FakeModels, Say
from tests.fakes.platform_websocket import Client, clients_section
from tests.support.eventually import eventually
from tests.support.home import POSIX, Home
from tests.support.toy_gateway import free_port

pytestmark = POSIX
NAMES = [f"person{number}" for number in range(8)]


def replies(clients: list[Client]) -> set[tuple[str, str, str]]:
    """Who got a reply to which message, and its id: one that comes twice has the same."""
    frames = [(client.name, frame) for client in clients for frame in client.frames if frame["type"] == "reply"]
    return {(name, frame["reply_to"], frame["id"]) for name, frame in frames}


def home_with_websocket(path: Path, server: FakeModels, port: int) -> Home:
    home = Home(path, server)
    file = home.data / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["agents"]["defaults"]["steering"] = "queue"  # each message a turn, so each a reply
    config["channels"] = {"websocket": {"enabled": True, "port": port, "allowFrom": ["*"]}}
    config["channels"]["websocket"]["clients"] = clients_section(*NAMES)
    config["gateway"] = {"port": free_port()}
    file.write_text(json.dumps(config), encoding="utf-8")
    return home


@pytest.mark.parametrize(
    ("messages", "kills"), [(40, 1), pytest.param(1000, 6, marks=[pytest.mark.slow, pytest.mark.timeout(300)])]
)
async def test_every_message_gets_one_reply_however_often_the_gateway_is_killed(tmp_path, messages, kills):
    chance = random.Random(7)
    with FakeModels(default=Say("ok")) as server:
        port = free_port()
        home = home_with_websocket(tmp_path, server, port)
        clients = [Client(port, name) for name in NAMES]
        said: set[tuple[str, str]] = set()
        process = home.start("gateway")
        try:
            for number in range(messages):
                client = chance.choice(clients)
                said.add((client.name, f"m{number}"))
                await client.say(f"m{number}", {"text": f"hello, this is {number}"})
            for life in range(kills):
                async with asyncio.timeout(60):
                    while len(replies(clients)) < messages * (life + 1) / (kills + 1):
                        await asyncio.sleep(0.05)
                        if chance.random() < 0.1:
                            await chance.choice(clients).cut()
                process.kill()
                await asyncio.to_thread(process.communicate)
                process = home.start("gateway")
            await eventually(lambda: len(replies(clients)) >= messages, 60)
        finally:
            for client in clients:
                await client.close()
            process.kill()
            await asyncio.to_thread(process.communicate)

    answered = [(name, message_id) for name, message_id, _ in replies(clients)]
    assert sorted(answered) == sorted(said)
