"""Dream: memory is tidied from what is new, by edits that are checked; without news, or after a failure, by nothing."""

import errno
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.agent.engine.spec import RunLimits
from nanobot.agent.memory.dream import DreamOutcome
from nanobot.agent.memory.edits import FactEdit, apply_edits
from nanobot.agent.memory.facts import parse_facts
from nanobot.agent.memory.revisions import ChangedBy, ChangeSource, DreamPass, PassOutcome
from nanobot.agent.scope import Scope
from nanobot.errors import BudgetExceededError, NanobotError
from nanobot.messages.types import Provenance
from nanobot.providers.base import LLMResponse
from nanobot.security.provenance import IN_PART
from nanobot.testing import Pause, calls
from tests.support.memory import FACTS, MERGED, OVER, DreamHarness, replace_, tidying

DONE, NOTHING, RESTING, FAILED = DreamOutcome.DONE, DreamOutcome.NOTHING, DreamOutcome.RESTING, DreamOutcome.FAILED


@pytest.fixture
def harness(tmp_path: Path) -> DreamHarness:
    found = DreamHarness(tmp_path)
    found.learns()
    return found


async def test_near_duplicates_are_merged_what_is_over_is_archived_and_the_rest_keeps_its_bytes(harness: DreamHarness):
    over = {"action": "archive", "ids": ["f4"], "why": "the day has passed"}

    run = await harness.run(tidying(MERGED, over))

    assert run.outcome is DONE
    assert harness.text == "# Memory\n\n## People\n- Lives in Berlin.\n- Has a dog.\n\n## Plans\n"
    assert harness.archive == "## 2026-02-26\n\n- Flies to Oslo on 2026-01-05.\n"
    assert "[f3] Has a dog. (since 2026-02-26)" in harness.asked
    assert "[h1] [2026-02-26 13:21] Talked of home." in harness.asked
    assert harness.model.causes == ["dream"]
    assert "from a conversation cli:direct" in harness.editor.why("Oslo")


async def test_a_pass_leaves_a_line_of_what_it_cost_and_did(harness: DreamHarness):
    await harness.run(tidying(MERGED))

    [one] = harness.passes()
    assert (one.number, one.outcome, one.at[:16]) == (1, PassOutcome.CHANGED, "2026-02-26T13:21")
    assert (one.model, one.calls, one.prompt_tokens, one.completion_tokens, one.entries) == ("usual", 1, 900, 60, 1)
    assert (one.bytes_before, one.bytes_after) == (len(FACTS), len(FACTS) - len("- Home: Berlin.\n"))
    assert [(edit.action, edit.before, edit.after) for edit in one.edits] == [
        ("replace", ["Lives in Berlin.", "Home: Berlin."], "Lives in Berlin.")
    ]


async def test_a_contradicted_fact_is_replaced_by_the_words_of_a_newer_entry(harness: DreamHarness):
    harness.learns(harness.text, "[2026-02-26 14:00] The owner has moved to Hamburg.")

    await harness.run(tidying(replace_("f1 f2 h2", "Lives in Hamburg.")))

    assert "Lives in Hamburg." in harness.text
    assert "Berlin" not in harness.text
    why = harness.editor.why("Hamburg")
    assert "merged from earlier facts by Dream cli:direct" in why
    assert "It replaced: Lives in Berlin." in why


async def test_a_restart_and_an_edit_by_hand_are_no_news(harness: DreamHarness):
    await harness.run(tidying())
    harness.memory.memory_file.write_text(harness.text + "- By hand.\n", encoding="utf-8")

    again = DreamHarness(harness.folder)

    assert (await again.run()).outcome is NOTHING


