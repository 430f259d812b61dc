"""People who write to a gateway over three channels, from outside: what they say, what they see, what it should be."""

import asyncio
import re
import signal
import socket
import sqlite3
import subprocess
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from nanobot.channels.base import MAY_REPEAT
from tests.contracts.fake_telegram import TOKEN as TELEGRAM_TOKEN
from tests.contracts.fake_telegram import FakeTelegram
from tests.contracts.platform_websocket import TOKEN as SOCKET_TOKEN
from tests.contracts.platform_websocket import Client
from tests.fake_models import Say, Slow, Step
from tests.gateway.toy import GatewayHome, Toy, until
from tests.stories.processes import NANOBOT, ended

_TOKEN = re.compile(r"q\d+")
_ANSWER = re.compile(r"the end of it: ([^.:]*)\.")
"""What an answer names, once it is whole: it may have been cut off at any word."""


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
    """Each in a private chat."""

    def __init__(self, server: FakeTelegram, chats: int) -> None:
        self.server, self.chats = server, chats
        for chat in range(chats):
            server.people[1000 + chat] = {"id": 1000 + chat, "is_bot": False, "first_name": f"P{chat}"}
            server.chats[1000 + chat] = {"id": 1000 + chat, "type": "private", "first_name": f"P{chat}"}

    def section(self) -> dict[str, Any]:
        allowed = [str(1000 + chat) for chat in range(self.chats)]
        return {"enabled": True, "token": TELEGRAM_TOKEN, "apiBase": self.server.url, "allowFrom": allowed}

    async def say(self, chat: int, text: str) -> None:
        await self.server.message(1000 + chat, 1000 + chat, text)

    def shown(self, chat: int) -> list[str]:
        return [str(one.json.get("text")) for one in self.server.shown(1000 + chat)]

    async def cut(self) -> None:
        await self.server.cut()


class OnSockets(Mouths):
    """Each with a client of their own."""

    takes_once = True

    def __init__(self, port: int, chats: int) -> None:
        self.port = port
        self.clients = [Client(port, f"w{chat}") for chat in range(chats)]
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
    answered = " ".join(" ".join(_ANSWER.findall(text)) for role, text in rows if role == "assistant")
    asked = [token for role, text in rows if role == "user" for token in _TOKEN.findall(text)]
    new = [token for token in dict.fromkeys(asked) if not re.search(rf"\b{token}\b", answered)]
    return Slow(Say(f"I heard you well, and this is the end of it: {' and '.join(new)}."), first_s=0.03, each_s=0.01)


@asynccontextmanager
async def everybody(home: GatewayHome, chats: int = 5) -> AsyncIterator[dict[str, Mouths]]:
    """People on three channels, and a config that has them all."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    async with FakeTelegram().open() as telegram:
        mouths: dict[str, Mouths] = {
            "telegram": OnTelegram(telegram, chats),
            "websocket": (sockets := OnSockets(port, chats)),
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

    def __init__(self, home: GatewayHome, command: Sequence[str] = (*NANOBOT, "gateway")) -> None:
        self.home = home
        self.command = command
        self.begin()

    def begin(self) -> None:
        """Begin one; it is ready soon."""
        self.process = subprocess.Popen(
            self.command, env=self.home.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    async def ready(self) -> None:
        """Wait until it listens: a kill before that is no test."""
        file, pid = self.home.data / "state" / "gateway.json", str(self.process.pid)
        await asyncio.to_thread(until, lambda: file.exists() and pid in file.read_text())

    def kill(self) -> None:
        """Kill it with -9, and begin the next."""
        self.process.kill()
        self.process.communicate()
        self.begin()

    async def end(self) -> int:
        """Tell it to stop; its code."""
        self.process.send_signal(signal.SIGTERM)
        return (await asyncio.to_thread(ended, self.process)).code


def seen(mouths: Mouths, chat: int, token: str) -> list[str]:
    """The answers in that chat that name this message."""
    word = re.compile(rf"\b{token}\b")
    return [text for text in mouths.shown(chat) if any(map(word.search, _ANSWER.findall(text)))]


def judged(name: str, mouths: Mouths, chat: int, token: str) -> list[str]:
    """What is wrong with what came of this message."""
    answers = seen(mouths, chat, token)
    marked = sum(MAY_REPEAT.strip() in text for text in answers)
    if not answers and any("Send the message again" in text for text in mouths.shown(chat)):
        return []  # killed four times in one turn: it is given up, and its person told so
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


def unsettled(data: Path, said: int, failed: int = 0) -> list[str]:
    """What the journal says at the end, where so many were to hear why there is no answer."""
    with sqlite3.connect(data / "state" / "journal.db") as db:
        states = dict(db.execute("SELECT state, COUNT(*) FROM inbound GROUP BY state"))
    print("the journal:", states)
    ended = sum(states.get(state, 0) for state in ("sent", "answered"))
    right = ended + states.get("failed", 0) == said and states.get("failed", 0) <= failed
    return [] if right else [f"the journal has {states} of {said}"]
