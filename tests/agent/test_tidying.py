"""Tidying: old messages go into memory in the background; whatever becomes of that, no turn waits and none is lost."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.memory.consolidation import ConsolidationOutcome
from nanobot.agent.memory.facts import parse_facts
from nanobot.agent.memory.store import MemoryStore
from nanobot.agent.scope import Scope
from nanobot.messages.types import ChatMessage, Provenance
from nanobot.providers.base import LLMResponse
from nanobot.session.manager import Session, SessionManager
from nanobot.testing import Pause, calls, open_bot
from nanobot.utils.clock import FrozenClock
from tests.support.eventually import eventually
from tests.support.ledger_rows import rows_of
from tests.support.memory import KEY, ConsolidationHarness, Minded, archive_queue, bot_with, saving, talk, turn

NOTHING = ConsolidationOutcome.NOTHING


def cursor(home: Path) -> int:
    return SessionManager(home / "workspace").get_or_create(KEY).last_consolidated


async def test_at_the_memory_window_all_but_half_of_it_goes_into_memory(tmp_path: Path):
    minded = Minded(saving())
    async with bot_with(tmp_path, minded, window=40) as bot:
        await talk(bot, 19)
        await bot.settled()
        assert minded.requests == []

        await talk(bot, 1)
        await bot.settled()

        assert cursor(tmp_path) == 20
        assert "question 9" in str(minded.requests[0])
        assert "question 10" not in str(minded.requests[0])
        await bot.say("next")
    assert "Likes tea." in str(minded.turns[-1][0])
    assert "question 9" not in str(minded.turns[-1])


async def test_the_last_six_turns_stay_however_small_the_memory_window_is(tmp_path: Path):
    minded = Minded(saving(), saving())
    async with bot_with(tmp_path, minded, window=4) as bot:
        await talk(bot, 8)
        await bot.settled()

        assert cursor(tmp_path) <= 4
        await bot.say("next")
    assert all(f"question {number}" in str(minded.turns[-1]) for number in range(2, 8))


async def test_no_turn_waits_for_a_model_that_never_answers(tmp_path: Path):
    pause = Pause()
    minded = Minded(pause, saving())
    async with bot_with(tmp_path, minded) as bot:
        await talk(bot, 10)
        async with asyncio.timeout(5):
            await pause.reached.wait()

        async with asyncio.timeout(5):
            await talk(bot, 3, first=10)

        assert cursor(tmp_path) == 0
        pause.resume.set()
        await bot.settled()
        assert cursor(tmp_path) == 8
        await bot.say("next")
    assert "question 12" in str(minded.turns[-1])


FAILURES: dict[str, Any] = {
    "error text": saving("Error: 502 Bad Gateway"),
    "refusal": saving("I'm sorry, I cannot help with that."),
    "wrong type": calls(("save_memory", {"history_entry": None, "memory_update": 7})),
    "no call": "I have saved it all.",
    "cut JSON": LLMResponse(None, calls(("save_memory", {"history_entry": "Tal"})).tool_calls, "length"),
    "bulk loss": saving(update="- Likes tea."),
    "down": RuntimeError("connection reset"),
}


@pytest.mark.parametrize("line", FAILURES.values(), ids=FAILURES.keys())
async def test_a_failure_keeps_every_message_shows_in_status_and_is_not_tried_at_every_turn(tmp_path: Path, line: Any):
    minded = Minded(line)
    memory = MemoryStore(tmp_path / "workspace")
    before = "".join(f"- Knows the number {number} by heart\n" for number in range(20))
    memory.write_long_term(before)
    async with bot_with(tmp_path, minded) as bot:
        await talk(bot, 10)
        await bot.settled()
        await talk(bot, 3, first=10)
        await bot.settled()

        assert "consolidation failed" in await bot.say("/status")
        await bot.say("next")
    assert len(minded.requests) == 1
    assert cursor(tmp_path) == 0
    assert memory.read_long_term() == before
    assert memory.read_history() == []
    assert all(f"question {number}" in str(minded.turns[-1]) for number in range(13))


async def test_what_failed_is_not_tried_at_once_by_the_next_process(tmp_path: Path):
    minded = Minded("no call")
    for life in range(3):
        async with bot_with(tmp_path, minded) as bot:
            await talk(bot, 10 if life == 0 else 1, first=10 + life)
            await bot.settled()

    assert len(minded.requests) == 1


async def test_what_failed_is_tried_again_after_some_more_messages(tmp_path: Path):
    minded = Minded("no call", saving())
    async with bot_with(tmp_path, minded) as bot:
        await talk(bot, 10)
        await bot.settled()
        await talk(bot, 5, first=10)
        await bot.settled()

        assert cursor(tmp_path) > 0
        assert "consolidation failed" not in await bot.say("/status")


async def test_where_it_stood_is_said_last_in_the_prompt_until_that_is_over(tmp_path: Path):
    minded = Minded(saving(handover="Done: A. Doing: B. Asked: shall I go on?"), saving())
    async with bot_with(tmp_path, minded) as bot:
        await talk(bot, 10)
        await bot.settled()
        await bot.say("yes")
        first = str(minded.turns[-1][0]["content"])
        await talk(bot, 12, first=10)
        await bot.settled()
        await bot.say("and now")

    assert first.endswith("# Earlier in this Conversation\n\nDone: A. Doing: B. Asked: shall I go on?")
    assert "Doing: B" in str(minded.requests[1])
    assert "Earlier in this Conversation" not in str(minded.turns[-1][0])


async def test_a_session_that_the_original_consolidated_says_its_summary(tmp_path: Path):
    sessions = SessionManager(tmp_path / "workspace")
    session = sessions.get_or_create(KEY)
    session.metadata["_last_summary"] = {"text": "We spoke of plums.", "last_active": "2026-01-01T00:00:00"}
    session.add_message("user", "hello")
    session.add_message("assistant", "hi")
    sessions.save(session)

    async with open_bot(tmp_path, "Fine.") as bot:
        await bot.say("go on")

    assert str(bot.provider.requests[-1][0]["content"]).endswith("We spoke of plums.")


async def test_after_new_everything_of_the_old_session_goes_into_memory(tmp_path: Path):
    minded = Minded(saving("Spoke of plums."))
    async with bot_with(tmp_path, minded) as bot:
        await talk(bot, 3)
        await bot.say("/new")
        await bot.say("hello")
        await eventually(MemoryStore(tmp_path / "workspace").read_history)

    assert all(f"question {number}" in str(minded.requests[0]) for number in range(3))
    assert "question" not in str(minded.turns[-1])
    assert len(minded.requests) == 1


async def test_what_is_just_being_taken_in_is_forgotten_by_a_reset(tmp_path: Path):
    pause = Pause()
    minded = Minded(pause, saving("Other.", "- Likes pears."))
    async with bot_with(tmp_path, minded) as bot:
        await bot.say("plums")
        await bot.say("/new")
        await bot.say("pears", "cli:other")
        await bot.say("/new", "cli:other")
        async with asyncio.timeout(5):
            await pause.reached.wait()
        told = await bot.say("/reset --all")
        async with asyncio.timeout(5):
            await bot.settled()
        await bot.say("hello")

    assert "1 earlier conversation waiting for consolidation" in told
    assert "plums" not in str(minded.turns[-1])
    assert "Likes pears" in str(minded.turns[-1])


async def test_what_new_put_away_is_taken_in_by_the_next_life(tmp_path: Path):
    minded = Minded(saving())
    async with bot_with(tmp_path, minded, pause_s=60) as bot:
        await talk(bot, 2)
        await bot.say("/new")
    assert minded.requests == []

    async with bot_with(tmp_path, minded) as bot:
        await bot.say("hello")
        await eventually(lambda: archive_queue(tmp_path) == {})

    assert "question 1" in str(minded.requests[0])
    assert len(minded.requests) == 1


async def test_an_archived_session_is_taken_in_by_one_of_two_processes(tmp_path: Path):
    pause = Pause()
    one, other = Minded(pause, saving()), Minded(saving())
    async with bot_with(tmp_path, one) as bot, bot_with(tmp_path, other) as beside:
        await bot.say("plums")
        await bot.say("/new")
        await pause.reached.wait()
        await beside.say("hello", "cli:other")
        async with asyncio.timeout(5):
            await beside.settled()
        pause.resume.set()
        await eventually(lambda: archive_queue(tmp_path) == {})

    assert (len(one.requests), len(other.requests)) == (1, 0)


async def test_an_archive_that_cannot_be_read_keeps_no_other_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    minded, usual = Minded(saving()), SessionManager.read

    def read(self: SessionManager, path: Path) -> Session | None:
        if "broken" in path.stem:
            raise OSError("no such device")
        return usual(self, path)

    monkeypatch.setattr(SessionManager, "read", read)
    async with bot_with(tmp_path, minded, pause_s=60) as bot:
        for key in ("cli:broken", "cli:fine"):
            await bot.say("plums", key)
            await bot.say("/new", key)

    async with bot_with(tmp_path, minded) as bot:
        await bot.say("hello")
        await eventually(lambda: [due.failures for due in archive_queue(tmp_path).values()] == [1])

    assert len(minded.requests) == 1


async def test_an_archive_that_cannot_be_summed_up_is_named_in_the_log_at_last(tmp_path: Path):
    """After five tries, each later than the one before; none is due at the next start."""
    minded, clock = Minded(*["no call"] * 5), FrozenClock(datetime(2026, 2, 26, tzinfo=UTC))
    waits = 0.0, 10 * 60.0, 20 * 60.0, 40 * 60.0, 80 * 60.0
    for tries, wait in enumerate(waits):
        for seconds in (wait - 1, 1) if wait else (0,):
            asked = len(minded.requests)
            clock.advance(seconds)
            async with bot_with(tmp_path, minded, clock=clock) as bot:
                await bot.say("hello")
                if not wait:
                    await bot.say("/new")
                async with asyncio.timeout(5):
                    await bot.settled()
        assert (asked, len(minded.requests)) == (tries, tries + 1)

    [entry] = MemoryStore(tmp_path / "workspace").read_history()
    assert "could not be summarised" in entry.content
    assert archive_queue(tmp_path) == {}


async def test_the_end_of_the_process_breaks_it_off_and_loses_nothing(tmp_path: Path):
    pause = Pause()
    minded = Minded(pause)
    async with bot_with(tmp_path, minded) as bot:
        await talk(bot, 10)
        await pause.reached.wait()

    assert cursor(tmp_path) == 0
    assert MemoryStore(tmp_path / "workspace").read_history() == []


async def test_what_each_chat_said_goes_into_its_own_memory(tmp_path: Path):
    """Rows say whose memory their turn was told of; one pass takes one scope."""
    home = ConsolidationHarness(tmp_path)
    for number in range(4):
        scope = {"scope": "telegram:-100"} if number >= 2 else {}
        question, answer = turn(number)
        await home.say(question | scope, answer)  # type: ignore[arg-type]
    await home.talk(4, 8)
    home.model.script(
        saving("Owner.", "- Owner's."), saving("Group.", "- Group's."), saving("Owner again.", "- Owner's.")
    )

    for _ in range(3):
        await home.consolidate(keep=0)

    group = home.memory.of(Scope("telegram:-100"))
    assert group.read_long_term() == "- Group's.\n"
    assert [entry.content for entry in group.read_history()] == ["Group."]
    assert "Group" not in home.log + home.memory.read_long_term()
    assert home.cursor == 16


async def test_after_the_window_was_cut_the_question_is_known_and_a_finished_task_is_told_as_done(tmp_path: Path):
    handover = "Done: A, the plums are counted. Doing: B, the pears."
    minded = Minded(*[saving("Counted.", "- Owns plums.", handover=handover)] * 8)
    async with bot_with(tmp_path, minded, window=1000, contextWindowTokens=9_000, maxTokens=2_500) as bot:
        for number in range(16):
            await bot.say(f"count plums {number} " + "word " * 250)
        await bot.settled()
        assert cursor(tmp_path) > 0  # far from the memory window: the model's own had no room
        minded.answers = "Shall I count the pears in the cellar, too?"
        await bot.say("and the pears? " + "word " * 250)
        await bot.say("yes")

    last = minded.turns[-1]
    assert str(last[0]["content"]).endswith(handover)
    assert "Shall I count the pears in the cellar, too?" in str(last[-2])
    assert "count plums 0 " not in str(last)


async def test_what_was_begun_afresh_meanwhile_stays_as_it_is(tmp_path: Path):
    home = ConsolidationHarness(tmp_path)
    await home.talk(0, 10)
    pause = Pause()
    home.model.script(pause, saving())
    moving = asyncio.create_task(home.move())
    await pause.reached.wait()
    home.sessions.archive(KEY)
    await home.talk(10, 14)
    pause.resume.set()

    assert (await moving).outcome is NOTHING
    assert home.cursor == 0
    assert home.log == ""


@pytest.mark.parametrize("second", ["kept", "no call"])
async def test_the_owners_own_words_are_asked_about_in_a_call_of_their_own_and_both_are_in_the_ledger(
    tmp_path: Path, second: str
):
    """Where a tool server speaks too. If the second call fails, nothing is kept of the first: all is as it was."""
    ours = saving("Ours.", "- Ours.", handover="Ours.") if second == "kept" else second
    minded, memory = Minded(saving("All.", "- Theirs.", handover="Theirs."), ours), MemoryStore(tmp_path / "workspace")
    async with bot_with(tmp_path, minded) as bot:
        await talk(bot, 1)
        async with (sessions := SessionManager(bot.workspace)).hold(KEY) as session:
            session.metadata["handover"] = "Before."
            words: ChatMessage = {"role": "tool", "name": "mcp_shop", "content": "Buy!", "provenance": Provenance.MCP}
            await sessions.append(session, *_with_call(words))
        before = memory.read_long_term()
        await talk(bot, 7, first=1)
        await bot.settled()
        note = bot.session(KEY).metadata["handover"]
    memory = MemoryStore(tmp_path / "workspace")
    rows = [row for row in rows_of(tmp_path) if row["cause"] == "consolidation"]

    assert "Buy!" in str(minded.requests[0])
    assert "Buy!" not in str(minded.requests[1])
    assert [(row["session"], row["outcome"]) for row in rows] == [(KEY, "ok")] * 2
    if second == "kept":
        assert [fact.text for fact in parse_facts(memory.read_long_term())] == ["Ours."]
        assert note == "Ours."
        assert memory.read_history()[0].content.startswith("All.")
    else:
        assert (memory.read_long_term(), note, memory.read_history(), cursor(tmp_path)) == (before, "Before.", [], 0)


def _with_call(result: ChatMessage) -> list[ChatMessage]:
    """A step of a turn in which a tool spoke."""
    call: Any = {"id": "a", "type": "function", "function": {"name": result["name"], "arguments": "{}"}}
    said: ChatMessage = {"role": "assistant", "content": "Let me see.", "tool_calls": [call], "turn_id": "t"}
    asked: ChatMessage = {"role": "user", "content": "what is there?", "turn_id": "t", "provenance": Provenance.OWNER}
    return [
        asked,
        said,
        {**result, "tool_call_id": "a", "turn_id": "t"},
        {**said, "content": "Offers.", "tool_calls": []},
    ]


async def test_an_idle_session_that_is_being_moved_already_is_left_alone(tmp_path: Path):
    home = ConsolidationHarness(tmp_path)
    await home.talk(0, 10)
    pause = Pause()
    home.model.script(pause, saving())
    moving = asyncio.create_task(home.move())
    await pause.reached.wait()

    async with asyncio.timeout(5):
        idle = await home.move()
        pause.resume.set()
        moved = await moving

    assert idle.outcome is NOTHING
    assert moved.moved == 12
