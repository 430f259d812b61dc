"""Dream: memory is tidied from what is new, by edits that are checked; without news, or after a failure, by nothing."""

import asyncio
import errno
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nanobot.agent.engine.spec import Model, RunLimits
from nanobot.agent.memory.dream import Dream, DreamOutcome, DreamPolicy, DreamRun
from nanobot.agent.memory.dream_edits import AcceptedEdit, EditAction
from nanobot.agent.memory.dream_log import DreamPass, PassOutcome
from nanobot.agent.memory.editor import MemoryEditor
from nanobot.agent.memory.edits import FactEdit, apply_edits
from nanobot.agent.memory.facts import parse_facts
from nanobot.agent.memory.revisions import ChangedBy, ChangeSource
from nanobot.agent.memory.store import MemoryStore
from nanobot.agent.scope import Scope
from nanobot.errors import BudgetExceededError, NanobotError
from nanobot.messages.types import Provenance
from nanobot.providers.base import LLMResponse, call_context
from nanobot.security.provenance import IN_PART
from nanobot.testing import Pause, ScriptedProvider, calls
from nanobot.utils.clock import FrozenClock

DONE, NOTHING, RESTING, FAILED = DreamOutcome.DONE, DreamOutcome.NOTHING, DreamOutcome.RESTING, DreamOutcome.FAILED
FACTS = (
    "# Memory\n\n## People\n- Lives in Berlin.\n- Home: Berlin.\n- Has a dog.\n\n"
    "## Plans\n- Flies to Oslo on 2026-01-05.\n"
)


def tidying(*edits: dict[str, Any], prompt: int = 900, completion: int = 60) -> LLMResponse:
    response = calls(("tidy_memory", {"edits": list(edits)}))
    return LLMResponse(
        None, response.tool_calls, "tool_calls", {"prompt_tokens": prompt, "completion_tokens": completion}
    )


def replace_(ids: str, text: str) -> dict[str, Any]:
    return {"action": "replace", "ids": ids.split(), "text": text}


MERGED = replace_("f1 f2", "Lives in Berlin.")


class Asked(ScriptedProvider):
    """Notes what each call was for."""

    def __init__(self) -> None:
        super().__init__()
        self.causes: list[str] = []

    async def chat_stream(self, *args: Any, **kwargs: Any) -> Any:
        self.causes.append(call_context().cause)
        async for delta in super().chat_stream(*args, **kwargs):
            yield delta


@dataclass
class Models:
    """The one model, whatever is wanted."""

    provider: ScriptedProvider
    limits: RunLimits = field(default_factory=RunLimits)
    wanted: list[str | None] = field(default_factory=list)

    async def get(self, wanted: str | None) -> Model:
        self.wanted.append(wanted)
        return Model(self.provider, "scripted", wanted or "usual", limits=self.limits)


class Home:
    """A memory with some facts that a conversation brought, and who tidies it."""

    def __init__(
        self, folder: Path, *, scope: Scope | None = None, limits: RunLimits | None = None, **policy: Any
    ) -> None:
        self.folder = folder
        self.clock = FrozenClock(datetime(2026, 2, 26, 13, 21, tzinfo=UTC))
        self.memory = MemoryStore(folder, clock=self.clock, scope=scope or Scope())
        self.model = Asked()
        self.models = Models(self.model, limits or RunLimits())
        self.dream = Dream(self.memory, self.models, self.clock, DreamPolicy(**policy))

    def learns(self, update: str = FACTS, entry: str = "Talked of home.", **source: Any) -> None:
        """A consolidation brings this."""
        stands = self.memory.read_for_update()
        self.memory.apply_update(entry, update, instead_of=stands, source=ChangeSource("cli:direct", **source))

    async def run(self, *lines: Any, by_hand: bool = False) -> DreamRun:
        self.model.script(*lines)
        return await self.dream.run(by_hand=by_hand)

    @property
    def text(self) -> str:
        return self.memory.memory_file.read_bytes().decode()

    @property
    def archive(self) -> str:
        return self.memory.archive_file.read_text(encoding="utf-8") if self.memory.archive_file.exists() else ""

    @property
    def asked(self) -> str:
        return str(self.model.requests[-1][1]["content"])

    def passes(self) -> list[DreamPass]:
        return self.dream.log.passes()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = Home(tmp_path)
    found.learns()
    return found


