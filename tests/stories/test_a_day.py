"""A day of thirty people on five channels: second words that join, jobs, heartbeats, a dead model, kills, a full disk.

Each thing ends, where it belongs. The clock stands still and steps; the gateway is a child that dies and comes back.
The ledger is printed: `pytest -s`.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nanobot.cron.service import CronService
from nanobot.cron.types import Run
from nanobot.testing.model_server import Calls, Fail, FakeModels, Fitting, Say, Slow, Step
from tests.fakes.people import FIVE, Lives, Mouths, elsewhere, everybody, heard, judged, marked, seen, unsettled
from tests.support.eventually import eventually
from tests.support.home import POSIX, Home, fill, small_disk
from tests.support.toy_gateway import GatewayHome

pytestmark = POSIX

PEOPLE = 6
"""On each channel."""
LONGEST_S = 60.0
DEAD = "The model this chat asks for is gone."
TO_GUESTS = "I cannot answer now: the provider does not know this model"
NO_SPACE = "No space left on device"
JOBS = {"job-hourly": ("slack", 2), "job-once": ("email", 4)}
"""Which chat is told that they are done."""
HEART = ("discord", 5)
"""The chat that hears of the heartbeat."""


@dataclass
class Hour:
    """A line of the ledger."""

    name: str
    said: int = 0
    answered: int = 0
    joined: int = 0
    told_why_not: int = 0
    jobs: Counter[str] = field(default_factory=Counter)
    beats: int = 0

    def __str__(self) -> str:
        jobs = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.jobs.items()) if count)
        numbers = f"{self.said:>5} {self.answered:>9} {self.joined:>7} {self.told_why_not:>13} {self.beats:>6}"
        return f"{self.name:<31} {numbers}   {jobs}"


class Day:
    """What is there, and what was said so far."""

    def __init__(
        self, home: GatewayHome, server: FakeModels, mouths: dict[str, Mouths], began: datetime, steps: int
    ) -> None:
        self.home, self.server, self.mouths, self.began = home, server, mouths, began
        self.each = timedelta(hours=24) / steps
        self.clock = home.path / "clock"
        self.step = 0
        self.set_clock()
        self.looked_for: set[str] = set()
        self.beats = 0
        self.alive = server.default = Fitting(self.model)
        self.lives = Lives(home, str(self.clock))
        self.said: list[tuple[str, int, str]] = []
        self.dead: list[tuple[str, int]] = []
        self.refused: set[str] = set()
        """What names what was said while the disk was full: its outcome may be a word about that."""
        self.ledger: list[Hour] = []
        self.chance = Random(11)

    def model(self, body: dict[str, Any]) -> Step:
        """Jobs and tasks are done in a word, people are heard; who wants something found waits for a tool."""
        if any(one["function"]["name"] == "heartbeat" for one in body.get("tools", ())):
            self.beats += 1
            return Calls(("heartbeat", {"action": "run", "tasks": f"beat-{self.beats}", "again_in_minutes": 1}))
        last = str(next(row["content"] for row in reversed(body["messages"]) if row["role"] == "user"))
        if task := re.search(r"job-\w+|beat-\d+", last):
            return Say(f"{task[0]} is done")
        if (wanted := re.search(r"look for (q\d+)", last)) and body["messages"][-1]["role"] == "user":
            self.looked_for.add(wanted[1])
            return Slow(Calls(("list_dir", {"path": "."})), first_s=1)
        return heard(body)

    def set_clock(self) -> None:
        """Let it be so late."""
        temp = self.clock.with_suffix(".new")
        temp.write_text(f"{self.began.isoformat()} {(self.each * self.step).total_seconds()}")
        temp.replace(self.clock)

    def people(self, most: int) -> list[tuple[str, int]]:
        """So many of them."""
        everybody = [(channel, chat) for channel in self.mouths for chat in range(PEOPLE)]
        return self.chance.sample(everybody, min(most, len(everybody)))

    async def says(self, channel: str, chat: int, words: str) -> str:
        """One says that, and what names it."""
        token = f"q{len(self.said)}"
        self.said.append((channel, chat, token))
        await self.mouths[channel].say(chat, f"{words} {token}")
        return token

    def begin(self, name: str) -> None:
        """A line of the ledger begins."""
        self.ledger.append(Hour(name))
        self._before = len(self.said)

    async def hour(self, name: str, who: int) -> None:
        """So many people say something, some of them twice at once."""
        self.begin(name)
        for channel, chat in self.people(who):
            for _ in range(self.chance.choice((1, 1, 2))):
                await self.says(channel, chat, "here is")

    async def steered(self, who: int) -> None:
        """So many people want something found, and say one thing more while it is looked for."""
        self.begin("a second word while it works")
        first = {person: await self.says(*person, "look for") for person in self.people(who)}
        await eventually(lambda: self.looked_for.issuperset(first.values()), LONGEST_S)
        second = {person: await self.says(*person, "here is") for person in first}
        await self.answered()
        for (channel, chat), token in first.items():
            there = self.mouths[channel]
            both = {*seen(there, chat, token)} & {*seen(there, chat, second[channel, chat])}
            self.ledger[-1].joined += bool(both)

    async def answered(self) -> None:
        """Wait until everybody of this hour has an answer; what has none by then is told of at the end of the day."""
        said = self.said[self._before :]

        def has_answer(name: str, chat: int, token: str) -> bool:
            return bool(seen(self.mouths[name], chat, token))

        with suppress(TimeoutError):
            await eventually(lambda: all(has_answer(*one) or self.is_told_why_not(*one) for one in said), LONGEST_S)
        hour = self.ledger[-1]
        hour.said, hour.answered = len(said), sum(has_answer(*one) for one in said)
        hour.told_why_not = sum(self.is_told_why_not(*one) for one in said if not has_answer(*one))

    async def goes_on(self) -> None:
        """It is later: jobs and the heartbeat have their time."""
        hour = self.ledger[-1]
        jobs, beats = Counter(self.outcomes()), self.beats
        self.step += 1
        self.set_clock()
        due = self.due()
        await eventually(lambda: self.accounted() >= due and self.looked(), LONGEST_S)
        hour.jobs = Counter(self.outcomes()) - jobs
        hour.beats = self.beats - beats

    async def dead_model(self, who: int) -> None:
        """Nobody can be answered, and everybody hears of it."""
        self.begin("the model is dead for an hour")
        self.server.default = Fail(404, DEAD)
        self.dead = self.people(who)
        for channel, chat in self.dead:
            await self.mouths[channel].say(chat, "is anybody there?")
        await eventually(lambda: all(self.words_of_death(*one) for one in self.dead), LONGEST_S)
        self.server.default = self.alive
        hour = self.ledger[-1]
        hour.said, hour.told_why_not = len(self.dead), sum(self.words_of_death(*one) for one in self.dead)

    def words_of_death(self, channel: str, chat: int) -> int:
        return sum(DEAD in text or TO_GUESTS in text for text in self.mouths[channel].shown(chat))

    # jobs and heartbeats

    def looked(self) -> bool:
        """Whether the heartbeat has asked at this time, and remembers it."""
        file = self.home.data / "state" / "heartbeat.json"
        now = self.began + self.each * self.step
        return file.exists() and bool(json.loads(file.read_text() or "{}").get("again_at") == now.timestamp() + 60)

    def told(self, words: str, channel: str, chat: int) -> list[int]:
        """How often that was said in this chat, and in all."""
        there = sum(words in text for text in self.mouths[channel].shown(chat))
        return [
            there,
            sum(words in text for one in self.mouths.values() for n in range(PEOPLE) for text in one.shown(n)),
        ]

    def due(self) -> int:
        """How many instants of the hourly job and of the one reminder have come."""
        now = self.began + self.each * self.step
        hours = int((now - self.began.replace(minute=0)) / timedelta(hours=1))
        return hours + (now >= self.began + timedelta(hours=5))

    def outcomes(self) -> Iterator[str]:
        for row in self.history():
            yield from [row.outcome] * (row.count or 1)

    def accounted(self) -> int:
        return len([*self.outcomes()])

    def history(self) -> list[Run]:
        return CronService(self.home.workspace / "cron" / "jobs.json", data_dir=self.home.data).history()

    def problems(self) -> list[str]:
        """What is wrong at its end."""
        found = [one for said in self.said for one in self.judged(*said)]
        found += elsewhere(self.mouths, self.said)
        found += [f"{one} heard {n} words" for one in self.dead if (n := self.words_of_death(*one)) != 1]
        ran = Counter(row.name for row in self.history() if row.outcome == "ran")
        wanted = {f"{name} is done": (where, ran[name]) for name, where in JOBS.items()}
        wanted |= {f"beat-{number} is done": (HEART, 1) for number in range(1, self.beats + 1)}
        for words, (where, times) in wanted.items():
            told = self.told(words, *where)
            found += [f"{words!r} {times} times, but told {told[0]} times there, {told[1]} in all"] * (
                told != [times, times] or not times
            )
        found += [f"{self.beats} heartbeats in {self.step} steps"] * (self.beats != self.step + 1)
        found += [f"{self.accounted()} of {self.due()} instants are accounted for"] * (self.accounted() != self.due())
        found += ["nobody's second word joined"] * (not sum(hour.joined for hour in self.ledger))
        failed = len(self.dead) + len(self.refused)
        found += unsettled(self.home.data, len(self.said) + len(self.dead), failed=failed)
        print(*found, sep="\n")
        return found

    def judged(self, name: str, chat: int, token: str) -> list[str]:
        """What is wrong with what came of this message."""
        told = self.is_told_why_not(name, chat, token)
        return [] if told else judged(name, self.mouths[name], chat, token)

    def is_told_why_not(self, name: str, chat: int, token: str) -> bool:
        """Whether this was said to a full disk, and its person heard so."""
        return token in self.refused and any(NO_SPACE in text for text in self.mouths[name].shown(chat))

    def print(self) -> None:
        """The ledger."""
        heads = f"{'said':>5} {'answered':>9} {'joined':>7} {'told why not':>13} {'beats':>6}"
        print(f"\n{'':<31} {heads}   jobs", *self.ledger, sep="\n")
        for name, mouths in self.mouths.items():
            said = [(chat, token) for channel, chat, token in self.said if channel == name]
            answers = sum(len(seen(mouths, chat, token)) for chat, token in said)
            repeats = sum(marked(mouths.shown(chat)) for chat in range(PEOPLE))
            people = len({chat for chat, _ in said})
            print(f"{name}: {people} people, {len(said)} said, {answers} answers to them, {repeats} marked repeats")


@asynccontextmanager
async def a_day(folder: Path, server: FakeModels, steps: int) -> AsyncIterator[Day]:
    """A gateway with its people, jobs and standing tasks, before anything is said."""
    home = GatewayHome(folder, server)
    async with everybody(home, FIVE, PEOPLE) as mouths:
        now = datetime.now().astimezone()  # a clock ahead of Discord's would take what it missed for what it heard
        began = now.replace(minute=min(now.minute, 30), second=0, microsecond=0)
        at = began + timedelta(hours=5)
        for (name, (channel, chat)), when in zip(
            JOBS.items(), (("--cron", "0 * * * *"), ("--at", at.isoformat())), strict=True
        ):
            added(home, name, *when, "--channel", channel, "--to", mouths[channel].address(chat))
        heart = {"intervalS": 1, "channel": HEART[0], "to": mouths[HEART[0]].address(HEART[1])}
        home.change(gateway={**home.config["gateway"], "heartbeat": heart})
        (home.workspace / "HEARTBEAT.md").write_text("- see to everything\n", encoding="utf-8")
        day = Day(home, server, mouths, began, steps)
        try:
            await eventually(day.looked, LONGEST_S)
            yield day
        finally:
            day.lives.process.kill()


def added(home: Home, name: str, *words: str) -> None:
    end = home.run("cron", "add", "-n", name, "-m", f"Do {name}", "--deliver", *words)
    assert end.code == 0, end.complaint


async def play(day: Day, disk: Path | None, hours: Sequence[str], who: int) -> None:
    """The whole day."""
    for number, hour in enumerate(hours):
        here = who if number else PEOPLE * len(day.mouths)  # each of them at least once
        if hour == "dead":
            await day.dead_model(who)
        elif hour == "steered":
            await day.steered(who)
        elif hour == "killed":
            await day.hour("killed in the middle", here)
            await asyncio.sleep(day.chance.uniform(0.05, 0.3))
            day.lives.kill()
            await day.answered()
        elif hour == "full" and disk is not None:
            full, before = fill(disk), len(day.said)
            await day.hour("the disk is full for a while", here)
            await asyncio.sleep(0.5)
            full.unlink()
            for name in ("websocket", "slack"):  # what was refused is said again when they come back; Slack's own way
                await day.mouths[name].cut()  # is to do so after a minute
            day.refused |= {token for _, _, token in day.said[before:]}
            await day.answered()
        else:
            await day.hour("an hour as others" if hour != "full" else "no small disk may be mounted", here)
            await day.answered()
        await day.goes_on()
    day.print()
    assert await day.lives.end() == 0


@contextmanager
def a_small_disk(place: Path) -> Iterator[Path | None]:
    """A disk that is soon full; None where none may be mounted: then that hour is as others, and the ledger says so."""
    with ExitStack() as mounted:
        try:
            disk: Path | None = mounted.enter_context(small_disk(place, "48m"))
        except pytest.skip.Exception:
            disk = None
        yield disk


SHORT = ("killed", "steered", "full", "dead")
LONG = ("others", "killed", "full", *["others"] * 4, "steered", *["others"] * 4, "dead", *["others"] * 4, "steered")
LONG += ("full", "others", "others", "others", "killed", "others")


@pytest.mark.parametrize(
    ("hours", "who"),
    [
        pytest.param(SHORT, 8, marks=[pytest.mark.slow, pytest.mark.timeout(180)]),
        pytest.param(LONG, 25, marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),
    ],
    ids=["in four steps", "of twenty-four hours"],
)
async def test_a_day(tmp_path: Path, hours: Sequence[str], who: int):
    home = tmp_path / "home"
    home.mkdir()
    with a_small_disk(home / ".nanobot") as disk, FakeModels(strict=False) as server:
        async with a_day(home, server, len(hours)) as day:
            await play(day, disk, hours, who)

            problems = day.problems()

    assert not problems
