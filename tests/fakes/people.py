"""People who write to a gateway over its channels, from outside: what they say, what they see, what it should be."""

import asyncio
import re
import signal
import sqlite3
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing
from itertools import count
from pathlib import Path
from typing import Any

from nanobot.agent.engine.transcript import CONTINUE_INTERRUPTED
from nanobot.bus.queue import MessageBus
from nanobot.channels.base import MAY_REPEAT_NOTE, UNCONFIRMED_NOTE
from nanobot.channels.registry import CHANNELS
from nanobot.testing.model_server import Say, Slow, Step
from nanobot.testing.platform import Platform
from tests.fakes.discord import world as discord
from tests.fakes.platform_discord import DiscordPlatform
from tests.fakes.platform_email import EmailPlatform
from tests.fakes.platform_email import config as mail_account
from tests.fakes.platform_telegram import TelegramPlatform
from tests.fakes.platform_websocket import Client, clients_section
from tests.fakes.platforms import platform_class
from tests.fakes.slack import APP_TOKEN, BOT_TOKEN, Room, SlackPlatform
from tests.fakes.telegram import TOKEN as TELEGRAM_TOKEN
from tests.support.eventually import eventually
from tests.support.forkserver import started
from tests.support.home import ended
from tests.support.toy_gateway import GatewayHome, Toy, free_port

_TOKEN = re.compile(r"\bq\d+\b")
_ANSWER = re.compile(r"the end of it: ([^.:]*)\.")
"""What an answer names, once it is whole: it may have been cut off at any word."""


class Mouths(ABC):
    """People on one channel, each in a chat of their own."""

    dedupes = False

    @abstractmethod
    def section(self) -> dict[str, Any]:
        """The channel's section of the config."""

    @abstractmethod
    def address(self, chat: int) -> str:
        """The id of that chat on the channel."""

    @abstractmethod
    async def say(self, chat: int, text: str) -> None:
        """The person of that chat writes."""

    @abstractmethod
    def shown(self, chat: int) -> list[str]:
        """What they see of the bot."""

    def is_lost(self, home: GatewayHome, text: str) -> bool:
        """Whether this was said, and the gateway was killed before it took it, and it never comes again."""
        return False

    async def cut(self) -> None:
        """Their connections break, where there are any."""
        return


class OnPlatform(Mouths):
    """Each in a chat of a platform of the contract suite, found by the number of the person."""

    def __init__(self, platform: Platform, section: dict[str, Any], people: list[str], chats: list[str]) -> None:
        self.platform, self.people, self.chats = platform, people, chats
        self.dedupes = platform.dedupes and platform.resumes_edits
        self.loses = not (platform.acknowledges or platform.queues_messages)
        self._section = section
        self._ids: dict[str, str] = {}

    def section(self) -> dict[str, Any]:
        return {"enabled": True, "allowFrom": self.people, **self._section}

    def address(self, chat: int) -> str:
        return self.chats[chat]

    async def say(self, chat: int, text: str) -> None:
        self._ids[text] = await self.platform.says(text, sender=self.people[chat], chat=self.chats[chat], mention=True)

    def shown(self, chat: int) -> list[str]:
        return [one.text for one in self.platform.shown(self.chats[chat])]

    def is_lost(self, home: GatewayHome, text: str) -> bool:
        if not self.loses or text not in self._ids:
            return False
        with closing(sqlite3.connect(home.data / "state" / "nanobot.db")) as db, db:
            keys = [key for (key,) in db.execute("SELECT key FROM inbound")]
        return not any(key.endswith(f":{self._ids[text]}") for key in keys)

    async def cut(self) -> None:
        await self.platform.drop()


@asynccontextmanager
async def on_telegram(folder: Path, home: GatewayHome, chats: int) -> AsyncIterator[OnPlatform]:
    """Each in a private chat."""
    async with TelegramPlatform(folder).open() as platform:
        server = platform.server
        for number in range(1000, 1000 + chats):
            server.people[number] = {"id": number, "is_bot": False, "first_name": f"P{number}"}
            server.chats[number] = {"id": number, "type": "private", "first_name": f"P{number}"}
        people = [str(number) for number in range(1000, 1000 + chats)]
        yield OnPlatform(platform, {"token": TELEGRAM_TOKEN, "apiBase": server.url}, people, people)


@asynccontextmanager
async def on_discord(folder: Path, home: GatewayHome, chats: int) -> AsyncIterator[OnPlatform]:
    """Each in a channel of a server. (A private chat that is new while the bot is away no bot can ask for.)"""
    async with DiscordPlatform(folder).open() as platform:
        people, rooms = ([f"{kind}0000000000001{number:02}" for number in range(chats)] for kind in ("100", "600"))
        platform.world.chats |= {room: discord.Chat(room, discord.TEXT) for room in rooms}
        platform.gateway.heartbeat_s = 5.0
        home.environ["DISCORD_API"] = f"{platform.url}/api/v10"
        section = {"token": discord.TOKEN, "gatewayUrl": platform.gateway.url}
        yield OnPlatform(platform, section, people, rooms)


