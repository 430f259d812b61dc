"""A day with everything on: two channels, four chats, goals, subagents, jobs, heartbeat, Dream, search, skills, hooks.

Everybody tells a secret, and the gateway is killed twice. At the end each message has one outcome, each goal, subagent
and job one report where it belongs, memory is whole, and no secret is in a prompt or a message of another chat.
"""

import asyncio
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from nanobot.agent.memory.schedule import DueTimes
from nanobot.agent.memory.store import MemoryStore
from nanobot.agent.scope import Scope
from nanobot.cron.service import CronService
from nanobot.testing.model_server import FakeModels, Fitting
from tests.fakes.people import Lives, Mouths, elsewhere, judged, marked, seen
from tests.stories.company import MAY_KNOW, OWNER_IN_GROUP, SEATS, WHO, Obedient, company, known_in
from tests.support.eventually import eventually
from tests.support.home import POSIX
from tests.support.toy_gateway import GatewayHome
from tests.support.work import goals_in, open_tasks, reported_tasks

pytestmark = POSIX

SCOPES = {"owner": "", "ann": "telegram:1001", "bob": "slack:D0P0", "group": f"telegram:{WHO['group']}"}
SHORT = ["spawn", "/goal", "kill", "/new", "night", "look brew", "kill", "hello", "brew"]
HOURS = ["spawn", "/goal", "/new", "look", "brew", "hello", "night", "spawn look", "look brew hello"]


def long(seed: int) -> list[str]:
    """Any hours, and a kill in every third or so; who is killed four times in a turn is given up."""
    dice = Random(seed)
    drawn = [
        hour for _ in range(24) for hour in ("kill", dice.choice(HOURS), dice.choice(HOURS))[dice.randrange(3) > 0 :]
    ]
    return ["spawn", "/goal", "kill", "/new", *drawn, "kill", "hello", "brew"]


WAIT_S = 60.0