async def test_near_duplicates_are_merged_what_is_over_is_archived_and_the_rest_keeps_its_bytes(home: Home):
    over = {"action": "archive", "ids": ["f4"], "why": "the day has passed"}

    run = await home.run(tidying(MERGED, over))

    assert run.outcome is DONE
    assert home.text == "# Memory\n\n## People\n- Lives in Berlin.\n- Has a dog.\n\n## Plans\n"
    assert home.archive == "## 2026-02-26\n\n- Flies to Oslo on 2026-01-05.\n"
    assert "[f3] Has a dog. (since 2026-02-26)" in home.asked
    assert "[h1] [2026-02-26 13:21] Talked of home." in home.asked
    assert home.model.causes == ["dream"]


async def test_a_pass_leaves_a_line_of_what_it_cost_and_did(home: Home):
    await home.run(tidying(MERGED))

    [one] = home.passes()
    assert (one.number, one.outcome, one.at[:16]) == (1, PassOutcome.CHANGED, "2026-02-26T13:21")
    assert (one.model, one.calls, one.prompt_tokens, one.completion_tokens, one.entries) == ("usual", 1, 900, 60, 1)
    assert (one.bytes_before, one.bytes_after) == (len(FACTS), len(FACTS) - len("- Home: Berlin.\n"))
    assert [(edit.action, edit.before, edit.after) for edit in one.edits] == [
        ("replace", ["Lives in Berlin.", "Home: Berlin."], "Lives in Berlin.")
    ]


async def test_a_contradicted_fact_is_replaced_by_the_words_of_a_newer_entry(home: Home):
    home.learns(home.text, "[2026-02-26 14:00] The owner has moved to Hamburg.")

    await home.run(tidying(replace_("f1 f2 h2", "Lives in Hamburg.")))

    assert "Lives in Hamburg." in home.text
    assert "Berlin" not in home.text
    why = MemoryEditor(home.memory, home.clock).why("Hamburg")
    assert "merged from earlier facts by Dream cli:direct" in why
    assert "It replaced: Lives in Berlin." in why


@pytest.mark.parametrize("answer", [tidying(), tidying(MERGED)])
async def test_without_new_history_no_model_is_asked(home: Home, answer: LLMResponse):
    await home.run(answer)

    for _ in range(7 * 24):
        home.clock.advance(3600)
        assert (await home.run()).outcome is NOTHING

    assert len(home.model.requests) == 1
    assert (await home.run(by_hand=True)).outcome is NOTHING


async def test_a_restart_and_an_edit_by_hand_are_no_news(home: Home):
    await home.run(tidying())
    home.memory.memory_file.write_text(home.text + "- By hand.\n", encoding="utf-8")

    again = Home(home.folder)

    assert (await again.run()).outcome is NOTHING


async def test_facts_that_the_agent_wrote_in_a_turn_are_news(home: Home):
    await home.run(tidying())
    home.memory.memory_file.write_text(home.text + "- Plays chess.\n", encoding="utf-8")
    home.memory.record_changes(ChangedBy.AGENT, ChangeSource("cli:direct"))

    run = await home.run(tidying())

    assert run.outcome is DONE
    assert "Plays chess" in home.asked
    assert (await home.run()).outcome is NOTHING


async def test_lessons_come_and_leave_by_code_and_no_pass_sees_them(home: Home):
    home.learns()
    lesson = "\n## Lessons\n\n- [2026-02-26] exec `python`: no such command (3 times since 2026-02-20)\n"
    home.memory.change(home.memory.memory_file, f"{home.text}{lesson}".encode(), ChangedBy.LESSON)

    await home.run(tidying(MERGED))

    assert "no such command" not in home.asked
    assert home.text.endswith(lesson)


async def test_an_empty_memory_is_not_asked_about(tmp_path: Path):
    home = Home(tmp_path)
    home.memory.append_history("Talked.")

    assert (await home.run()).outcome is NOTHING


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
    "too many": tidying(*[MERGED] * 61),
}


