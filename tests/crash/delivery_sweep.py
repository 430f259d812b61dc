"""Three chats on a wall that are killed with -9 at every write and step from their messages to the replies, and told to
stop there: run as a program, it prints what it saw as one JSON object.

The wall is a platform of files. It hands a note to nanobot until it is told that the note arrived, and keeps what is
pinned to it. A life is a bus with its journal, the agent and the channel, forked for each kill as in `every_write`;
beside the calls to the disk, each word to the journal and each note that is pinned counts as a point. Some of the
lives that follow are killed too. The last one is left in peace until nothing is owed; then the parent looks.
"""

import asyncio
import itertools
import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from nanobot.agent.engine.transcript import CONTINUE_INTERRUPTED
from nanobot.bus.events import Address, OutboundKind, OutboundMessage
from nanobot.bus.journal import open_journal
from nanobot.bus.queue import MessageBus
from nanobot.channels.access import AccessControl, AccessPolicy
from nanobot.channels.base import ChannelServices
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.incoming import Incoming
from nanobot.channels.manager import ChannelManager
from nanobot.channels.media import MediaStore
from nanobot.config.channels import ChannelConfig
from nanobot.config.paths import DataPaths
from nanobot.config.schema import Config
from nanobot.markdown import Chunk
from nanobot.markdown.dialects import PLAIN
from nanobot.messages.types import INTERRUPTED
from nanobot.pairing.store import PairingStore
from nanobot.providers.base import Finished, LLMProvider, LLMResponse, TextDelta, ToolCallRequest
from nanobot.runtime.build import Runtime, build_runtime
from tests.crash import turn_sweep as every_write
from tests.crash.turn_sweep import PLAN, QUESTION, Wrap, add_tools, arm, disarm

KILLS = ("before", "after", "term")
REST_S = 20.0
_write, _open, _close = os.write, os.open, os.close


@dataclass(frozen=True)
class Kind:
    """What is special about the wall."""

    streams: bool = False
    """Whether a note can be written over, so that an answer is seen as it grows."""
    dedupes: bool = False
    """Whether it drops a note that is pinned twice with the same nonce."""


KINDS = {"plain": Kind(), "once": Kind(dedupes=True), "streams": Kind(streams=True)}
kind = KINDS["plain"]

NOTES = [
    ("n1", "ann", QUESTION),
    ("n2", "bob", "hello one"),
    ("n3", "bob", "/new"),
    ("n4", "bob", "hello two"),
    ("n5", "cid", "/status"),
    ("n6", "ann", "and now?"),
    ("n7", "ann", "/history 100"),
    ("n8", "ann", "and at last?"),
]
"""What people pin up, in this order; the second ones while the first are worked on."""
ACCEPTED = "accepted.jsonl"
PINNED = "pinned.jsonl"


class WallConfig(ChannelConfig):
    """The section `channels.wall`."""

    streaming: bool = True


_now: ContextVar[OutboundMessage | None] = ContextVar("what is delivered", default=None)


class WallChannel(ChatChannel):
    """The channel of the wall."""

    name = "wall"
    stall_s: ClassVar[float] = 0
    delta_interval_s: ClassVar[float] = 0.0
    dialect = replace(PLAIN, limit=70)  # so that most replies are in pieces

    def __init__(self, bus: MessageBus, folder: Path, wrapped: Wrap) -> None:
        super().__init__(WallConfig.model_validate({"enabled": True, "allow_from": ["ann", "bob", "cid"]}), bus)
        self.can_edit = kind.streams  # type: ignore[misc]
        self._folder = folder
        self._append = wrapped("pin", _append)
        self.all_taken = asyncio.Event()

    async def start(self) -> None:
        self.mark_up()
        there = {one["id"] for one in _lines(self._folder / ACCEPTED)}
        for note_id, chat, text in NOTES:
            if note_id not in there:
                await self.receive(Incoming(chat, chat, text, note_id))
                _append(self._folder / ACCEPTED, {"id": note_id})
        self.all_taken.set()
        await asyncio.Event().wait()

    async def deliver(self, message: OutboundMessage) -> tuple[str, ...]:
        _now.set(message)
        return await super().deliver(message)

    async def post(self, to: Address, piece: Chunk, how: SendOptions) -> str:
        pinned = _lines(self._folder / PINNED)
        if kind.dedupes and how.nonce is not None:
            for one in pinned:
                if one["nonce"] == how.nonce:
                    return str(one["id"])
        note_id = f"b{len(pinned)}"
        self._pin(note_id, to, piece, how.nonce)
        return note_id

    async def edit(self, to: Address, platform_id: str, piece: Chunk) -> None:
        self._pin(platform_id, to, piece, None)

    def _pin(self, note_id: str, to: Address, piece: Chunk, nonce: str | None) -> None:
        message = _now.get()
        assert message is not None
        line = {"id": note_id, "chat": to.chat_id, "text": piece.text, "nonce": nonce}
        line |= {"kind": message.kind, "turn": message.turn_id, "answers": message.answers}
        self._append(self._folder / PINNED, line)


