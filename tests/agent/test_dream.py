"""Dream, as a person meets it: `/dream` tidies by edits that are checked, and `/dream-restore` undoes it."""

import asyncio
import json
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nanobot.bus.events import InboundMessage
from nanobot.config.schema import Config
from nanobot.errors import BudgetExceededError
from nanobot.messages.types import Origin, Provenance
from nanobot.providers.base import LLMResponse
from nanobot.security.provenance import IN_PART
from nanobot.testing import Pause, calls
from tests.support.ledger_rows import rows_of
from tests.support.memory import FACTS, MERGED, OVER, remembering, replace_, tidying

GROUP = "telegram:-100"
LESSON = "\n## Lessons\n\n- [2026-02-26] exec `python`: no such command (3 times since 2026-02-20)\n"


# --- a pass


async def test_pass_merges_and_archives_facts_keeps_the_rest_and_says_what_it_did(tmp_path: Path):
    async with remembering(tmp_path) as it:
        it.learns()

        report = await it.dream(tidying(MERGED, OVER))
        again = await it.dream()

        assert it.text == "# Memory\n\n## People\n- Lives in Berlin.\n- Has a dog.\n\n## Plans\n"
        assert it.archive == "## 2026-02-26\n\n- Flies to Oslo on 2026-01-05.\n"
        assert "[f3] Has a dog. (since 2026-02-26)" in it.asked
        assert "[h1] [2026-02-26 13:21] Talked of home." in it.asked
        assert report.splitlines()[0] == "Pass 1, 2026-02-26 13:21: 2 changes, 109 to 62 bytes"
        assert "1 call, 900 tokens in, 60 out" in report
        assert "  - Home: Berlin.\n  + Lives in Berlin.\n" in report
        assert again == "Nothing new since 2026-02-26 13:21 that could change this memory; no model was called."
        assert await it.say("/dream-log") in report
        assert "from a conversation cli:direct" in await it.say("/memory why Oslo")
        assert "restored to before pass 1" in await it.say("/dream-restore 1")
        assert (it.text, it.archive) == (FACTS, "")
        assert len(it.model.requests) == 1
    assert [(row["cause"], row["session"]) for row in rows_of(tmp_path)] == [("dream", "dream")]


async def test_contradicted_fact_is_replaced_by_words_of_a_newer_entry_and_says_so(tmp_path: Path):
    async with remembering(tmp_path) as it:
        it.learns()
        it.learns(it.text, "[2026-02-26 14:00] The owner has moved to Hamburg.")

        await it.dream(calls(("tidy_memory", {"edits": json.dumps([replace_("f1 f2 h2", "Lives in Hamburg.")])})))

        why = await it.say("/memory why Hamburg")
        assert "Lives in Hamburg." in it.text and "Berlin" not in it.text
        assert "merged from earlier facts by Dream cli:direct" in why
        assert "It replaced: Lives in Berlin." in why


async def test_without_news_no_model_is_asked(tmp_path: Path):
    """A restart, an edit by hand, words of other people and a log without facts are no news."""
    async with remembering(tmp_path) as it:
        it.memory.append_history("Talked.")
        assert "no model was called" in await it.dream()
        it.learns()
        await it.dream(tidying())
        it.writes(it.text + "- By hand.\n")

    async with remembering(tmp_path) as it:
        it.memory.append_history(f"[2026-02-27 10:00] Eve hates dogs.\n{IN_PART[Provenance.PERSON]}")
        assert "no model was called" in await it.dream()
        it.memory.append_history("[2026-02-27 11:00] Talked of tea.")
        await it.dream(tidying())
        assert "Eve" not in it.asked