@pytest.mark.parametrize("what", BAD)
async def test_a_failure_changes_nothing_is_kept_and_rests(home: Home, what: str):
    before = home.text

    run = await home.run(BAD[what])

    assert (run.outcome, home.text, home.archive) == (FAILED, before, "")
    assert [one.outcome for one in home.passes()] == [PassOutcome.FAILED]
    state = home.dream.state()
    assert state.failures == 1
    assert state.error == run.reason
    assert (await home.run()).outcome is RESTING
    assert (await home.run(tidying(MERGED), by_hand=True)).outcome is DONE
    assert "Talked of home." in home.asked, "the cursor had stayed"
    assert home.dream.state().failures == 0


async def test_what_fails_again_rests_longer_and_something_new_ends_the_rest(home: Home):
    rests: list[float] = []
    for _ in range(10):
        await home.run("no")
        rests.append(home.dream.state().rests_until - home.clock.now().timestamp())
        home.clock.advance(rests[-1] - 1)
        assert (await home.run()).outcome is RESTING
        home.clock.advance(1)

    assert rests[:3] == [3600, 7200, 14400]
    assert rests[-1] == 7 * 86400
    await home.run("no")
    home.memory.append_history("Something new.")
    assert (await home.run(tidying())).outcome is DONE


async def test_a_model_that_never_answers_is_given_up(tmp_path: Path):
    home = Home(tmp_path, limit_s=0.02)
    home.learns()

    run = await home.run(Pause())

    assert run.outcome is FAILED
    assert "no answer within" in run.reason


async def test_a_full_disk_changes_nothing_and_the_next_try_goes_on(home: Home, monkeypatch: pytest.MonkeyPatch):
    before = home.text

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("nanobot.security.files.open.FileLocation.replace", full)
        disk.setattr("nanobot.security.files.open.FileLocation.append", full)
        run = await home.run(tidying(MERGED))
        assert (await home.run()).outcome is RESTING

    assert run.outcome is FAILED
    assert "No space left" in run.reason
    assert home.text == before
    assert (await home.run(tidying(MERGED), by_hand=True)).outcome is DONE


@pytest.mark.parametrize("turn", range(1, 9))
async def test_a_disk_that_fills_at_any_write_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turn: int
):
    from nanobot.security.files.open import FileLocation

    home = Home(tmp_path)
    home.learns()
    before, writes = home.text, 0

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
        run = await home.run(tidying(MERGED, {"action": "archive", "ids": ["f4"], "why": "over"}))

    again = Home(home.folder)
    again.dream.changes.recover()
    told = {one.outcome for one in again.passes() if one.outcome is not PassOutcome.FAILED}
    if again.text == before:
        assert told <= {PassOutcome.BROKEN_OFF}
    else:
        assert told == {PassOutcome.CHANGED}
        assert "Oslo" in again.archive
        assert run.passes[0].outcome is PassOutcome.CHANGED


async def test_nothing_that_was_edited_while_the_model_thought_is_lost(home: Home):
    pause = Pause()
    home.model.script(
        pause, tidying(MERGED, replace_("f3", "Has a dog"), {"action": "drop", "ids": ["f4"], "why": "over"})
    )
    work = asyncio.create_task(home.dream.run())
    await pause.reached.wait()
    apply_edits = "# Mine\n- New.\n" + home.text.replace("Home: Berlin.", "Home: Bonn.")
    home.memory.memory_file.write_text(apply_edits, encoding="utf-8")

    pause.resume.set()
    run = await work

    assert home.text == apply_edits.replace("- Flies to Oslo on 2026-01-05.\n", "")
    assert "changed in the meantime: Lives in Berlin." in run.passes[0].refused


async def test_what_was_forgotten_while_the_model_thought_is_not_written_again(home: Home):
    home.learns(home.text + "- Wife: Eva.\n", "The wife is named Eva.")
    pause = Pause()
    home.model.script(pause, tidying(replace_("f3 h2", "Has a dog. Wife is Eva."), MERGED))
    work = asyncio.create_task(home.dream.run())
    await pause.reached.wait()
    MemoryEditor(home.memory, home.clock).forget("Wife: Eva.")

    pause.resume.set()
    await work

    assert "Eva" not in home.text
    assert "Home: Berlin" not in home.text


async def test_a_cancel_while_the_model_thinks_leaves_no_trace(home: Home):
    pause, before = Pause(), home.text
    home.model.script(pause)
    work = asyncio.create_task(home.dream.run())
    await pause.reached.wait()

    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work

    assert (home.text, home.passes()) == (before, [])
    home.model.clear()
    assert (await home.run(tidying())).outcome is DONE