class Day:
    """What was said so far, and what is to come of it."""

    def __init__(self, home: GatewayHome, server: FakeModels, mouths: dict[str, Mouths], seed: int) -> None:
        self.home, self.mouths, self.any = home, mouths, Random(seed)
        self.model = Obedient()
        server.default = Fitting(self.model)
        self.began = datetime.now().astimezone().replace(hour=9, minute=0, second=0, microsecond=0)
        self.clock, self.nights, self.goals = home.path / "clock", 0, 0
        self.set_clock()
        self.said: list[tuple[str, int, str]] = []
        self.commands = 0
        self.lives = Lives(home, str(self.clock))

    def set_clock(self) -> None:
        """A day a night, and less than one since somebody has spoken."""
        temp = self.clock.with_suffix(".new")
        temp.write_text(f"{self.began.isoformat()} {timedelta(hours=23, minutes=54).total_seconds() * self.nights}")
        temp.replace(self.clock)

    async def says(self, seat: tuple[str, int], words: str) -> str:
        """One says that, and what names it."""
        token = f"q{len(self.said)}"
        self.said.append((*seat, token))
        await self.mouths[seat[0]].say(seat[1], f"{words} {token}")
        return token

    async def everybody(self, words: str) -> None:
        """All at once, in private and in the group."""
        for who, seat in SEATS.items():
            if words == "/new":
                await self.command(OWNER_IN_GROUP if who == "group" else seat, words)
            elif words == "/goal":
                await self.command(
                    OWNER_IN_GROUP if who == "group" else seat, f"/goal find secrets of round {self.goals}"
                )
            else:
                await self.says(seat, words.format(who=who))
        self.goals += words == "/goal"

    async def command(self, seat: tuple[str, int], words: str) -> None:
        """What no model answers."""
        self.commands += 1
        await self.mouths[seat[0]].say(seat[1], words)

    def shown(self, who: str) -> list[str]:
        """What stands in that chat."""
        channel, chat = SEATS[who]
        return self.mouths[channel].shown(chat)

    def told(self, who: str, words: str) -> int:
        """How often that was said there, but for what is marked as a repeat."""
        found = [text for text in self.shown(who) if words in text]
        return len(found) - min(marked(found), 1)

    async def until(self, there: Callable[[], object]) -> None:
        """Wait for it."""
        try:
            await eventually(there, WAIT_S)
        except AssertionError:
            raise AssertionError(f"it did not come; open is {self.open()}, {self.model.beats} beats") from None

    def open(self) -> list[str]:
        """What has no end yet."""
        found = [f"{one}" for one in self.said if not seen(self.mouths[one[0]], *one[1:])]
        found += [f"goal of {who}" for who in WHO if self.told(who, "Goal reached") < self.goals]
        found += [f"memory of {who}" for who in WHO if who not in known_in(self.memory(who))]
        return found + [task["id"] for task in open_tasks(self.home.data)]

    def is_quiet(self) -> bool:
        """Whether everybody has an answer, each goal its end and each subagent its report."""
        answered = all(seen(self.mouths[name], chat, token) for name, chat, token in self.said)
        goals = all(self.told(who, "Goal reached") >= self.goals for who in WHO)
        return answered and goals and not open_tasks(self.home.data)

    def remembers(self) -> bool:
        """Whether each memory knows its own secret."""
        return all(who in known_in(self.memory(who)) for who in WHO)

    def memory(self, who: str) -> str:
        return MemoryStore(self.home.workspace).of(Scope(SCOPES[who])).read_long_term()

    async def night(self) -> None:
        """Jobs, the heartbeat and Dream have their time."""
        beats, ran, dreamt = self.model.beats, self.ran(), self.dreamt()
        self.nights += 1
        self.set_clock()
        await self.until(lambda: self.model.beats > beats and self.dreamt() > dreamt)
        await self.until(lambda: all(self.ran()[job] > ran[job] for job in (f"job-{who}" for who in WHO)))
        await self.until(lambda: self.told("owner", f"beat-{self.model.beats} "))

    def dreamt(self) -> float:
        """When Dream has looked last."""
        return DueTimes(self.home.data / "state" / "nanobot.db", "look").get("dream").at

    def ran(self) -> Counter[str]:
        """The jobs that ran."""
        rows = CronService(self.home.workspace / "cron" / "jobs.json", data_dir=self.home.data).history()
        return Counter(re.findall(r"job-\w+", " ".join(row.name for row in rows if row.outcome == "ran")))

    async def play(self, hours: list[str]) -> None:
        """The whole day."""
        await self.everybody("my secret is canary-{who}")
        await self.until(self.is_quiet)
        await self.everybody("job")
        await self.until(self.is_quiet)
        for hour in hours:
            if hour == "kill":
                await asyncio.sleep(self.any.uniform(0.0, 0.5))
                self.lives.kill()
                continue
            if hour == "night":
                await self.until(self.remembers)
                await self.everybody("good night")  # who is away is told nothing
                await self.until(self.is_quiet)
                await self.night()
                continue
            if hour == "/goal":  # a session has one at a time
                await self.until(self.is_quiet)
            for words in hour.split():
                await self.everybody(words)
            if hour not in ("spawn", "/goal", "look brew"):
                await self.until(self.is_quiet)
        await self.until(self.is_quiet)
        assert await self.lives.end() == 0

    # what is wrong at its end

    def problems(self) -> list[str]:
        found = [problem for one in self.said if not self.is_told_again(*one) for problem in self.judged(*one)]
        found += elsewhere(self.mouths, self.said)
        found += self.journal() + self.idle() + self.leaks() + self.reports() + self.memories()
        print(*found, sep="\n")
        return found

    def judged(self, name: str, chat: int, token: str) -> list[str]:
        return judged(name, self.mouths[name], chat, token)

    def is_told_again(self, name: str, chat: int, token: str) -> bool:
        """Whether a goal's report repeats the words of its last turn, which somebody's message had joined."""
        answers = seen(self.mouths[name], chat, token)
        return len([text for text in answers if "(Goal reached" not in text]) == 1 < len(answers)

    def journal(self) -> list[str]:
        """Messages of people that are not settled, or were not taken once."""
        with closing(sqlite3.connect(self.home.data / "state" / "nanobot.db")) as db, db:
            states = dict(db.execute("SELECT key, state FROM inbound").fetchall())
        people = [state for key, state in states.items() if key.startswith(("telegram:", "slack:"))]
        wrong = {*states.values()} - {"sent", "answered"} or len(people) != len(self.said) + self.commands
        return [f"the journal has {Counter(states.values())}, {len(people)} of people"] * bool(wrong)

    def idle(self) -> list[str]:
        """What was switched on and did nothing: then this was no day with everything on."""
        shown = "\n".join(text for _, text in self.model.shown)
        watched = Counter(json.loads(line)[0] for line in (self.home.path / "seen").read_text().splitlines())
        did = {
            "consolidation": self.model.asked_for.count("save_memory") >= len(WHO),
            "Dream": "tidy_memory" in self.model.asked_for,
            "the heartbeat": self.model.beats > self.nights,
            "a skill": "Boil the water" in shown,
            "session_search": all(f"user: my secret is canary-{who}" in shown for who in WHO),
            "the hook that watches": watched["request"] and watched["end"] >= len(self.said) // 2,
            "the hook that changes": shown.count("(heard)") and shown.count("(read)"),
        }
        return [f"{name} did nothing" for name, done in did.items() if not done]

    def leaks(self) -> list[str]:
        """Secrets where they do not belong."""
        found = [
            f"a prompt of {who} knows {known_in(shown)}"
            for who, shown in self.model.shown
            if not any(known_in(shown) <= MAY_KNOW[one] for one in (WHO if who == "memory" else [who]))
        ]
        return found + [
            f"{who} reads of {known_in(text)}: {text[:300]}"
            for who in WHO
            for text in self.shown(who)
            if known_in(text) - MAY_KNOW[who]
        ]

    def reports(self) -> list[str]:
        """Ends that were not told once, where they belong."""
        found = [
            f"{who} heard of {heard} ends of {self.goals} goals"
            for who in WHO
            if (heard := self.told(who, "Goal reached")) != self.goals
        ]
        tasks = reported_tasks(self.home.data)
        states = Counter(task["state"] for task in tasks)
        found += [f"subagents ended {states}"] * (set(states) != {"done"})
        rows = "".join(file.read_text(encoding="utf-8") for file in self.home.sessions.rglob("*.jsonl"))
        told = r'"inbound": "subagent:(\w+):report"|"content": "Subagent (\w+): done'  # or waited for, as in a goal
        reports = Counter(report or inline for report, inline in re.findall(told, rows))
        found += [f"reports {reports}"] * (reports != Counter(task["id"] for task in tasks))
        goals = [goal["state"] for goal in goals_in(self.home.data)]
        found += [f"goals are {goals}"] * (set(goals) != {"done"})
        beats = [self.told("owner", f"beat-{number} ") for number in range(1, self.model.beats + 1)]
        found += [f"beats were told {beats} times"] * (
            max(beats) > 1 or sum(beats) < self.nights
        )  # a killed one is new, perhaps at night
        return found

    def memories(self) -> list[str]:
        """Memories that are not whole, and words that are nowhere."""
        found = [f"{who} remembers {self.memory(who)}" for who in WHO if known_in(self.memory(who)) != {who}]
        kept = "".join(file.read_text(encoding="utf-8") for file in self.home.sessions.rglob("*.jsonl"))
        return found + [
            f"{token} is in no session" for _, _, token in self.said if not re.search(rf"\b{token}\b", kept)
        ]


@pytest.mark.parametrize(
    ("hours", "seed"),
    [
        pytest.param(SHORT, 1, marks=pytest.mark.timeout(180), id="short"),
        *(
            pytest.param(long(seed), seed, marks=[pytest.mark.slow, pytest.mark.timeout(900)], id=f"long-{seed}")
            for seed in range(8)
        ),
    ],
)
async def test_a_day_with_everything_on(tmp_path: Path, hours: list[str], seed: int):
    with FakeModels(strict=False) as server:
        home = GatewayHome(tmp_path / "home", server)
        async with company(home) as mouths:
            day = Day(home, server, mouths, seed)
            try:
                await day.play(hours)
            finally:
                day.lives.close()

            problems = day.problems()

    assert not problems
