"""Any days of a memory: learnt, edited, tidied, forgotten and taken back in any order; what its owner wrote stays."""

import random
from collections import Counter
from pathlib import Path

import pytest

from nanobot.agent.memory.facts import parse_facts
from tests.support.memory import MemoryBot, remembering, tidying

WORDS = ["tea", "dog", "rex", "berlin", "oslo", "chess", "eva", "red", "blue", "jazz", "book", "sea"]
DAYS = ["learns", "writes", "dreams", "dreams", "forgets", "undoes", "restores", "restores first"]
DONE = ("Pass", "Forgotten", "Undone", "The memory is restored")


async def live(it: MemoryBot, what: str, day: int, rng: random.Random) -> str:
    """One day. Return what nanobot says, or the words its owner wrote."""
    line = f"- {rng.choice(WORDS)} of day {day}\n"
    facts = list({fact.key: fact for fact in parse_facts(it.text)}.values())
    it.clock.advance(86_400)
    match what:
        case "learns":
            it.learns(it.text + line, "Talked.")
            return "Pass"
        case "writes":
            lines = it.text.splitlines(keepends=True)
            lines.insert(rng.randrange(len(lines) + 1), f"- my own words number{day}\n")
            it.writes("".join(lines))
            return f"my own words number{day}"
        case "forgets":
            return await it.say(f"/memory forget {rng.choice(facts).id if facts else 'x'}")
        case "undoes":
            return await it.say("/memory undo")
        case "dreams":
            it.memory.append_history(f"Entry {day}.")
            named = rng.sample(range(len(facts)), min(len(facts), 4))
            edits: list[dict[str, object]] = [
                {"action": rng.choice(["drop", "archive"]), "ids": [f"f{at + 1}"], "why": "over"} for at in named[:2]
            ]
            if len(named) == 4:
                text = " ".join(facts[at].text for at in named[2:])
                edits.append({"action": "replace", "ids": [f"f{at + 1}" for at in named[2:]], "text": text})
            return await it.dream(tidying(*edits))
    return await it.say("/dream-restore" if what == "restores" else "/dream-restore 1")


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 60), marks=pytest.mark.slow)])
async def test_owners_own_words_stay_through_any_days_and_what_is_refused_changes_nothing(tmp_path: Path, seeds: range):
    counts: Counter[str] = Counter()
    for seed in seeds:
        rng, own = random.Random(seed), set[str]()
        async with remembering(tmp_path / str(seed)) as it:
            it.learns("".join(f"- {rng.choice(WORDS)} {number}.\n" for number in range(6)))
            for day in range(14):
                before, what = it.text, rng.choice(DAYS)
                told = await live(it, what, day, rng)
                if what == "writes":
                    own.add(told)
                elif what in ("forgets", "undoes"):
                    own = {one for one in own if one in it.text or one not in told}
                if not told.startswith((*DONE, "my own")) or "failed, nothing changed" in told:
                    assert it.text == before
                else:
                    counts[what] += 1
                assert all(one in it.text for one in own), f"seed {seed}, day {day}: {what}"

    assert set(DAYS) <= set(counts) or len(seeds) < 10