REFUSED = {
    "there is no 'f9'": replace_("f9", "Lives in Berlin."),
    "it names no fact": replace_("h1", "Talked of home."),
    "it changes nothing: the fact already says": replace_("f1", "The user lives in Berlin!"),
    "'munich' is in none of its sources": replace_("f1 f2", "Lives in Munich."),
    "'2027' is in none of its sources": replace_("f4", "Flies to Oslo on 2027."),
    "'not' is in none of its sources": replace_("f3", "Does not have a dog."),
    "its text is not a single line": replace_("f1 f2", "Lives\n- in Berlin"),
    "its text is a refusal or an error": replace_("f1 f2", "Error: 500"),
    "it drops a fact without a reason": {"action": "drop", "ids": ["f1"]},
    "there is no heading 'Work'": {"action": "move", "ids": ["f1"], "under": "Work"},
    "the fact is already under 'People'": {"action": "move", "ids": ["f1"], "under": "People"},
    "there is no action 'shout'": {"action": "shout", "ids": ["f1"]},
    "another fact already says 'Home: Berlin.'": replace_("f1 h1", "Home: Berlin."),
    "the owner wrote 'Never call before ten.' by hand": replace_("f5", "Never call."),
    "'Plays chess.' is pinned": {"action": "drop", "ids": ["f6"], "why": "x"},
    "'Wife is named Eva.' was forgotten on purpose": replace_("f4 h2", "Wife is named Eva."),
}


async def test_edit_that_breaks_a_rule_is_left_out_and_said(tmp_path: Path):
    async with remembering(tmp_path) as it:
        it.learns(FACTS + "- Plays chess.\n")
        it.learns(it.text + "- Wife is named Eva.\n", "[2026-02-26 15:00] The wife is named Eva.")
        await it.say("/memory pin chess")
        it.clock.advance(60)
        await it.say("/memory forget Eva")
        it.writes(it.text.replace("- Plays", "- Never call before ten.\n- Plays"))
        before = it.text

        report = await it.dream(tidying(*REFUSED.values(), {"action": "move", "ids": "[f3],", "under": "# Plans"}))

        assert "[f5] Never call before ten. (since 2026-02-26, by hand)" in it.asked
        told = [line for line in report.splitlines() if line.startswith("  ! ")]
        assert [reason for reason, line in zip(REFUSED, told, strict=True) if reason not in line] == []
        assert it.text == before.replace("- Has a dog.\n", "") + "- Has a dog.\n"


async def test_facts_of_before_the_first_revision_and_half_of_the_memory_at_most_go_to_the_archive(tmp_path: Path):
    async with remembering(tmp_path) as it:
        it.writes(FACTS)
        it.memory.append_history("Talked.")
        facts = [f"f{number}" for number in range(1, 5)]

        report = await it.dream(tidying(*({"action": "drop", "ids": [fact], "why": "over"} for fact in facts)))

        assert report.count("it would move half of the memory to the archive") == 2
        assert it.archive.count("- ") == 2


async def test_lessons_are_not_shown_and_ages_only_where_that_is_wanted(tmp_path: Path):
    async with remembering(tmp_path, annotateLineAges=False) as it:
        it.learns()
        it.learns_lesson(LESSON)

        await it.dream(tidying(MERGED))

        assert "no such command" not in it.asked
        assert "[f3] Has a dog.\n" in it.asked
        assert it.text.endswith(LESSON)


async def test_merged_fact_is_trusted_as_its_least_trusted_source(tmp_path: Path):
    async with remembering(tmp_path) as it:
        it.learns("- Has a dog.\n")
        it.learns("- Has a dog.\n- The dog is named Rex.\n", provenance=Provenance.MCP)
        it.learns("- The shop is open.\n", f"The shop is open on Monday.\n{IN_PART[Provenance.MCP]}", GROUP)
        shop = tidying(replace_("f1 h1", "The shop is open on Monday."))
        it.model.script(tidying(replace_("f1 f2", "Has a dog named Rex.")), shop)

        await it.dreams.run_all()

        said_in_group = InboundMessage("telegram", "zoe", "-100", "/memory why Monday", in_group=True)
        for why in (await it.say("/memory why Rex"), (await it.bot.run_turn(said_in_group)).text):
            assert "not the owner's own (mcp)" in why


# --- what goes wrong