async def test_lessons_come_and_leave_by_code_and_no_pass_sees_them(harness: DreamHarness):
    harness.learns()
    lesson = "\n## Lessons\n\n- [2026-02-26] exec `python`: no such command (3 times since 2026-02-20)\n"
    harness.memory.revisions.change({"MEMORY.md": f"{harness.text}{lesson}".encode()}, ChangedBy.LESSON)

    await harness.run(tidying(MERGED))

    assert "no such command" not in harness.asked
    assert harness.text.endswith(lesson)


async def test_an_empty_memory_is_not_asked_about(tmp_path: Path):
    harness = DreamHarness(tmp_path)
    harness.memory.append_history("Talked.")

    assert (await harness.run()).outcome is NOTHING


BAD = {
    "an error text": LLMResponse("Error: 503 upstream"),
    "an error": LLMResponse("overloaded", [], "error", error_status_code=529),
    "a refusal": "I'm sorry, I can't help with that.",
    "no call": LLMResponse("All is well."),
    "a wrong type": calls(("tidy_memory", {"edits": "drop everything"})),
    "cut JSON": LLMResponse(None, calls(("tidy_memory", {"edits": [MERGED]})).tool_calls, "length"),
    "no JSON": calls(("tidy_memory", cast("Any", [1, 2]))),
    "bulk loss": tidying({"action": "drop", "ids": ["f1", "f2", "f3", "f4"], "why": "old"}),
    "broken off": RuntimeError("socket closed"),
    "over budget": BudgetExceededError("The limit of today is reached."),
    "nothing that holds": tidying(replace_("f1", "Lives in Berlin")),
}


@pytest.mark.parametrize("what", BAD)
async def test_a_failure_changes_nothing_is_kept_and_rests(harness: DreamHarness, what: str):
    before = harness.text

    run = await harness.run(BAD[what])

    assert (run.outcome, harness.text, harness.archive) == (FAILED, before, "")
    assert [one.outcome for one in harness.passes()] == [PassOutcome.FAILED]
    due = harness.dream.state()
    assert (due.failures, due.state["error"]) == (1, run.reason)
    assert (await harness.run()).outcome is RESTING
    assert (await harness.run(tidying(MERGED), by_hand=True)).outcome is DONE
    assert "Talked of home." in harness.asked, "the cursor had stayed"
    assert harness.dream.state().failures == 0


async def test_what_fails_again_rests_longer(harness: DreamHarness):
    rests: list[float] = []
    for _ in range(10):
        await harness.run("no")
        rests.append(harness.dream.state().at - harness.clock.now().timestamp())
        harness.clock.advance(rests[-1] - 1)
        assert (await harness.run()).outcome is RESTING
        harness.clock.advance(1)

    assert rests[:3] == [3600, 7200, 14400]
    assert rests[-1] == 7 * 86400
    assert (await harness.run(tidying())).outcome is DONE


async def test_a_model_that_never_answers_is_given_up(tmp_path: Path):
    harness = DreamHarness(tmp_path, limit_s=0.02)
    harness.learns()

    run = await harness.run(Pause())

    assert run.outcome is FAILED
    assert "no answer within" in run.reason


@pytest.mark.parametrize("turn", range(1, 9))
async def test_a_disk_that_fills_at_any_write_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turn: int
):
    from nanobot.security.files.open import FileLocation

    harness = DreamHarness(tmp_path)
    harness.learns()
    before, writes = harness.text, 0

    def around(name: str) -> None:
        usual = getattr(FileLocation, name)

        def write(*args: Any, **kwargs: Any) -> None:
            nonlocal writes
            writes += 1
            if writes >= turn:
                raise OSError(errno.ENOSPC, "No space left on device")
            usual(*args, **kwargs)

        disk.setattr(FileLocation, name, write)

    with monkeypatch.context() as disk:
        around("replace")
        around("append")
        run = await harness.run(tidying(MERGED, {"action": "archive", "ids": ["f4"], "why": "over"}))

    again = DreamHarness(harness.folder)
    again.memory.revisions.record()
    told = {one.outcome for one in again.passes() if one.outcome is not PassOutcome.FAILED}
    if again.text == before:
        assert told == set()
        assert again.archive == ""
    else:
        assert told == {PassOutcome.CHANGED}
        assert "Oslo" in again.archive
        assert run.passes[0].outcome is PassOutcome.CHANGED