@asynccontextmanager
async def on_slack(folder: Path, home: GatewayHome, chats: int) -> AsyncIterator[OnPlatform]:
    """Each in a private chat."""
    async with SlackPlatform(folder).open() as platform:
        people, rooms = [f"U0P{number}" for number in range(chats)], [f"D0P{number}" for number in range(chats)]
        platform.workspace.rooms |= {room: Room(room, "im") for room in rooms}
        section = {"botToken": BOT_TOKEN, "appToken": APP_TOKEN, "apiBase": f"{platform.workspace.url}/api"}
        yield OnPlatform(platform, section, people, rooms)


@asynccontextmanager
async def by_mail(folder: Path, home: GatewayHome, chats: int) -> AsyncIterator[OnPlatform]:
    """Each in a thread of mails."""
    async with EmailPlatform(folder).open() as platform:
        people = [f"p{number}@friends.test" for number in range(chats)]
        account = mail_account(platform.fake, max_replies_per_hour=100_000)
        section = account.model_dump(mode="json", by_alias=True, exclude_unset=True)
        yield OnPlatform(platform, section | {"allowFrom": people}, people, people)


class OnSockets(Mouths):
    """Each with a client of their own."""

    dedupes = True

    def __init__(self, port: int, chats: int) -> None:
        self.port = port
        self.clients = [Client(port, f"w{chat}") for chat in range(chats)]
        self._ids = count()

    def section(self) -> dict[str, Any]:
        allowed = [client.name for client in self.clients]
        return {"enabled": True, "port": self.port, "clients": clients_section(*allowed), "allowFrom": allowed}

    def address(self, chat: int) -> str:
        return self.clients[chat].name

    async def say(self, chat: int, text: str) -> None:
        await self.clients[chat].say(f"m{next(self._ids)}", {"text": text})

    def shown(self, chat: int) -> list[str]:
        return [one.text for one in self.clients[chat].shown]

    async def cut(self) -> None:
        for client in self.clients:
            await client.cut()


@asynccontextmanager
async def on_sockets(folder: Path, home: GatewayHome, chats: int) -> AsyncIterator[OnSockets]:
    """The clients, until they go."""
    sockets = OnSockets(free_port(), chats)
    try:
        yield sockets
    finally:
        for client in sockets.clients:
            await client.close()


class WithToys(Mouths):
    """A plugin that knows nothing but `send`."""

    def __init__(self, toy: Toy) -> None:
        self.toy = toy
        self._ids = count()

    def section(self) -> dict[str, Any]:
        return {"enabled": True, "folder": str(self.toy.folder), "allowFrom": ["7"]}

    def address(self, chat: int) -> str:
        return str(chat)

    async def say(self, chat: int, text: str) -> None:
        self.toy.write(text, chat=str(chat), message_id=f"{next(self._ids):06}")

    def shown(self, chat: int) -> list[str]:
        return self.toy.got(str(chat))


@asynccontextmanager
async def with_toys(folder: Path, home: GatewayHome, chats: int) -> AsyncIterator[WithToys]:
    """The toys of the home."""
    yield WithToys(home.toy)


OpenMouths = Callable[[Path, GatewayHome, int], AbstractAsyncContextManager[Mouths]]


def of_two(name: str) -> OpenMouths:
    """On other platforms: the two people of the contract suite, each in a private chat."""

    @asynccontextmanager
    async def open_mouths(folder: Path, home: GatewayHome, chats: int) -> AsyncIterator[OnPlatform]:
        (own := home.data / "media" / f"sent-{name}").mkdir(parents=True)  # where WhatsApp's bridge may put files
        async with platform_class(name)(own).open() as platform:
            config = platform.channel(MessageBus()).config
            section = config.model_dump(mode="json", by_alias=True, exclude_unset=True)
            people, chats_of = (platform.person, platform.stranger), (platform.private, platform.stranger_chat)
            yield OnPlatform(platform, section | {"allowFrom": [*people]}, [*people], [*chats_of])

    return open_mouths


FIVE: dict[str, OpenMouths] = {
    "telegram": on_telegram,
    "discord": on_discord,
    "slack": on_slack,
    "email": by_mail,
    "websocket": on_sockets,
}
"""The channels where any number of people may be."""
OTHERS = [spec.name for spec in CHANNELS if spec.name not in FIVE or spec.name == "websocket"]
ALL = FIVE | {name: of_two(name) for name in OTHERS} | {"toy": with_toys}
"""All channels, and a plugin."""


MOST_REPEATS = 3
"""Of an answer that may have arrived, each with a note."""