BAD = {
    "an error text": LLMResponse("Error: 503 upstream"),
    "an error": LLMResponse("overloaded", [], "error", error_status_code=529),
    "no call": LLMResponse("No.", usage={"prompt_tokens": 800, "completion_tokens": 3}),
    "a wrong type": calls(("tidy_memory", {"edits": "drop everything"})),
    "cut JSON": LLMResponse(None, calls(("tidy_memory", {"edits": [MERGED]})).tool_calls, "length"),
    "bulk loss": tidying({"action": "drop", "ids": ["f1", "f2", "f3", "f4"], "why": "old"}),
    "all are one": tidying(replace_("f1 f2 f3 f4", "Lives in Berlin.")),
    "broken off": RuntimeError("socket closed"),
    "over budget": BudgetExceededError("The limit of today is reached."),
    "nothing that holds": tidying(replace_("f1", "Lives in Berlin")),
}


async def test_failure_changes_nothing_is_told_and_leaves_its_news_to_the_next_pass(tmp_path: Path):
    async with remembering(tmp_path) as it:
        it.learns()
        for count, answer in enumerate(BAD.values(), 1):
            assert "failed, nothing changed: " in await it.dream(answer)
            assert (it.text, it.archive) == (FACTS, "")
            assert f"Dream: failed {count} time" in await it.say("/status")

        assert "1 call, 800 tokens in" in await it.say("/dream-log 20")
        assert "1 change" in await it.dream(tidying(MERGED))
        assert "Talked of home." in it.asked
        assert "Dream:" not in await it.say("/status")


async def test_model_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("nanobot.agent.memory.dream._LIMIT_S", 0.02)
    async with remembering(tmp_path) as it:
        it.learns()

        assert "no answer within" in await it.dream(Pause())


async def test_memory_that_no_call_can_hold_is_not_asked_about(tmp_path: Path):
    config = {"agents": {"defaults": {"contextWindowTokens": 2_000}}}
    async with remembering(tmp_path, config=config) as it:
        it.learns("\n".join(f"- Fact number {number} of many that stand here." for number in range(150)))

        assert "dream.modelOverride" in await it.dream()


@pytest.mark.parametrize(
    ("settings", "lines", "passes", "shown", "not_shown"),
    [
        ({"maxBatchSize": 2, "maxIterations": 2}, [tidying()] * 2, 2, "Entry 2.", "Entry 4."),
        ({"maxBatchSize": 1, "maxTokens": 9_000}, [tidying(prompt=5_000)], 1, "Entry 0.", "Entry 1."),
        ({"maxBatchSize": 9}, [tidying()], 1, "Entry 4.", "Talked of home."),
    ],
    ids=["calls", "tokens", "all"],
)
async def test_run_stays_within_its_calls_and_tokens_and_the_next_one_goes_on(
    tmp_path: Path, settings: dict[str, Any], lines: list[LLMResponse], passes: int, shown: str, not_shown: str
):
    async with remembering(tmp_path, **settings) as it:
        it.learns()
        await it.dream(tidying())
        for number in range(5):
            it.memory.append_history(f"[2026-02-27 10:0{number}] Entry {number}.")

        report = await it.dream(*lines)

        assert report.count("Pass ") == passes
        assert ("left for the next run" in report) is (not_shown != "Talked of home.")
        assert shown in it.asked and not_shown not in it.asked
        if shown == "Entry 2.":
            await it.dream(tidying())
            assert "Entry 4." in it.asked
            assert "no model was called" in await it.dream()


async def test_only_the_end_is_shown_of_a_log_that_was_never_read_or_was_shortened(tmp_path: Path):
    async with remembering(tmp_path, maxBatchSize=3) as it:
        it.learns()
        for number in range(10):
            it.memory.append_history(f"[2026-02-27 10:0{number}] Entry {number}.")
        assert (await it.dream(tidying())).count("Pass ") == 1
        assert "Entry 7." in it.asked and "Entry 6." not in it.asked
        log = it.memory.history_file.read_text(encoding="utf-8")
        it.memory.history_file.write_text(log.replace("Entry 9.", "Nine."), encoding="utf-8")

        await it.dream(tidying())

        assert "Nine." in it.asked and "Entry 6." not in it.asked
        assert "no model was called" in await it.dream()