async def test_nothing_that_was_edited_while_the_model_thought_is_lost(harness: DreamHarness):
    tidied = tidying(MERGED, replace_("f3", "Has a dog"), {"action": "drop", "ids": ["f4"], "why": "over"})
    edited = "# Mine\n- New.\n" + harness.text.replace("Home: Berlin.", "DreamHarness: Bonn.")

    async with harness.thinking(tidied) as work:
        harness.memory.memory_file.write_text(edited, encoding="utf-8")

    assert harness.text == edited.replace("- Flies to Oslo on 2026-01-05.\n", "")
    assert "changed in the meantime: Lives in Berlin." in work.result().passes[0].refused


async def test_what_was_forgotten_while_the_model_thought_is_not_written_again(harness: DreamHarness):
    harness.learns(harness.text + "- Wife: Eva.\n", "The wife is named Eva.")
    async with harness.thinking(tidying(replace_("f3 h2", "Has a dog. Wife is Eva."), MERGED)):
        harness.editor.forget("Wife: Eva.")

    assert "Eva" not in harness.text
    assert "Home: Berlin" not in harness.text


async def test_a_cancel_while_the_model_thinks_leaves_no_trace(harness: DreamHarness):
    before = harness.text
    async with harness.thinking() as work:
        work.cancel()

    assert work.cancelled()
    assert (harness.text, harness.passes()) == (before, [])
    harness.model.clear()
    assert (await harness.run(tidying())).outcome is DONE


async def test_two_at_once_are_one(harness: DreamHarness):
    async with harness.thinking() as work:
        other = await DreamHarness(harness.folder).run()
        work.cancel()

    assert other.outcome is DreamOutcome.BUSY


async def test_many_entries_go_in_batches_and_a_run_has_its_ceilings(tmp_path: Path):
    harness = DreamHarness(tmp_path, max_batch_size=2, max_iterations=2)
    harness.learns()
    await harness.run(tidying())
    for number in range(5):
        harness.memory.append_history(f"[2026-02-27 10:0{number}] Entry {number}.")

    run = await harness.run(tidying(), tidying())

    assert len(run.passes) == 2
    assert "left for the next run" in run.reason
    assert "Entry 2." in harness.asked
    assert "Entry 4." not in harness.asked
    assert (await harness.run(tidying())).outcome is DONE
    assert "Entry 4." in harness.asked
    assert (await harness.run()).outcome is NOTHING


async def test_a_run_stays_within_its_tokens(tmp_path: Path):
    harness = DreamHarness(tmp_path, max_batch_size=1, max_iterations=9, max_tokens=9_000)
    harness.learns()
    await harness.run(tidying())
    for number in range(3):
        harness.memory.append_history(f"[2026-02-27 10:0{number}] Entry {number}.")

    run = await harness.run(tidying(prompt=5_000))

    assert len(run.passes) == 1


async def test_a_memory_that_no_call_can_hold_is_not_asked_about(tmp_path: Path):
    harness = DreamHarness(tmp_path, limits=RunLimits(window_tokens=2_000))
    harness.learns("\n".join(f"- Fact number {number} of many that stand here." for number in range(150)))

    run = await harness.run()

    assert run.outcome is FAILED
    assert "dream.modelOverride" in run.reason


async def test_of_a_log_that_was_never_read_only_the_end_is_told(tmp_path: Path):
    harness = DreamHarness(tmp_path, max_batch_size=3)
    harness.learns()
    for number in range(10):
        harness.memory.append_history(f"[2026-02-27 10:0{number}] Entry {number}.")

    run = await harness.run(tidying())

    assert len(run.passes) == 1
    assert "Entry 7." in harness.asked
    assert "Entry 6." not in harness.asked