def heard(body: dict[str, Any], before: str = "") -> Step:
    """An answer that names every message that has none yet, behind these words; of one that broke off, the rest."""
    rows = [(row["role"], str(row["content"] or "")) for row in body["messages"]]
    said = ""
    while rows[-1] == ("user", CONTINUE_INTERRUPTED):
        said = rows[-2][1] + said
        rows = rows[:-2]
    answered = " ".join(_ANSWER.findall("".join(text for role, text in rows if role == "assistant")))
    asked = [token for role, text in rows if role == "user" for token in _TOKEN.findall(text)]
    new = [token for token in dict.fromkeys(asked) if not re.search(rf"\b{token}\b", answered)]
    answer = f"{before} I heard you well, and this is the end of it: {' and '.join(new)}.".lstrip()
    return Slow(Say(answer.removeprefix(said)), first_s=0.03, each_s=0.01)


@asynccontextmanager
async def everybody(
    home: GatewayHome, on: Mapping[str, OpenMouths] = ALL, chats: int = 2
) -> AsyncIterator[dict[str, Mouths]]:
    """People on these channels, and a config that has them all."""
    async with AsyncExitStack() as there:
        mouths: dict[str, Mouths] = {
            name: await there.enter_async_context(open_mouths(home.path, home, chats))
            for name, open_mouths in on.items()
        }
        home.change(channels={name: one.section() for name, one in mouths.items()})
        yield mouths


class Lives:
    """A gateway that is killed and begun anew."""

    def __init__(self, home: GatewayHome, *words: str, program: str = "stepped_gateway") -> None:
        """`words`: those for the program."""
        self.home = home
        self.command = [sys.executable, "-m", f"tests.crash.{program}", *words]
        self.begin()

    def begin(self) -> None:
        """Begin one; it is ready soon."""
        self.process = started(self.command, env=self.home.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    async def ready(self) -> None:
        """Wait until it listens: a kill before that is no test."""
        file, pid = self.home.data / "state" / "gateway.json", str(self.process.pid)
        await eventually(lambda: file.exists() and pid in file.read_text())

    def kill(self) -> None:
        """Kill it with -9, and begin the next."""
        self.close()
        self.begin()

    def close(self) -> None:
        """Kill it, and begin none."""
        self.process.kill()
        self.process.communicate()

    async def end(self) -> int:
        """Tell it to stop; its code."""
        self.process.send_signal(signal.SIGTERM)
        return (await asyncio.to_thread(ended, self.process)).code


def seen(mouths: Mouths, chat: int, token: str) -> list[str]:
    """The answers in that chat that name this message."""
    word = re.compile(rf"\b{token}\b")
    return [text for text in mouths.shown(chat) if any(map(word.search, _ANSWER.findall(text)))]


def unanswered(mouths: dict[str, Mouths], said: list[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
    """What of this no answer names yet."""
    there = {
        (name, chat): {*_TOKEN.findall(" ".join(_ANSWER.findall("\n".join(mouths[name].shown(chat)))))}
        for name, chat in {(name, chat) for name, chat, _ in said}
    }
    return [(name, chat, token) for name, chat, token in said if token not in there[name, chat]]


def marked(texts: list[str]) -> int:
    """How many of these say that they may be a repeat."""
    return sum(MAY_REPEAT_NOTE.strip() in text or UNCONFIRMED_NOTE.strip() in text for text in texts)


def judged(name: str, mouths: Mouths, chat: int, token: str) -> list[str]:
    """What is wrong with what came of this message."""
    answers = seen(mouths, chat, token)
    if not answers and any("Send the message again" in text for text in mouths.shown(chat)):
        return []  # killed four times in one turn: it is given up, and its person told so
    if not answers:
        return [f"{name} {chat}: {token} was never answered; there is {mouths.shown(chat)}"]
    if len(answers) > 1 + (0 if mouths.dedupes else min(marked(answers), MOST_REPEATS)):
        return [f"{name} {chat}: {token} was answered {len(answers)} times: {answers}"]
    return []


def elsewhere(mouths: dict[str, Mouths], said: list[tuple[str, int, str]]) -> list[str]:
    """Answers in a chat where nobody asked."""
    asked: dict[tuple[str, int], set[str]] = {}
    for name, chat, token in said:
        asked.setdefault((name, chat), set()).add(token)
    return [
        f"{name} {chat}: {token} belongs elsewhere: {text[:200]!r}"
        for (name, chat), own in asked.items()
        for text in mouths[name].shown(chat)
        for token in {*_TOKEN.findall(text)} - own
    ]


def unsettled(data: Path, said: int, failed: int = 0) -> list[str]:
    """What the journal says at the end, where so many were to hear why there is no answer."""
    with closing(sqlite3.connect(data / "state" / "nanobot.db")) as db, db:
        states = dict(db.execute("SELECT state, COUNT(*) FROM inbound GROUP BY state"))
    print("the journal:", states)
    ended = sum(states.get(state, 0) for state in ("sent", "answered"))
    right = ended + states.get("failed", 0) == said and states.get("failed", 0) <= failed
    return [] if right else [f"the journal has {states} of {said}"]