async def test_two_at_once_are_one(home: Home):
    pause = Pause()
    home.model.script(pause)
    work = asyncio.create_task(home.dream.run())
    await pause.reached.wait()

    other = await Home(home.folder).run()
    same = await home.dream.run()

    assert (other.outcome, same.outcome) == (DreamOutcome.BUSY, DreamOutcome.BUSY)
    await home.dream.break_off()
    assert (await work).outcome is NOTHING


async def test_many_entries_go_in_batches_and_a_run_has_its_ceilings(tmp_path: Path):
    home = Home(tmp_path, batch=2, max_calls=2)
    home.learns()
    await home.run(tidying())
    for number in range(5):
        home.memory.append_history(f"[2026-02-27 10:0{number}] Entry {number}.")

    run = await home.run(tidying(), tidying())

    assert len(run.passes) == 2
    assert "left for the next run" in run.reason
    assert "Entry 2." in home.asked
    assert "Entry 4." not in home.asked
    assert (await home.run(tidying())).outcome is DONE
    assert "Entry 4." in home.asked
    assert (await home.run()).outcome is NOTHING


async def test_a_run_stays_within_its_tokens(tmp_path: Path):
    home = Home(tmp_path, batch=1, max_calls=9, max_tokens=9_000)
    home.learns()
    await home.run(tidying())
    for number in range(3):
        home.memory.append_history(f"[2026-02-27 10:0{number}] Entry {number}.")

    run = await home.run(tidying(prompt=5_000))

    assert len(run.passes) == 1


async def test_a_memory_that_no_call_can_hold_is_not_asked_about(tmp_path: Path):
    home = Home(tmp_path, limits=RunLimits(window_tokens=2_000))
    home.learns("\n".join(f"- Fact number {number} of many that stand here." for number in range(150)))

    run = await home.run()

    assert run.outcome is FAILED
    assert "dream.modelOverride" in run.reason


async def test_memory_that_an_editor_empties_while_its_pass_is_shortened_ends_the_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    home = Home(tmp_path, limits=RunLimits(window_tokens=2_000))
    home.learns("\n".join(f"- Fact number {number} of many that stand here." for number in range(150)))
    home.memory.append_history("[2026-02-27 10:00] One more entry.")
    looks = 0
    look = home.memory.record_changes

    def empty_at_the_second_look(*args: Any) -> None:
        nonlocal looks
        looks += 1
        assert looks < 9, "the pass is planned again and again"
        if looks == 2:
            home.memory.memory_file.write_text("", encoding="utf-8")
        look(*args)

    monkeypatch.setattr(home.memory, "record_changes", empty_at_the_second_look)

    run = await home.run()

    assert run.outcome is FAILED
    assert home.text == ""


async def test_of_a_log_that_was_never_read_only_the_end_is_told(tmp_path: Path):
    home = Home(tmp_path, batch=3)
    home.learns()
    for number in range(10):
        home.memory.append_history(f"[2026-02-27 10:0{number}] Entry {number}.")

    run = await home.run(tidying())

    assert len(run.passes) == 1
    assert "Entry 7." in home.asked
    assert "Entry 6." not in home.asked


async def test_a_log_that_somebody_edited_is_begun_again_at_its_end_once(tmp_path: Path):
    home = Home(tmp_path, batch=2)
    home.learns()
    for number in range(5):
        home.memory.append_history(f"[2026-02-27 10:0{number}] Entry {number}.")
    await home.run(tidying())
    log = home.memory.history_file.read_text(encoding="utf-8")
    home.memory.history_file.write_text(log.replace("Entry 4.", "Entry four."), encoding="utf-8")

    await home.run(tidying())

    assert "Entry four." in home.asked
    assert "Entry 2." not in home.asked
    assert (await home.run()).outcome is NOTHING


async def test_how_old_facts_are_is_told_where_that_is_wanted(tmp_path: Path):
    home = Home(tmp_path, shows_ages=False)
    home.learns()

    await home.run(tidying())

    assert "[f3] Has a dog.\n" in home.asked


async def test_words_of_others_change_nothing_of_the_owners(home: Home):
    await home.run(tidying())
    home.memory.append_history(f"[2026-02-27 10:00] Eve says: the owner hates dogs.\n{IN_PART[Provenance.PERSON]}")

    assert (await home.run()).outcome is NOTHING

    home.memory.append_history("[2026-02-27 11:00] Talked of tea.")
    await home.run(tidying())
    assert "Eve" not in home.asked