async def test_a_log_that_somebody_shortened_is_begun_again_at_its_end_once(tmp_path: Path):
    harness = DreamHarness(tmp_path, max_batch_size=2)
    harness.learns()
    for number in range(5):
        harness.memory.append_history(f"[2026-02-27 10:0{number}] Entry {number}.")
    await harness.run(tidying())
    log = harness.memory.history_file.read_text(encoding="utf-8")
    harness.memory.history_file.write_text(log.replace("Entry 4.", "Four."), encoding="utf-8")

    await harness.run(tidying())

    assert "Four." in harness.asked
    assert "Entry 2." not in harness.asked
    assert (await harness.run()).outcome is NOTHING


async def test_how_old_facts_are_is_told_where_that_is_wanted(tmp_path: Path):
    harness = DreamHarness(tmp_path, annotate_line_ages=False)
    harness.learns()

    await harness.run(tidying())

    assert "[f3] Has a dog.\n" in harness.asked


async def test_words_of_others_change_nothing_of_the_owners(harness: DreamHarness):
    await harness.run(tidying())
    harness.memory.append_history(f"[2026-02-27 10:00] Eve says: the owner hates dogs.\n{IN_PART[Provenance.PERSON]}")

    assert (await harness.run()).outcome is NOTHING

    harness.memory.append_history("[2026-02-27 11:00] Talked of tea.")
    await harness.run(tidying())
    assert "Eve" not in harness.asked


async def test_a_merged_fact_is_trusted_as_its_least_trusted_source(tmp_path: Path):
    harness = DreamHarness(tmp_path)
    harness.learns("- Has a dog.\n", provenance=Provenance.OWNER)
    harness.learns("- Has a dog.\n- The dog is named Rex.\n", provenance=Provenance.MCP)

    await harness.run(tidying(replace_("f1 f2", "Has a dog named Rex.")))

    origin = harness.memory.revisions.origins()
    assert [one.details["provenance"] for one in origin.values() if one.details["text"] == "Has a dog named Rex."] == [
        "mcp"
    ]


async def test_what_was_forgotten_does_not_come_back(harness: DreamHarness):
    harness.learns(
        harness.text + "- Wife is named Eva.\n- Married since 2019.\n", "[2026-02-26 15:00] The wife is named Eva."
    )
    harness.clock.advance(60)
    harness.editor.forget("Wife is named Eva.")

    run = await harness.run(tidying(replace_("f5 h2", "Married since 2019. Wife is named Eva."), MERGED))

    assert "was forgotten on purpose" in run.passes[0].refused[0]
    assert "Eva" not in harness.text


async def test_what_its_owner_wrote_by_hand_stays_word_for_word(harness: DreamHarness):
    harness.memory.memory_file.write_text(harness.text + "- Never call before ten.\n", encoding="utf-8")

    run = await harness.run(
        tidying(replace_("f5", "Never call."), {"action": "drop", "ids": ["f5"], "why": "x"}, MERGED)
    )

    assert "[f5] Never call before ten. (since 2026-02-26, by hand)" in harness.asked
    assert "- Never call before ten.\n" in harness.text
    assert [one.partition(": ")[2] for one in run.passes[0].refused] == [
        "the owner wrote 'Never call before ten.' by hand"
    ] * 2


async def test_what_its_owner_writes_after_a_reset_is_by_hand(harness: DreamHarness):
    harness.editor.clear()
    harness.memory.memory_file.write_text("- Never call before ten.\n", encoding="utf-8")
    harness.memory.append_history("Talked.")

    await harness.run(tidying())

    assert "[f1] Never call before ten. (since 2026-02-26, by hand)" in harness.asked