# --- while the model thinks


async def test_changes_made_while_the_model_thinks_are_kept(tmp_path: Path):
    async with remembering(tmp_path) as it:
        it.learns()
        it.learns(it.text + "- Wife: Eva.\n", "The wife is named Eva.")
        await it.say("/memory pin Oslo")
        edits = [MERGED, replace_("f3 h2", "Has a dog. Wife is Eva."), {**OVER, "ids": ["f4"]}]

        async with it.thinking(tidying(*edits), tidying()):
            await it.say("/memory forget Wife: Eva.")
            await it.say("/memory pin Lives in Berlin")
            it.writes(f"# Mine\n- New.\n{it.text}")
            it.memory.append_history("[2026-02-26 16:00] Said meanwhile.")

        assert it.text == (
            "# Mine\n- New.\n# Memory\n\n## People\n- Lives in Berlin. (pinned)\n- Home: Berlin.\n- Has a dog.\n\n"
            "## Plans\n- Flies to Oslo on 2026-01-05. (pinned)\n"
        )
        assert "Said meanwhile." in it.asked
        assert "changed in the meantime: Lives in Berlin." in await it.say("/dream-log")


async def test_pass_waits_for_no_lane_is_alone_in_every_process_and_ends_with_a_reset(tmp_path: Path):
    async with remembering(tmp_path) as it, remembering(tmp_path) as other:
        it.learns()
        pause = Pause()
        it.model.script(pause, "Hello.")
        dreaming = asyncio.create_task(it.say("/dream"))
        await pause.reached.wait()

        assert await it.say("hello") == "Hello."
        assert "already running" in await it.say("/dream")
        assert "already running" in await other.say("/dream")
        assert "Cleared" in await it.say("/reset --all")
        assert await dreaming == "It was cancelled."
        it.writes("- Never call before ten.\n")
        it.memory.append_history("Talked.")
        await it.dream(tidying())
        assert "[f1] Never call before ten. (since 2026-02-26, by hand)" in it.asked
        assert "Talked of home" not in it.asked, "of before the reset"


async def test_log_of_before_a_reset_is_no_news_though_there_was_no_fact_to_clear(tmp_path: Path):
    async with remembering(tmp_path) as it:
        await it.say("/reset --all")
        it.memory.append_history("Talked of home.")
        await it.say("/reset --all")
        assert (await it.say("/memory log")).count("reset") == 1
        it.writes("- Never call before ten.\n")
        it.memory.append_history("Talked.")

        await it.dream(tidying())

        assert "Talked." in it.asked
        assert "Talked of home" not in it.asked


# --- taken back


async def test_restore_takes_later_passes_with_it_and_keeps_what_others_changed(tmp_path: Path):
    async with remembering(tmp_path) as it:
        it.learns()
        await it.dream(tidying(MERGED))
        it.learns(it.text + "- Plays chess.\n", "Talked of chess.")
        await it.dream(tidying({"action": "archive", "ids": ["f3"], "why": "over"}))
        it.learns_lesson(LESSON)
        it.writes(it.text.replace("# Memory", "# My memory"))

        await it.say("/dream-restore 1")

        expected = f"{FACTS}- Plays chess.\n{LESSON}".replace("# Memory", "# My memory")
        assert sorted(it.text.splitlines()) == sorted(expected.splitlines())
        assert "no Dream pass" in await it.say("/dream-restore")


