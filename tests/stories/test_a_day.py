"""A day of thirty people on three channels: jobs, a dead model, kills, a full disk; each thing ends, where it belongs.

The clock stands still and steps; the gateway is a child that dies and comes back. The ledger is printed: `pytest -s`.
"""

import asyncio
import json
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.fake_models import Fail, FakeModels, Fitting, Say, Step
from tests.gateway.toy import GatewayHome
from tests.stories.mouths import Lives, Mouths, elsewhere, everybody, heard, judged, seen, unsettled
from tests.stories.processes import POSIX, Home, fill, small_disk

pytestmark = POSIX

CHATS = 10
LONGEST_S = 30.0
DEAD = "The model this chat asks for is gone."


def model(body: dict[str, Any]) -> Step:
    """Jobs are done in a word, people are heard."""
    last = str(next(row["content"] for row in reversed(body["messages"]) if row["role"] == "user"))
    job = re.search(r"job-\w+", last)
    return Say(f"{job[0]} is done") if job else heard(body)


@dataclass
class Hour:
    """A line of the ledger."""

    name: str
    said: int = 0
    answered: int = 0
    told_why_not: int = 0
    jobs: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        jobs = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.jobs.items()))
        return f"{self.name:<28} {self.said:>5} {self.answered:>9} {self.told_why_not:>13}   {jobs}"


class Day:
    """What is there, and what was said so far."""

    def __init__(self, home: GatewayHome, server: FakeModels, mouths: dict[str, Mouths], steps: int) -> None:
        self.home, self.server, self.mouths = home, server, mouths
        self.began = datetime.now().astimezone().replace(minute=30, second=0, microsecond=0)
        self.each = timedelta(hours=24) / steps
        self.clock = home.path / "clock"
        self.step = 0
        self.set_clock()
        self.lives = Lives(home, (sys.executable, "-m", "tests.stories.stepped_gateway", str(self.clock)))
        self.said: list[tuple[str, int, str]] = []
        self.dead: list[tuple[str, int]] = []
        self.ledger: list[Hour] = []
        self.chance = Random(11)

    def set_clock(self) -> None:
        """Let it be so late."""
        temp = self.clock.with_suffix(".new")
        temp.write_text(f"{self.began.isoformat()} {(self.each * self.step).total_seconds()}")
        temp.replace(self.clock)

    async def hour(self, name: str, who: int) -> None:
        """So many people say something, some of them twice at once; each is answered before it is over."""
        hour = Hour(name)
        self.ledger.append(hour)
        before = len(self.said)
        for channel, chat in self.chance.sample([(one, chat) for one in self.mouths for chat in range(CHATS)], who):
            for _ in range(self.chance.choice((1, 1, 2))):
                token = f"q{len(self.said)}"
                self.said.append((channel, chat, token))
                await self.mouths[channel].say(chat, f"here is {token}")
        hour.said = len(self.said) - before
        self._open = (hour, self.said[before:])

    async def over(self) -> None:
        """Wait until all of this hour are answered; then the clock goes on, and jobs have their time."""
        hour, said = self._open
        with suppress(TimeoutError):  # what is not there by then is told of at the end of the day
            await until(lambda: all(seen(self.mouths[name], chat, token) for name, chat, token in said))
        hour.answered = sum(bool(seen(self.mouths[name], chat, token)) for name, chat, token in said)
        await self.goes_on(hour)

    async def goes_on(self, hour: Hour) -> None:
        before = Counter(self.outcomes())
        self.step += 1
        self.set_clock()
        due = self.due()
        await until(lambda: self.accounted() >= due)
        hour.jobs = Counter(self.outcomes())
        hour.jobs.subtract(before)

    async def dead_model(self, who: int) -> None:
        """Nobody can be answered, and everybody hears of it."""
        hour = Hour("the model is dead")
        self.ledger.append(hour)
        self.server.default = Fail(404, DEAD)
        self.dead = self.chance.sample([(one, chat) for one in self.mouths for chat in range(CHATS)], who)
        for channel, chat in self.dead:
            await self.mouths[channel].say(chat, "is anybody there?")
        await until(lambda: all(self.words_of_death(*one) for one in self.dead))
        self.server.default = Fitting(model)
        hour.said, hour.told_why_not = len(self.dead), sum(self.words_of_death(*one) for one in self.dead)
        await self.goes_on(hour)

    def words_of_death(self, channel: str, chat: int) -> int:
        return sum(DEAD in text for text in self.mouths[channel].shown(chat))

    # jobs

    def due(self) -> int:
        """How many instants of the hourly job and of the one reminder have come."""
        now = self.began + self.each * self.step
        hours = int((now - self.began + timedelta(minutes=30)) / timedelta(hours=1))
        return hours + (now >= self.began + timedelta(hours=5))

    def outcomes(self) -> Iterator[str]:
        for row in self.history():
            yield from [row["outcome"]] * row.get("count", 1)

    def accounted(self) -> int:
        return len([*self.outcomes()])

    def history(self) -> list[dict[str, Any]]:
        file = self.home.workspace / "cron" / "history.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def problems(self) -> list[str]:
        """What is wrong at its end."""
        found = [one for name, chat, token in self.said for one in judged(name, self.mouths[name], chat, token)]
        found += elsewhere(self.mouths, self.said)
        found += [f"{one} heard {n} words" for one in self.dead if (n := self.words_of_death(*one)) != 1]
        ran = Counter(row["name"] for row in self.history() if row["outcome"] == "ran")
        for name, channel, chat in (("job-hourly", "toy", 3), ("job-once", "telegram", 4)):
            told = sum(f"{name} is done" in text for text in self.mouths[channel].shown(chat))
            everywhere = sum(
                f"{name} is done" in text for one in self.mouths.values() for n in range(CHATS) for text in one.shown(n)
            )
            found += [f"{name} ran {ran[name]} times and was told {told} times there, {everywhere} in all"] * (
                not ran[name] == told == everywhere
            )
        found += [f"{self.accounted()} of {self.due()} instants are accounted for"] * (self.accounted() != self.due())
        return found + unsettled(self.home.data, len(self.said) + len(self.dead), failed=len(self.dead))