async def test_what_stood_there_before_the_book_goes_to_the_archive_and_nowhere_else(tmp_path: Path):
    harness = DreamHarness(tmp_path)
    harness.memory.write_long_term(FACTS)
    harness.memory.revisions.record()
    harness.memory.append_history("Talked.")

    await harness.run(tidying({"action": "drop", "ids": ["f4"], "why": "over"}))

    assert "Oslo" not in harness.text
    assert "Oslo" in harness.archive


REFUSED = {
    "there is no 'f9'": replace_("f9", "Lives in Berlin."),
    "it names no fact": replace_("h1", "Talked of home."),
    "it changes nothing": replace_("f1", "The user lives in Berlin!"),
    "'munich' is in none of its sources": replace_("f1 f2", "Lives in Munich."),
    "'2027' is in none of its sources": replace_("f4", "Flies to Oslo on 2027."),
    "'not' is in none of its sources": replace_("f3", "Does not have a dog."),
    "its text is not a single line": replace_("f1 f2", "Lives\n- in Berlin"),
    "is a refusal or an error": replace_("f1 f2", "Error: 500"),
    "without a reason": {"action": "drop", "ids": ["f1"]},
    "there is no heading 'Work'": {"action": "move", "ids": ["f1"], "under": "Work"},
    "the fact is already under 'People'": {"action": "move", "ids": ["f1"], "under": "People"},
    "there is no action 'shout'": {"action": "shout", "ids": ["f1"]},
    "another fact already says 'Home: Berlin.'": replace_("f1 h1", "Home: Berlin."),
}


@pytest.mark.parametrize("reason", REFUSED)
async def test_an_edit_that_breaks_a_rule_is_left_out_and_said(harness: DreamHarness, reason: str):
    before = harness.text

    run = await harness.run(tidying(REFUSED[reason], {"action": "move", "ids": ["f3"], "under": "Plans"}))

    assert reason in run.passes[0].refused[0]
    moved = before.replace("- Has a dog.\n", "").replace("01-05.\n", "01-05.\n- Has a dog.\n")
    assert harness.text == moved


async def test_a_restore_takes_later_passes_with_it_and_keeps_what_others_changed(harness: DreamHarness):
    before = harness.text
    await harness.run(tidying(MERGED))
    harness.learns(harness.text + "- Plays chess.\n", "Talked of chess.")
    await harness.run(tidying({"action": "archive", "ids": ["f3"], "why": "over"}))
    harness.memory.memory_file.write_text(harness.text.replace("# Memory", "# My memory"), encoding="utf-8")

    harness.editor.restore(1)

    expected = before.replace("# Memory", "# My memory") + "- Plays chess.\n"
    assert sorted(harness.text.splitlines()) == sorted(expected.splitlines())
    with pytest.raises(NanobotError, match="no Dream pass"):
        harness.editor.restore()


async def test_a_lesson_that_was_learned_since_stays_after_a_restore(harness: DreamHarness):
    before = harness.text
    await harness.run(tidying(MERGED, {"action": "archive", "ids": ["f4"], "why": "over"}))
    lesson = "\n## Lessons\n\n- [2026-02-26] exec `python`: no such command (3 times since 2026-02-20)\n"
    harness.memory.revisions.change({"MEMORY.md": f"{harness.text}{lesson}".encode()}, ChangedBy.LESSON)

    harness.editor.restore()

    assert sorted(harness.text.splitlines()) == sorted(f"{before}{lesson}".splitlines())


async def test_a_restore_that_would_lose_a_later_edit_is_refused(harness: DreamHarness):
    await harness.run(tidying(replace_("f1 f2", "Lives in Berlin, home is Berlin.")))
    apply_edits = harness.text.replace("Lives in Berlin, home is Berlin.", "Lives in Rome.")
    harness.memory.memory_file.write_text(apply_edits, encoding="utf-8")

    with pytest.raises(NanobotError, match=r"changed later.*\n.*Lives in Berlin\."):
        harness.editor.restore()

    assert "Rome" in harness.text