def _append(path: Path, line: dict[str, Any]) -> None:
    descriptor = _open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    _write(descriptor, f"{json.dumps(line)}\n".encode())
    _close(descriptor)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Model(LLMProvider):
    """Goes through the plan with ann, whatever of it is done; others are told what they said."""

    def get_default_model(self) -> str:
        return "planned"

    async def chat_stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        said, rows = "", [*messages]
        while rows[-1]["content"] == CONTINUE_INTERRUPTED:
            said, rows = f"{rows[-2]['content'] or ''}{said}", rows[:-2]
        text, wanted = self._answer(rows)
        text = f"{text} ".removeprefix(said)  # of an answer that broke off, the rest
        for word in text.split(" ")[:-1]:
            yield TextDelta(word + " ")
            await asyncio.sleep(0)
        yield Finished(LLMResponse(text, wanted, "tool_calls" if wanted else "stop"))

    def _answer(self, messages: Any) -> tuple[str, list[ToolCallRequest]]:
        asked = str(next(row["content"] for row in reversed(messages) if row["role"] == "user"))
        if QUESTION not in str(messages):
            return f"You said {asked.split('hello')[-1][:4]}, and that is well said; I have nothing to add to it.", []
        steps = [int(call["id"][1]) for row in messages for call in row.get("tool_calls") or ()]
        done = max(steps, default=-1) + 1
        wanted = PLAN[done] if done < len(PLAN) else []
        calls = [ToolCallRequest(f"c{done}{at}", name, {"label": label}) for at, (name, label) in enumerate(wanted)]
        heard = sum(one in str(messages) for one in (QUESTION, "and now?", "and at last?"))
        return (
            f"Step {done}." if wanted else f"All six are done, and I heard {heard} of you, every word of it."
        ), calls


class Words:
    """A journal each of whose words is a point: before it is written and when it is on the disk."""

    def __init__(self, journal: Any, wrapped: Wrap) -> None:
        self._journal = journal
        self._point = wrapped("journal", lambda: None)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        real = getattr(self._journal, name)

        async def word(*args: Any) -> Any:
            self._point()
            result = await real(*args)
            self._point()
            return result

        return word


