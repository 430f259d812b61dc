"""A gateway of real sockets that is killed, cut off and kept waiting: every message one answer, in its own chat."""

import asyncio
import re
import signal
import socket
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nanobot.channels.base import MAY_REPEAT
from tests.contracts.fake_telegram import TOKEN as TELEGRAM_TOKEN
from tests.contracts.fake_telegram import FakeTelegram
from tests.contracts.platform_websocket import TOKEN as SOCKET_TOKEN
from tests.contracts.platform_websocket import Client
from tests.fake_models import FakeModels, Fitting, Say, Slow, Step
from tests.gateway.toy import GatewayHome, Toy, until
from tests.stories.processes import POSIX, ended

pytestmark = POSIX

CHATS = 5
_TOKEN = re.compile(r"q\d+")


class Mouths(ABC):
    """People on one channel, each in a chat of their own."""

    takes_once = False

    @abstractmethod
    def section(self) -> dict[str, Any]:
        """The channel's section of the config."""

    @abstractmethod
    async def say(self, chat: int, text: str) -> None:
        """The person of that chat writes."""

    @abstractmethod
    def shown(self, chat: int) -> list[str]:
        """What they see of the bot."""

    async def cut(self) -> None:
        """Their connections break, where there are any."""
        return


class OnTelegram(Mouths):
    def __init__(self, server: FakeTelegram) -> None:
        self.server = server
        for chat in range(CHATS):
            server.people[1000 + chat] = {"id": 1000 + chat, "is_bot": False, "first_name": f"P{chat}"}
            server.chats[1000 + chat] = {"id": 1000 + chat, "type": "private", "first_name": f"P{chat}"}

    def section(self) -> dict[str, Any]:
        allowed = [str(1000 + chat) for chat in range(CHATS)]
        return {"enabled": True, "token": TELEGRAM_TOKEN, "apiBase": self.server.url, "allowFrom": allowed}

    async def say(self, chat: int, text: str) -> None:
        await self.server.message(1000 + chat, 1000 + chat, text)

    def shown(self, chat: int) -> list[str]:
        return [str(one.json.get("text")) for one in self.server.shown(1000 + chat)]

    async def cut(self) -> None:
        await self.server.cut()


class OnSockets(Mouths):
    takes_once = True

    def __init__(self, port: int) -> None:
        self.port = port
        self.clients = [Client(port, f"w{chat}") for chat in range(CHATS)]
        self._ids = count()

    def section(self) -> dict[str, Any]:
        allowed = [client.name for client in self.clients]
        return {"enabled": True, "port": self.port, "token": SOCKET_TOKEN, "allowFrom": allowed}

    async def say(self, chat: int, text: str) -> None:
        await self.clients[chat].say(f"m{next(self._ids)}", {"text": text})

    def shown(self, chat: int) -> list[str]:
        return [one.text for one in self.clients[chat].shown]

    async def cut(self) -> None:
        for client in self.clients:
            await client.cut()


class WithToys(Mouths):
    """A plugin that knows nothing but `send`."""

    def __init__(self, toy: Toy) -> None:
        self.toy = toy
        self._ids = count()

    def section(self) -> dict[str, Any]:
        return {"enabled": True, "folder": str(self.toy.folder), "allowFrom": ["7"]}

    async def say(self, chat: int, text: str) -> None:
        self.toy.write(text, chat=str(chat), message_id=f"{next(self._ids):06}")

    def shown(self, chat: int) -> list[str]:
        return self.toy.got(str(chat))


def heard(body: dict[str, Any]) -> Step:
    """An answer that names every message that has none yet."""
    rows = [(row["role"], str(row["content"])) for row in body["messages"]]
    answered = " ".join(text for role, text in rows if role == "assistant")
    asked = [token for role, text in rows if role == "user" for token in _TOKEN.findall(text)]
    new = [token for token in dict.fromkeys(asked) if not re.search(rf"\b{token}\b", answered)]
    return Slow(Say(f"I heard you well, and this is the end of it: {' and '.join(new)}."), first_s=0.03, each_s=0.01)