async def test_what_was_forgotten_since_is_not_brought_back_by_a_restore(harness: DreamHarness):
    await harness.run(tidying(MERGED))
    harness.clock.advance(60)
    harness.editor.forget("Lives in Berlin")

    harness.editor.restore()

    assert "Berlin" not in harness.text


async def test_what_was_done_and_taken_back_since_a_pass_is_neither_done_nor_lost_by_its_restore(harness: DreamHarness):
    before = harness.text
    await harness.run(tidying(MERGED))
    harness.editor.forget("Lives in Berlin")
    harness.editor.undo()

    harness.editor.restore()

    assert harness.text == before


async def test_an_undo_of_the_memory_takes_a_pass_back_too(harness: DreamHarness):
    before = harness.text
    await harness.run(tidying(MERGED, OVER))
    archived = harness.archive

    undone = harness.editor.undo()

    assert "Oslo" in archived
    assert [(change.by, change.file) for change in undone] == [
        (ChangedBy.DREAM, "ARCHIVE.md"),
        (ChangedBy.DREAM, "MEMORY.md"),
    ]
    assert (harness.text, harness.archive) == (before, "")
    assert harness.active == []


async def test_what_consolidation_archived_since_stays_in_the_archive_after_a_restore(harness: DreamHarness):
    await harness.run(tidying({"action": "archive", "ids": ["f4"], "why": "over"}))
    fact = harness.editor.facts()[0].fact
    harness.memory.revisions.change({"MEMORY.md": b"- Has a dog.\n"}, ChangedBy.CONSOLIDATION, archived=[fact])

    harness.editor.restore()

    assert harness.archive.lstrip() == "## 2026-02-26\n\n- Lives in Berlin.\n"


async def test_what_was_said_and_written_while_the_model_thought_is_new_to_the_next_pass(harness: DreamHarness):
    async with harness.thinking(tidying(MERGED), tidying()):
        harness.memory.append_history("[2026-02-26 16:00] Said meanwhile.")
        harness.memory.memory_file.write_text(harness.text + "- Written meanwhile.\n", encoding="utf-8")
        harness.memory.revisions.record(ChangedBy.AGENT, ChangeSource("cli:direct"))

    assert "Said meanwhile." in harness.asked
    assert len(harness.model.requests) == 2
    assert "- Written meanwhile.\n" in harness.text


async def test_a_failure_says_what_it_cost(harness: DreamHarness):
    await harness.run(LLMResponse("No.", usage={"prompt_tokens": 800, "completion_tokens": 3}))
    await harness.run(RuntimeError("socket closed"), by_hand=True)

    assert [(one.calls, one.prompt_tokens) for one in harness.passes()] == [(0, 0), (1, 800)]


@pytest.mark.parametrize("edits", [[MERGED], MERGED, json.dumps([MERGED]), [{**MERGED, "ids": "f1, f2"}]])
async def test_a_call_may_be_written_a_little_otherwise(harness: DreamHarness, edits: object):
    await harness.run(calls(("tidy_memory", {"edits": edits})))

    assert "Home" not in harness.text


async def test_many_facts_that_are_said_to_be_one_are_a_loss(harness: DreamHarness):
    harness.learns(harness.text + "- Plays chess.\n- Reads novels.\n", "Talked of games.")

    run = await harness.run(tidying(replace_("f1 f2 f3 f4 f5 f6", "Lives in Berlin.")))

    assert run.outcome is FAILED
    assert "facts from MEMORY.md at once" in run.reason


async def test_a_fact_that_is_contradicted_may_become_a_short_one(harness: DreamHarness):
    harness.learns("- Plays chess with Ann on Mondays and Fridays.\n", "Ann has moved; chess is on Sundays now.")

    await harness.run(tidying(replace_("f1 h2", "Chess on Sundays.")))

    assert [fact.text for fact in parse_facts(harness.text)] == ["Chess on Sundays."]