@pytest.mark.parametrize(
    ("edit", "steps", "after"),
    [
        (MERGED, ["/memory forget Lives in Berlin"], FACTS.replace("- Lives in Berlin.\n- Home: Berlin.\n", "")),
        (MERGED, ["/memory forget Lives in Berlin", "/memory undo"], FACTS),
        (replace_("f1 f2", "Lives in Berlin, home is Berlin."), ["Rome"], None),
    ],
    ids=["forgotten since", "forgotten and undone since", "edited since"],
)
async def test_restore_brings_back_nothing_forgotten_and_loses_no_later_edit(
    tmp_path: Path, edit: dict[str, Any], steps: list[str], after: str | None
):
    async with remembering(tmp_path) as it:
        it.learns()
        await it.dream(tidying(edit))
        it.clock.advance(60)
        for step in steps:
            if step.startswith("/"):
                await it.say(step)
            else:
                it.writes(it.text.replace("Lives in Berlin, home is Berlin.", "Lives in Rome."))

        told = await it.say("/dream-restore")

        if after is not None:
            assert it.text == after
        else:
            assert "was changed later and would be lost:\nLives in Berlin." in told
            assert "Rome" in it.text


async def test_undo_and_restore_bring_back_every_byte_of_both_files(tmp_path: Path):
    odd = b"\xef\xbb\xbf* Likes tea.\r\n- Plays \xff chess\r\n  and more\r\n\r\n- \xe6\x88\x91\r\n- A.\r\nText."
    async with remembering(tmp_path) as it:
        it.writes(odd.decode("utf-8", "surrogateescape"))
        it.memory.archive_file.write_bytes(b"- Older.")
        for back in ("/memory undo", "/dream-restore"):
            it.memory.append_history("[2026-02-26 16:00] Tea is green, liked.")
            archive = [{"action": "archive", "ids": [fact], "why": "over"} for fact in ("f2", "f5")]
            await it.dream(tidying(replace_("f1 h1", "Likes green tea."), *archive))
            assert b"green tea.\r\n" in it.memory.memory_file.read_bytes() and "Text." in it.archive

            await it.say(back)

            assert (it.memory.memory_file.read_bytes(), it.archive) == (odd, "- Older.")


async def test_facts_archived_by_others_since_stay_in_the_archive(tmp_path: Path):
    async with remembering(tmp_path) as it:
        it.learns()
        await it.dream(tidying(OVER))
        it.memory.budget_bytes = 60
        it.learns(it.text, "Talked.")
        it.learns(it.text + "- Plays chess.\n", "Talked of chess.")

        await it.say("/dream-restore")

        assert "Has a dog" in it.archive and "Oslo" not in it.archive


# --- the commands


NOTHING = {
    "/dream": "no model was called",
    "/dream-log": "Dream has tidied nothing here yet.",
    "/dream-log some": "'some' is not a number",
    "/dream-restore": "There is no Dream pass to restore.",
    "/dream-restore first": "'first' is not one",
    "/dream-restore 7": "There is no Dream pass to restore.",
}


async def test_command_without_anything_to_do_says_so(tmp_path: Path):
    async with remembering(tmp_path) as it:
        assert [command for command, answer in NOTHING.items() if answer not in await it.say(command)] == []


async def test_group_memory_is_tidied_for_its_members_and_restored_by_an_owner_or_who_asked(tmp_path: Path):
    telegram = {"channels": {"telegram": {"enabled": True, "token": "1:a", "allowFrom": ["*"]}}}
    async with remembering(tmp_path, tidying(MERGED), config=telegram) as it:

        async def say(text: str, who: str, **more: Any) -> str:
            return (await it.bot.run_turn(InboundMessage("telegram", who, "-100", text, in_group=True, **more))).text

        it.learns("- A secret.\n", "Owner's.")
        it.learns(chat=GROUP)

        assert await say("/dream", "zoe", origin=Origin.CRON) == "/dream has to be typed by a person."
        assert "+ Lives in Berlin." in await say("/dream", "zoe")
        assert "only an owner may restore it" in await say("/dream-restore", "ben")
        assert "restored to before pass 1" in await say("/dream-restore", "ann", provenance=Provenance.OWNER)
        assert "secret" not in str(it.model.requests)


# --- when