async def test_a_merged_fact_is_trusted_as_its_least_trusted_source(tmp_path: Path):
    home = Home(tmp_path)
    home.learns("- Has a dog.\n", provenance=Provenance.OWNER)
    home.learns("- Has a dog.\n- The dog is named Rex.\n", provenance=Provenance.MCP)

    await home.run(tidying(replace_("f1 f2", "Has a dog named Rex.")))

    origin = home.memory.revisions.origins()
    assert [one.details["provenance"] for one in origin.values() if one.details["text"] == "Has a dog named Rex."] == [
        "mcp"
    ]


async def test_what_was_forgotten_does_not_come_back(home: Home):
    home.learns(
        home.text + "- Wife is named Eva.\n- Married since 2019.\n", "[2026-02-26 15:00] The wife is named Eva."
    )
    home.clock.advance(60)
    MemoryEditor(home.memory, home.clock).forget("Wife is named Eva.")

    run = await home.run(tidying(replace_("f5 h2", "Married since 2019. Wife is named Eva."), MERGED))

    assert "was forgotten on purpose" in run.passes[0].refused[0]
    assert "Eva" not in home.text


async def test_what_its_owner_wrote_by_hand_stays_word_for_word(home: Home):
    home.memory.memory_file.write_text(home.text + "- Never call before ten.\n", encoding="utf-8")

    run = await home.run(tidying(replace_("f5", "Never call."), {"action": "drop", "ids": ["f5"], "why": "x"}, MERGED))

    assert "[f5] Never call before ten. (since 2026-02-26, by hand)" in home.asked
    assert "- Never call before ten.\n" in home.text
    assert [one.partition(": ")[2] for one in run.passes[0].refused] == [
        "the owner wrote 'Never call before ten.' by hand"
    ] * 2


async def test_what_its_owner_writes_after_a_reset_is_by_hand(home: Home):
    MemoryEditor(home.memory, home.clock).clear()
    home.memory.memory_file.write_text("- Never call before ten.\n", encoding="utf-8")
    home.memory.append_history("Talked.")

    await home.run(tidying())

    assert "[f1] Never call before ten. (since 2026-02-26, by hand)" in home.asked


async def test_what_stood_there_before_the_book_goes_to_the_archive_and_nowhere_else(tmp_path: Path):
    home = Home(tmp_path)
    home.memory.write_long_term(FACTS)
    home.memory.record_changes()
    home.memory.append_history("Talked.")

    await home.run(tidying({"action": "drop", "ids": ["f4"], "why": "over"}))

    assert "Oslo" not in home.text
    assert "Oslo" in home.archive


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
async def test_an_edit_that_breaks_a_rule_is_left_out_and_said(home: Home, reason: str):
    before = home.text

    run = await home.run(tidying(REFUSED[reason], {"action": "move", "ids": ["f3"], "under": "Plans"}))

    assert reason in run.passes[0].refused[0]
    moved = before.replace("- Has a dog.\n", "").replace("01-05.\n", "01-05.\n- Has a dog.\n")
    assert home.text == moved


async def test_a_chat_is_tidied_by_itself(tmp_path: Path):
    owner = Home(tmp_path)
    owner.learns("- Has a secret.\n")
    chat = Home(tmp_path, scope=Scope("telegram:-100"))
    chat.learns("- The meeting is on Monday.\n- Meeting: on Monday.\n")

    await chat.run(tidying(replace_("f1 f2", "The meeting is on Monday.")))

    assert "secret" not in str(chat.model.requests)
    assert chat.text == "- The meeting is on Monday.\n"
    assert owner.text == "- Has a secret.\n"


async def test_a_restore_is_byte_for_byte_and_can_be_taken_back(home: Home):
    home.memory.archive_file.write_text("- Old.\n", encoding="utf-8")
    before = home.text
    await home.run(tidying(MERGED, {"action": "archive", "ids": ["f4"], "why": "over"}))
    after = home.text

    one = home.dream.changes.restore()

    assert one.number == 1
    assert (home.text, home.archive) == (before, "- Old.\n")
    assert home.dream.changes.active_passes() == []
    assert (await home.run()).outcome is NOTHING
    MemoryEditor(home.memory, home.clock).undo()
    assert home.text == after
    assert [one.number for one in home.dream.changes.active_passes()] == [1]