@asynccontextmanager
async def everybody(home: GatewayHome) -> AsyncIterator[dict[str, Mouths]]:
    """People on three channels, and a config that has them all."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    async with FakeTelegram().open() as telegram:
        mouths: dict[str, Mouths] = {
            "telegram": OnTelegram(telegram),
            "websocket": (sockets := OnSockets(port)),
            "toy": WithToys(home.toy),
        }
        home.change(channels={name: one.section() for name, one in mouths.items()})
        try:
            yield mouths
        finally:
            for client in sockets.clients:
                await client.close()


class Lives:
    """A gateway that is killed and begun anew."""

    def __init__(self, home: GatewayHome) -> None:
        self.home = home
        self.begin()

    def begin(self) -> None:
        self.process = self.home.start("gateway")

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.begin()

    async def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return (await asyncio.to_thread(ended, self.process)).code


async def chaos(home: GatewayHome, each: int, kills: int, cuts: int) -> list[str]:
    """`each` messages a channel, with so many kills and cuts between them; what went wrong."""
    chance = Random(5)
    async with everybody(home) as mouths:
        said = [
            (name, chat % CHATS, f"q{number}")
            for number, (name, chat) in enumerate((name, chat) for chat in range(each) for name in mouths)
        ]
        lives = Lives(home)
        moments = chance.sample(range(len(said)), kills + cuts)
        try:
            for number, (name, chat, token) in enumerate(said):
                await mouths[name].say(chat, f"here is {token}")
                await asyncio.sleep(chance.uniform(0, 0.05))
                if number in moments[:kills]:
                    await asyncio.to_thread(lambda: until_ready(home, lives))
                    await asyncio.sleep(chance.uniform(0, 0.4))
                    lives.kill()
                elif number in moments:
                    await asyncio.gather(*[one.cut() for one in mouths.values()])
            with suppress(TimeoutError):
                async with asyncio.timeout(20 + len(said) / 10):
                    while any(not seen(mouths[name], chat, token) for name, chat, token in said):
                        await asyncio.sleep(0.05)
            code = await lives.end()
        finally:
            lives.process.kill()
        problems = [f"it ended with {code}"] if code else []
        for name, chat, token in said:
            problems += judged(name, mouths[name], chat, token)
        problems += elsewhere(mouths, said)
    return problems + unsettled(home.data, len(said))


def until_ready(home: GatewayHome, lives: Lives) -> None:
    """A kill before it even listens is no test."""
    pid = lives.process.pid
    until(
        lambda: (
            (home.data / "state" / "gateway.json").exists()
            and str(pid) in (home.data / "state" / "gateway.json").read_text()
        )
    )


def seen(mouths: Mouths, chat: int, token: str) -> list[str]:
    """The answers in that chat that name this message."""
    return [text for text in mouths.shown(chat) if re.search(rf"the end of it:[^.]*\b{token}\b[^.]*\.", text)]


def judged(name: str, mouths: Mouths, chat: int, token: str) -> list[str]:
    answers = seen(mouths, chat, token)
    marked = sum(MAY_REPEAT.strip() in text for text in answers)
    if not answers:
        return [f"{name} {chat}: {token} was never answered; there is {mouths.shown(chat)}"]
    if len(answers) > 1 + (0 if mouths.takes_once else min(marked, 1)):
        return [f"{name} {chat}: {token} was answered {len(answers)} times: {answers}"]
    return []


def elsewhere(mouths: dict[str, Mouths], said: list[tuple[str, int, str]]) -> list[str]:
    """Answers in a chat where nobody asked."""
    asked: dict[tuple[str, int], set[str]] = {}
    for name, chat, token in said:
        asked.setdefault((name, chat), set()).add(token)
    return [
        f"{name} {chat}: {token} belongs elsewhere"
        for (name, chat), own in asked.items()
        for text in mouths[name].shown(chat)
        for token in {*_TOKEN.findall(text)} - own
    ]


def unsettled(data: Path, said: int) -> list[str]:
    """What the journal says at the end."""
    with sqlite3.connect(data / "state" / "journal.db") as db:
        states = dict(db.execute("SELECT state, COUNT(*) FROM inbound GROUP BY state"))
    print("the journal:", states)
    total = sum(states.values())
    return [] if {*states} <= {"sent", "answered"} and total == said else [f"the journal has {states} of {said}"]


@pytest.mark.timeout(120)
async def test_thirty_messages_over_three_channels_through_kills_and_cuts(tmp_path: Path):
    with FakeModels(default=Fitting(heard), strict=False) as server:
        problems = await chaos(GatewayHome(tmp_path, server), each=10, kills=2, cuts=2)

    assert not problems


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_a_thousand_messages_a_channel_through_kills_and_cuts(tmp_path: Path):
    with FakeModels(default=Fitting(heard), strict=False) as server:
        problems = await chaos(GatewayHome(tmp_path, server), each=1_000, kills=25, cuts=25)

    assert not problems