async def until(there: Any) -> None:
    async with asyncio.timeout(LONGEST_S):
        while not there():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def a_day(folder: Path, server: FakeModels, steps: int) -> AsyncIterator[Day]:
    """A gateway with its people and jobs, before anything is said."""
    home = GatewayHome(folder, server)
    async with everybody(home, CHATS) as mouths:
        at = datetime.now().astimezone().replace(minute=30, second=0, microsecond=0) + timedelta(hours=5)
        added(home, "job-hourly", "--cron", "0 * * * *", "--channel", "toy", "--to", "3")
        added(home, "job-once", "--at", at.isoformat(), "--channel", "telegram", "--to", "1004")
        day = Day(home, server, mouths, steps)
        try:
            await day.lives.ready()
            yield day
        finally:
            day.lives.process.kill()


def added(home: Home, name: str, *words: str) -> None:
    end = home.run("cron", "add", "-n", name, "-m", f"Do {name}", "--deliver", *words)
    assert end.code == 0, end.complaint


async def play(day: Day, disk: Path | None, steps: int, who: int) -> None:
    """The whole day."""
    for step in range(steps):
        if step == steps // 2:
            await day.dead_model(who)
        elif step in (1, steps - 2):
            await day.hour("killed in the middle", who)
            await asyncio.sleep(day.chance.uniform(0.05, 0.3))
            day.lives.kill()
            await day.over()
        elif step == 2 and disk is not None:
            full = fill(disk)
            await day.hour("the disk is full for a while", who)
            await asyncio.sleep(0.5)
            full.unlink()
            await day.mouths["websocket"].cut()  # a client that was refused says it again when it comes back
            await day.over()
        else:
            await day.hour("an hour as others", who)
            await day.over()
    print(f"\n{'':<28} {'said':>5} {'answered':>9} {'told why not':>13}   jobs", *day.ledger, sep="\n")
    assert await day.lives.end() == 0


@pytest.mark.timeout(120)
async def test_a_day_in_five_steps(tmp_path: Path):
    with FakeModels(default=Fitting(model), strict=False) as server:
        async with a_day(tmp_path, server, 5) as day:
            await play(day, None, 5, who=6)

            problems = day.problems()

    assert not problems


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_day_of_twenty_four_hours_with_a_disk_that_fills_up(tmp_path: Path):
    (tmp_path / "home").mkdir()
    with (
        small_disk(tmp_path / "home" / ".nanobot", "48m") as disk,
        FakeModels(default=Fitting(model), strict=False) as server,
    ):
        async with a_day(tmp_path / "home", server, 24) as day:
            await play(day, disk, 24, who=25)

            problems = day.problems()

    assert not problems