async def test_a_restore_takes_later_passes_with_it_and_keeps_what_others_changed(home: Home):
    before = home.text
    await home.run(tidying(MERGED))
    home.learns(home.text + "- Plays chess.\n", "Talked of chess.")
    await home.run(tidying({"action": "archive", "ids": ["f3"], "why": "over"}))
    home.memory.memory_file.write_text(home.text.replace("# Memory", "# My memory"), encoding="utf-8")

    home.dream.changes.restore(1)

    assert home.text == before.replace("# Memory", "# My memory") + "- Plays chess.\n"
    with pytest.raises(NanobotError, match="no Dream pass"):
        home.dream.changes.restore()


async def test_a_lesson_that_was_learned_since_stays_after_a_restore(home: Home):
    before = home.text
    await home.run(tidying(MERGED, {"action": "archive", "ids": ["f4"], "why": "over"}))
    lesson = "\n## Lessons\n\n- [2026-02-26] exec `python`: no such command (3 times since 2026-02-20)\n"
    home.memory.change(home.memory.memory_file, f"{home.text}{lesson}".encode(), ChangedBy.LESSON)

    home.dream.changes.restore()

    assert home.text == before + lesson


async def test_a_restore_that_would_lose_a_later_edit_is_refused(home: Home):
    await home.run(tidying(replace_("f1 f2", "Lives in Berlin, home is Berlin.")))
    apply_edits = home.text.replace("Lives in Berlin, home is Berlin.", "Lives in Rome.")
    home.memory.memory_file.write_text(apply_edits, encoding="utf-8")

    with pytest.raises(NanobotError, match=r"Lives in Rome\."):
        home.dream.changes.restore()

    assert "Rome" in home.text


async def test_what_was_forgotten_since_is_not_brought_back_by_a_restore(home: Home):
    await home.run(tidying(MERGED))
    home.clock.advance(60)
    MemoryEditor(home.memory, home.clock).forget("Lives in Berlin")

    home.dream.changes.restore()

    assert "Berlin" not in home.text


async def test_a_reset_ends_what_is_under_way_and_what_is_in_the_log_is_not_new_any_more(home: Home):
    pause = Pause()
    home.model.script(pause)
    work = asyncio.create_task(home.dream.run())
    await pause.reached.wait()

    await home.dream.clear()

    assert (await work).outcome is NOTHING
    home.model.clear()
    assert (await home.run()).outcome is NOTHING


async def test_what_was_done_and_taken_back_since_a_pass_is_neither_done_nor_lost_by_its_restore(home: Home):
    before = home.text
    await home.run(tidying(MERGED))
    editor = MemoryEditor(home.memory, home.clock)
    editor.forget("Lives in Berlin")
    editor.undo()

    home.dream.changes.restore()

    assert home.text == before


async def test_an_undo_of_the_memory_takes_a_pass_back_too(home: Home):
    before = home.text
    await home.run(tidying(MERGED))

    [change] = MemoryEditor(home.memory, home.clock).undo()

    assert (change.by, home.text) == (ChangedBy.DREAM, before)
    assert home.dream.changes.active_passes() == []


async def test_what_consolidation_archived_since_stays_in_the_archive_after_a_restore(home: Home):
    await home.run(tidying({"action": "archive", "ids": ["f4"], "why": "over"}))
    home.memory.append_archive([MemoryEditor(home.memory, home.clock).facts()[0].fact])

    home.dream.changes.restore()

    assert home.archive.lstrip() == "## 2026-02-26\n\n- Lives in Berlin.\n"


async def test_what_was_said_and_written_while_the_model_thought_is_new_to_the_next_pass(home: Home):
    pause = Pause()
    home.model.script(pause, tidying(MERGED), tidying())
    work = asyncio.create_task(home.dream.run())
    await pause.reached.wait()
    home.memory.append_history("[2026-02-26 16:00] Said meanwhile.")
    home.memory.memory_file.write_text(home.text + "- Written meanwhile.\n", encoding="utf-8")
    home.memory.record_changes(ChangedBy.AGENT, ChangeSource("cli:direct"))
    pause.resume.set()

    await work

    assert "Said meanwhile." in home.asked
    assert len(home.model.requests) == 2
    assert "- Written meanwhile.\n" in home.text


