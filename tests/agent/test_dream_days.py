"""Any days of a memory: learnt, edited, tidied, forgotten and taken back in any order; what its owner wrote stays."""

import random
from collections import Counter
from pathlib import Path

import pytest

from nanobot.agent.memory.editor import MemoryEditor
from nanobot.agent.memory.facts import parse_facts
from nanobot.agent.memory.revisions import ChangedBy, ChangeSource
from nanobot.errors import NanobotError
from tests.support.memory import DreamHarness, tidying

WORDS = ["tea", "dog", "rex", "berlin", "oslo", "chess", "eva", "red", "blue", "jazz", "book", "sea"]
DAYS = ["learns", "writes", "works", "dreams", "dreams", "forgets", "undoes", "restores", "restores all"]


class Days:
    """One memory, and what its owner wrote into it and has not taken out."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.harness = DreamHarness(folder)
        self.any = random.Random(seed)
        self.editor = MemoryEditor(self.harness.memory, self.harness.clock)
        self.own: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.harness.learns("".join(f"- {self.any.choice(WORDS)} {number}.\n" for number in range(6)))

    @property
    def text(self) -> str:
        return self.harness.memory.read_long_term()

    async def live(self, what: str, day: int) -> None:
        """One day. Raises NanobotError where that cannot be."""
        memory, line = self.harness.memory, f"- {self.any.choice(WORDS)} of day {day}\n"
        self.harness.clock.advance(86_400)
        if what == "learns":
            self.harness.learns(self.text + line, "Talked.")
        elif what == "writes":
            own = f"my own words number{day}"
            lines = [*self.text.splitlines(keepends=True)]
            lines.insert(self.any.randrange(len(lines) + 1), f"- {own}\n")
            memory.memory_file.write_text("".join(lines), encoding="utf-8")
            memory.revisions.record()
            self.own.add(own)
        elif what == "works":
            memory.memory_file.write_text(self.text + line, encoding="utf-8")
            memory.revisions.record(ChangedBy.AGENT, ChangeSource("cli:direct"))
        elif what == "dreams":
            await self._dream(day)
        elif what == "forgets":
            gone = self.editor.forget(self.any.choice(parse_facts(self.text) or parse_facts("- x")).id)
            self.own -= {fact.text for fact in gone}
        elif what == "undoes":
            self.editor.undo()
            self.own = {one for one in self.own if one in self.text}
        else:
            standing = self.harness.active
            self.harness.editor.restore(standing[-1] if standing and what == "restores all" else None)

    async def _dream(self, day: int) -> None:
        self.harness.memory.append_history(f"Entry {day}.")
        facts = list({fact.key: fact for fact in parse_facts(self.text)}.values())
        ids = self.any.sample(range(len(facts)), min(len(facts), 4))
        edits = [
            {"action": self.any.choice(["drop", "archive"]), "ids": [f"f{at + 1}"], "why": "over"} for at in ids[:2]
        ]
        if len(ids) == 4:
            text = " ".join(facts[at].text for at in ids[2:])
            edits.append({"action": "replace", "ids": [f"f{at + 1}" for at in ids[2:]], "text": text})
        run = await self.harness.run(tidying(*edits), by_hand=True)
        self.harness.model.clear()
        self.counts[run.outcome.value] += 1


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 60), marks=pytest.mark.slow)])
async def test_through_any_days_what_its_owner_wrote_stays_and_what_cannot_be_done_changes_nothing(
    tmp_path: Path, seeds: range
):
    counts: Counter[str] = Counter()
    for seed in seeds:
        days = Days(tmp_path / str(seed), seed)
        for day in range(14):
            before, what = days.text, days.any.choice(DAYS)
            try:
                await days.live(what, day)
                counts[what] += 1
            except NanobotError:
                assert days.text == before
            assert all(one in days.text for one in days.own), f"seed {seed}, day {day}: {what}"
        counts += days.counts

    assert counts["done"]
    assert set(DAYS) <= set(counts) or len(seeds) < 10