async def test_of_a_memory_that_is_over_half_goes_to_the_archive_at_once(harness: DreamHarness):
    over = [{"action": "archive", "ids": [f"f{number}"], "why": "over"} for number in range(1, 5)]

    run = await harness.run(tidying(*over))

    assert [len(run.passes[0].edits), len(run.passes[0].refused)] == [2, 2]
    assert harness.archive.count("- ") == 2


async def test_in_a_chat_what_a_tool_of_others_said_is_trusted_no_more_in_a_merged_fact(tmp_path: Path):
    harness = DreamHarness(tmp_path, scope=Scope("telegram:-100"))
    harness.learns("- The shop is open.\n", f"The shop is open on Monday.\n{IN_PART[Provenance.MCP]}")

    await harness.run(tidying(replace_("f1 h1", "The shop is open on Monday.")))

    [told] = [one.details for key, one in harness.memory.revisions.origins().items() if "monday" in key]
    assert told["provenance"] == "mcp"


LINES = st.sampled_from(
    [
        b"- Likes tea.",
        b"- Has a dog.",
        b"* Plays \xff chess",
        b"## People",
        b"",
        b"  and more",
        b"- Is \xe6\x88\x91",
        b"Text.",
    ]
)


@given(
    lines=st.lists(LINES, min_size=1, max_size=9),
    end=st.sampled_from([b"\n", b"\r\n"]),
    mark=st.sampled_from([b"", b"\xef\xbb\xbf"]),
    choice=st.lists(st.sampled_from(["drop", "archive", "replace"]), min_size=1, max_size=3),
    archive=st.sampled_from([None, b"- Old.", b"## Old\n\n- Older.\n"]),
)
def test_whatever_a_pass_changed_of_whatever_bytes_is_restored_byte_for_byte(
    tmp_path: Path, lines: list[bytes], end: bytes, mark: bytes, choice: list[str], archive: bytes | None
):
    with TemporaryDirectory(dir=tmp_path) as folder:
        harness = DreamHarness(Path(folder))
        harness.memory.memory_dir.mkdir(parents=True)
        raw = mark + end.join(lines)
        harness.memory.memory_file.write_bytes(raw)
        if archive is not None:
            harness.memory.archive_file.write_bytes(archive)
        found = {fact.key: fact for fact in parse_facts(raw.decode("utf-8", "surrogateescape").removeprefix("\ufeff"))}
        edits = [
            (what, FactEdit((fact.key,), "Says it otherwise." if what == "replace" else ""), fact)
            for what, fact in zip(choice, found.values(), strict=False)
        ]
        text, done = apply_edits(raw.decode("utf-8", "surrogateescape"), [edit for _, edit, _ in edits])
        if not done:
            return
        harness.memory.revisions.record()
        data = text.encode("utf-8", "surrogateescape")
        archived = [fact for what, edit, fact in edits if what == "archive" and edit in done]
        one = DreamPass(1, "2026-02-26T13:21", PassOutcome.CHANGED)
        harness.memory.revisions.change({"MEMORY.md": data}, ChangedBy.DREAM, archived=archived, dream=one)
        assert harness.memory.memory_file.read_bytes() == data

        harness.editor.restore()

        assert harness.memory.memory_file.read_bytes() == raw
        assert (harness.memory.archive_file.read_bytes() if harness.memory.archive_file.exists() else None) == archive


async def test_a_pinned_fact_is_neither_merged_nor_archived_also_if_it_is_pinned_while_the_model_thinks(
    harness: DreamHarness,
):
    harness.editor.pin("Oslo")

    async with harness.thinking(tidying(MERGED, OVER)):
        harness.editor.pin("Lives in Berlin")

    assert "- Flies to Oslo on 2026-01-05. (pinned)" in harness.text
    assert "- Lives in Berlin. (pinned)" in harness.text
    assert "- Home: Berlin." in harness.text