async def test_a_failure_says_what_it_cost(home: Home):
    await home.run(LLMResponse("No.", usage={"prompt_tokens": 800, "completion_tokens": 3}))
    await home.run(RuntimeError("socket closed"), by_hand=True)

    assert [(one.calls, one.prompt_tokens) for one in home.passes()] == [(0, 0), (1, 800)]


@pytest.mark.parametrize("edits", [[MERGED], MERGED, json.dumps([MERGED]), [{**MERGED, "ids": "f1, f2"}]])
async def test_a_call_may_be_written_a_little_otherwise(home: Home, edits: object):
    await home.run(calls(("tidy_memory", {"edits": edits})))

    assert "Home" not in home.text


async def test_many_facts_that_are_said_to_be_one_are_a_loss(home: Home):
    home.learns(home.text + "- Plays chess.\n- Reads novels.\n", "Talked of games.")

    run = await home.run(tidying(replace_("f1 f2 f3 f4 f5 f6", "Lives in Berlin.")))

    assert run.outcome is FAILED
    assert "facts from MEMORY.md at once" in run.reason


async def test_facts_that_are_said_in_next_to_no_words_are_a_loss(home: Home):
    home.learns("- Plays chess with Ann on Mondays.\n- Reads long novels.\n", "Talked of games and Ann.")
    before = home.text

    run = await home.run(tidying(replace_("f1", "Ann."), replace_("f2 h1", "Novels.")))

    assert run.outcome is FAILED
    assert "it keeps little of 'Plays chess with Ann on Mondays.'" in run.reason
    assert home.text == before


async def test_a_fact_that_is_contradicted_may_become_a_short_one(home: Home):
    home.learns("- Plays chess with Ann on Mondays and Fridays.\n", "Ann has moved; chess is on Sundays now.")

    await home.run(tidying(replace_("f1 h2", "Chess on Sundays.")))

    assert home.text == "- Chess on Sundays.\n"


async def test_of_a_memory_that_is_over_half_goes_to_the_archive_at_once(home: Home):
    over = [{"action": "archive", "ids": [f"f{number}"], "why": "over"} for number in range(1, 5)]

    run = await home.run(tidying(*over))

    assert [len(run.passes[0].edits), len(run.passes[0].refused)] == [2, 2]
    assert home.archive.count("- ") == 2


async def test_in_a_chat_what_a_tool_of_others_said_is_trusted_no_more_in_a_merged_fact(tmp_path: Path):
    home = Home(tmp_path, scope=Scope("telegram:-100"))
    home.learns("- The shop is open.\n", f"The shop is open on Monday.\n{IN_PART[Provenance.MCP]}")

    await home.run(tidying(replace_("f1 h1", "The shop is open on Monday.")))

    [told] = [one.details for key, one in home.memory.revisions.origins().items() if "monday" in key]
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


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
        home = Home(Path(folder))
        home.memory.memory_dir.mkdir(parents=True)
        raw = mark + end.join(lines)
        home.memory.memory_file.write_bytes(raw)
        if archive is not None:
            home.memory.archive_file.write_bytes(archive)
        found = {fact.key: fact for fact in parse_facts(raw.decode("utf-8", "surrogateescape").removeprefix("\ufeff"))}
        edits = [
            AcceptedEdit(
                EditAction(what), FactEdit((fact.key,), "Says it otherwise." if what == "replace" else ""), [fact.text]
            )
            for what, fact in zip(choice, found.values(), strict=False)
        ]
        text, done = apply_edits(raw.decode("utf-8", "surrogateescape"), [one.edit for one in edits])
        made = [one for one in edits if one.edit in done]
        if not made:
            return
        with home.memory.revisions.lock():
            home.memory.record_changes()
            one = DreamPass(1, "2026-02-26T13:21", PassOutcome.UNCHANGED)
            data = text.encode("utf-8", "surrogateescape")
            home.dream.log.add(home.dream.changes.apply(one, raw, data, made))
        assert home.memory.memory_file.read_bytes() == data

        home.dream.changes.restore()

        assert home.memory.memory_file.read_bytes() == raw
        assert (home.memory.archive_file.read_bytes() if home.memory.archive_file.exists() else None) == archive