async def test_schedule_runs_at_four_once_a_day_with_news_and_wakes_once_an_hour(tmp_path: Path):
    async with remembering(tmp_path, tidying(MERGED), tidying()) as it:
        it.learns()
        await it.dream_by_day(14.6)
        assert it.model.requests == []

        await it.dream_by_day(0.2)
        it.learns(it.text, "Talked again.")
        await it.dream_by_day(23)
        assert (len(it.model.requests), it.clock.now().hour) == (1, 3)

        await it.dream_by_day(2)
        assert len(it.model.requests) == 2
        assert await it.dream_by_day(7 * 24) < 8 * 26
        assert len(it.model.requests) == 2
        assert "Home" not in it.text


@pytest.mark.parametrize(
    ("settings", "hours"),
    [
        ({"intervalH": 2, "cron": None}, 2),
        ({"cron": "30 * * * *", "intervalH": 9}, 0.2),
        ({"cron": "R 5 * * *"}, 14.7),
    ],
    ids=["interval", "cron", "no time of day: four"],
)
async def test_settings_of_the_original_say_when(tmp_path: Path, settings: dict[str, Any], hours: float):
    async with remembering(tmp_path, tidying(), **settings) as it:
        it.learns()

        await it.dream_by_day(hours - 0.1)
        assert it.model.requests == []
        await it.dream_by_day(0.2)
        assert len(it.model.requests) == 1


async def test_missed_run_is_done_once_after_a_start_or_when_the_machine_wakes(tmp_path: Path):
    async with remembering(tmp_path) as it:
        it.learns()
        await it.dream_by_day(1)

    async with remembering(tmp_path, tidying(), tidying(), at="2026-03-02T09:00") as it:
        await it.dream_by_day(0.1)
        await it.dream_by_day(12)
        assert len(it.model.requests) == 1

        it.learns(it.text, "Talked again.")
        slept: list[float] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            if len(slept) > 5:
                raise asyncio.CancelledError
            it.clock.advance(3 * 86_400 if len(slept) == 3 else min(seconds, 3600))

        with pytest.raises(asyncio.CancelledError):
            await it.dreams.run(sleep)
        assert len(it.model.requests) == 2


async def test_failure_backs_off_and_shows_as_a_problem_of_the_gateway(tmp_path: Path):
    async with remembering(tmp_path, *["no"] * 20, intervalH=2) as it:
        it.learns()
        tried: list[datetime] = []
        for _ in range(36):
            await it.dream_by_day(2)
            tried += [it.clock.now()] * (len(it.model.requests) - len(tried))

        assert "tidy_memory 0 times" in str(it.dreams.problem)
    waits = [(later - earlier).total_seconds() / 3600 for earlier, later in pairwise(tried)]
    assert 4 <= len(tried) <= 7
    assert waits == sorted(waits) and waits[-1] >= 16


async def test_each_memory_is_tidied_alone_and_none_by_schedule_where_it_is_switched_off(tmp_path: Path):
    odd = "matrix:!room:server.org"
    async with remembering(tmp_path, "Hi.", *[tidying()] * 3, enabled=False) as it:
        it.learns("- Owner's secret.\n", "Canary of the owner.")
        it.learns("- The group meets on Fridays.\n", "Talked in the group.", GROUP)
        it.learns("- Elsewhere.\n", "Talked elsewhere.", odd)
        await it.bot.run_turn(InboundMessage("matrix", "zoe", "!room:server.org", "hello", in_group=True))
        assert not it.dreams.enabled

        await it.dreams.run_all()

        texts = [str(request[1]["content"]) for request in it.model.requests[1:]]
    words = ("secret", "Fridays", "Elsewhere")
    assert sorted([word for word in words if word in text] for text in texts) == sorted([word] for word in words)
    assert sum("Canary" in text for text in texts) == 1


def test_cron_expression_that_is_none_is_refused():
    with pytest.raises(ValueError, match="cron expression"):
        Config.model_validate({"agents": {"defaults": {"dream": {"cron": "at night"}}}})