async def spend(home: Path, wrapped: Wrap) -> dict[str, Any]:
    """A life, until nothing is owed to anybody or it is told to stop."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    problems: list[str] = []
    async with open_journal(home / "journal.db") as journal, MessageBus(Words(journal, wrapped)).open() as bus:  # type: ignore[arg-type]
        channel = WallChannel(bus, home, wrapped)
        access = AccessControl(AccessPolicy.of(channel.name, channel.config), PairingStore(DataPaths(home)))
        channel.attach(ChannelServices(access, MediaStore(home / "media")))
        manager = ChannelManager([channel], bus, retry_delays_s=(0, 0, 0), first_wait_s=0.01)
        async with runtime(home, bus, manager) as bot:
            arm()
            living = [asyncio.create_task(bot.loop.run()), asyncio.create_task(manager.run())]
            watching = asyncio.create_task(at_rest(bot, channel, journal))
            stopping = asyncio.create_task(stopped.wait())
            done, _ = await asyncio.wait(
                [watching, stopping, *living], timeout=REST_S, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                problems.append(f"it came to no rest: {await journal.counts()}")
            problems += [f"a part of it ended: {one}" for one in living if one.done()]
            watching.cancel()
            await bot.loop.stop()
            await manager.drain()
            disarm()
            for task in (*living, stopping):
                task.cancel()
            await asyncio.wait(living)
    return {"problems": problems, "outcome": "stopped" if stopped.is_set() else "rest"}


async def at_rest(bot: Runtime, channel: WallChannel, journal: Any) -> None:
    """Until everything was taken, answered and sent."""
    await channel.all_taken.wait()
    while True:
        counts = await journal.counts()
        if not counts.queued and not counts.waiting_out and not bot.bus.outbound_size and not bot.status.running:
            return
        await asyncio.sleep(0.005)


@asynccontextmanager
async def runtime(home: Path, bus: MessageBus, manager: ChannelManager) -> AsyncIterator[Runtime]:
    """The agent of a life, with tools that leave marks."""
    built = build_runtime(
        Config(),
        data_dir=home,
        workspace=home / "workspace",
        provider=Model(),
        environ={},
        bus=bus,
        streams=manager.streams,
    )
    async with built as bot:
        add_tools(bot, home)
        yield bot


MARK = "(nanobotwasinterruptedhere"
OPENINGS = {
    "/new": ["Started a new session.", "This session is already new."],
    "/status": ["Running turns:"],
    "/history": ["you: do the six things"],
}
"""What is in the answers to the commands, once."""
ANSWERING = (OutboundKind.REPLY, OutboundKind.STREAM_DELTA, OutboundKind.STREAM_END)


def look(home: Path, ends: int, counts: Counter[str]) -> list[str]:
    """What is wrong with what the lives left; all of them but the last ended before their time."""
    problems: list[str] = []
    marks = Counter((home / "marks").read_text().split()) if (home / "marks").exists() else Counter()
    once = [label for step in PLAN for tool, label in step if tool == "once"]
    problems += [f"{label} ran {marks[label]} times" for label in once if marks[label] > 1]
    with closing(sqlite3.connect(home / "journal.db")) as db, db:
        inbound = dict(db.execute("SELECT key, state FROM inbound"))
        out = db.execute("SELECT id, state, reply_of, answers FROM outbound").fetchall()
    expected = {f"wall:{chat}:{note_id}" for note_id, chat, _ in NOTES}
    if {*inbound} != expected:
        problems.append(f"accepted: {inbound}")
    problems += [f"{key} is {state}" for key, state in inbound.items() if state not in ("sent", "answered")]
    problems += [f"message out {one} is not sent" for one in out if one[1] != "sent"]
    turns, answers = told_by_sessions(home)
    for note_id, chat, text in NOTES:
        key = f"wall:{chat}:{note_id}"
        command = text.startswith("/")
        if not command and key not in turns:
            problems.append(f"{key} is in no session")
            continue
        mine = [one for one in shown(home) if one["kind"] in ANSWERING]
        mine = [one for one in mine if (one["answers"] == key if command else one["turn"] == turns[key])]
        problems += [f"{key}: a reply in a wrong chat: {one}" for one in mine if one["chat"] != chat]
        all_of_it = _close_up("".join(one["text"] for one in mine))
        marked = all_of_it.count(MARK)
        wanted = OPENINGS[text.split()[0]] if command else [answers[turns[key]]]
        times = sum(all_of_it.count(_close_up(one)) for one in wanted)
        counts["repeated"] += times - 1
        if not times:
            problems.append(f"{key} ({text}) has no reply, but {all_of_it!r}")
        elif times > 1 + (0 if kind.dedupes else ends if marked else 0):
            problems.append(f"{key} was answered {times} times, {marked} of them marked: {all_of_it}")
        problems += [f"{key}: marked, and nothing was cut off"] * (marked > ends)
    if [*(home / "state" / "turns").glob("*")]:
        problems.append("a half-done turn is left")
    return problems


def told_by_sessions(home: Path) -> tuple[dict[str, str], dict[str, str]]:
    """From sessions and archives: by journal key the turn that took it on, and by turn its answer."""
    rows = [
        row
        for path in (home / "workspace" / "sessions").rglob("*.jsonl")
        for row in map(json.loads, path.read_text().splitlines())
    ]
    turns = {row["inbound"]: row["turn_id"] for row in rows if "inbound" in row}
    parts: dict[str, str] = {}
    answers: dict[str, str] = {}
    for row in rows:
        if row.get("role") == "assistant":
            part = parts.pop(row["turn_id"], "") + (row["content"] or "")
            (parts if row.get("error") == INTERRUPTED else answers)[row["turn_id"]] = part
    return turns, answers | parts  # a part without an end came after the steps: what was left of it was nothing


def _close_up(text: str) -> str:
    return "".join(text.split())


def shown(home: Path) -> list[dict[str, Any]]:
    """What hangs on the wall now, oldest first: what was written over is as it was written last."""
    notes: dict[str, dict[str, Any]] = {}
    for line in _lines(home / PINNED):
        notes[line["id"]] = line
    return [*notes.values()]


def killed(home: Path, point: int, mode: str, points: int, chance: random.Random, counts: Counter[str]) -> list[str]:
    """Life after life until one is left in peace; what is wrong then."""
    problems: list[str] = []
    ends = 0
    while True:
        status, told = every_write.in_child(lambda wrapped: spend(home, wrapped), point, mode)
        counts["kills"] += os.WIFSIGNALED(status)
        problems += told["problems"] if told else []
        if not os.WIFSIGNALED(status) and told["outcome"] != "stopped":
            break
        counts["stopped"] += not os.WIFSIGNALED(status)
        ends += 1
        point = chance.randrange(points) if ends < 3 and chance.random() < 0.5 else -1
        mode = chance.choice(KILLS)
    counts["killed again"] += ends > 1
    counts["marked"] += sum(MARK in _close_up(one["text"]) for one in shown(home))
    return problems + look(home, ends, counts)


def main() -> None:
    """`every_sending EACH SEED KIND`: every EACH-th point."""
    global kind
    each, chance = int(sys.argv[1]), random.Random(int(sys.argv[2]))
    kind = KINDS[sys.argv[3]]
    counts: Counter[str] = Counter()
    problems: list[str] = []
    first = chance.randrange(each)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "counted"
        home.mkdir()
        _, told = every_write.in_child(lambda wrapped: spend(home, wrapped), -1, "before")
        problems += [f"in peace: {one}" for one in (*told["problems"], *look(home, 0, counts))]
        points = counts["points"] = told.get("points", 0)
        for number, (point, mode) in enumerate(itertools.product(range(points), KILLS)):
            if number % each != first:
                continue
            home = Path(folder) / f"life-{number}"
            home.mkdir()
            found = killed(home, point, mode, points, chance, counts)
            problems += [f"{mode} {point} ({number}): {one}" for one in found]
            shutil.rmtree(home)
    print(json.dumps({"counts": counts, "problems": problems[:30], "wrong": len(problems)}))


if __name__ == "__main__":
    main()
