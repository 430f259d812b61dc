"""Old messages go into memory, in the background or by `/compact`: whole or not at all, and no turn waits for it."""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from nanobot.agent.memory import MemoryStore
from nanobot.agent.memory.schedule import DueTimes
from nanobot.agent.scope import Scope
from nanobot.agent.session_summary import summary_metadata
from nanobot.messages.types import ChatMessage, Provenance
from nanobot.providers.base import Finished
from nanobot.session.manager import Session, SessionManager
from nanobot.testing import Pause, open_bot
from nanobot.utils.clock import FrozenClock
from tests.support.eventually import eventually
from tests.support.home import POSIX, told
from tests.support.ledger_rows import rows_of
from tests.support.memory import KEY, Minded, archive_queue, bot_with, cursor, log_of, saving, store, talk, turn, turns

TEA = saving("[2026-02-26 13:21] Talked.", "- Likes tea.")
OPEN_TO_ALL = {"channels": {"telegram": {"enabled": True, "token": "1:a", "allowFrom": ["*"]}}}


def memory_of(home: Path) -> MemoryStore:
    return MemoryStore(home / "workspace")


# --- in the background


async def test_at_the_memory_window_all_but_half_of_it_goes_into_memory(tmp_path: Path):
    minded = Minded(TEA)
    async with bot_with(tmp_path, minded, window=40, backgroundModel="small") as bot:
        await talk(bot, 19)
        await bot.settled()
        assert minded.requests == []

        await talk(bot, 1)
        await bot.settled()

        assert cursor(tmp_path) == 20
        assert "question 9" in minded.asked and "question 10" not in minded.asked
        assert "Memory: 20 messages moved into memory at " in await bot.say("/status")
        await bot.say("next")
    assert "Likes tea." in str(minded.turns[-1][0])
    assert "question 9" not in str(minded.turns[-1])
    assert memory_of(tmp_path).history_file.read_text(encoding="utf-8") == "[2026-02-26 13:21] Talked.\n\n"
    [row] = [row for row in rows_of(tmp_path) if row["cause"] == "consolidation"]
    assert (row["session"], row["model"]) == (KEY, "small")


async def test_last_six_turns_stay_however_small_the_memory_window_is(tmp_path: Path):
    minded = Minded(saving(), saving())
    async with bot_with(tmp_path, minded, window=4) as bot:
        await talk(bot, 8)
        await bot.settled()

        assert cursor(tmp_path) <= 4
        await bot.say("next")
    assert all(f"question {number}" in str(minded.turns[-1]) for number in range(2, 8))


async def test_no_turn_waits_for_a_model_that_thinks_and_the_end_of_the_process_breaks_it_off(tmp_path: Path):
    pause = Pause()
    minded = Minded(pause, saving(), saving(), Pause())
    async with bot_with(tmp_path, minded) as bot:
        await talk(bot, 10)
        async with asyncio.timeout(5):
            await pause.reached.wait()
        async with asyncio.timeout(5):
            await talk(bot, 3, first=10)
        assert "being moved into memory already" in await bot.say("/compact")
        assert cursor(tmp_path) == 0
        pause.resume.set()
        await bot.settled()
        assert cursor(tmp_path) == 14
        await talk(bot, 10, first=13)
        await eventually(lambda: len(minded.requests) == 3)

    assert "question 12" in str(minded.turns[-1])
    assert cursor(tmp_path) == 14
    assert len(log_of(memory_of(tmp_path))) == 2


async def test_session_is_moved_into_memory_while_the_model_thinks_of_another_one_and_both_are_kept(tmp_path: Path):
    pause = Pause()
    minded = Minded(pause, saving("Spoke of chess.", "- Plays chess."), saving("Spoke of tea.", "- Likes tea."))
    async with bot_with(tmp_path, minded) as bot:
        await talk(bot, 10)
        async with asyncio.timeout(5):
            await pause.reached.wait()
        for number in range(10):
            await bot.say(f"question {number}", "cli:other")
        await eventually(lambda: cursor(tmp_path, "cli:other"))
        pause.resume.set()
        await bot.settled()

    assert cursor(tmp_path) > 0
    assert "- Plays chess.\n- Likes tea.\n" in memory_of(tmp_path).read_long_term()
    assert log_of(memory_of(tmp_path)) == ["Spoke of chess.", "Spoke of tea."]


async def test_failure_shows_in_status_and_rests_in_every_process_until_some_more_messages(tmp_path: Path):
    minded = Minded("no call", saving())
    for begin, end in ((0, 10), (10, 12), (12, 14)):
        async with bot_with(tmp_path, minded) as bot:
            await talk(bot, end - begin, first=begin)
            await bot.settled()
            if not begin:
                assert "consolidation failed 1 time in a row" in await bot.say("/status")
    assert len(minded.requests) == 1
    assert all(f"question {number}" in str(minded.turns[-1]) for number in range(14))

    async with bot_with(tmp_path, minded) as bot:
        await talk(bot, 1, first=14)
        await bot.settled()
        assert cursor(tmp_path) > 0
        assert "consolidation failed" not in await bot.say("/status")


async def test_handover_ends_the_prompt_until_it_is_over(tmp_path: Path):
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


async def test_summary_of_the_original_ends_the_prompt(tmp_path: Path):
    await store(tmp_path, *turn(0), _last_summary={"text": "We spoke of plums.", "last_active": "2026-01-01T00:00:00"})

    async with open_bot(tmp_path, "Fine.") as bot:
        await bot.say("go on")

    assert str(bot.provider.requests[-1][0]["content"]).endswith("We spoke of plums.")


async def test_after_the_window_was_cut_the_handover_and_the_open_question_are_known(tmp_path: Path):
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


# --- sessions that /new archived


async def test_session_archived_by_new_goes_into_memory_in_this_process_or_the_next(tmp_path: Path):
    minded = Minded(saving("Spoke of plums."), saving("Spoke of pears."))
    async with bot_with(tmp_path, minded) as bot:
        await talk(bot, 3)
        await bot.say("/new")
        await bot.say("hello")
        await eventually(lambda: minded.requests and archive_queue(tmp_path) == {})
        assert all(f"question {number}" in minded.asked for number in range(3))
        assert "question" not in str(minded.turns[-1])
        bot.consolidate_after(60)
        await bot.say("/new")
        assert len(minded.requests) == 1

    async with bot_with(tmp_path, minded) as bot:
        await bot.say("hi")
        await eventually(lambda: archive_queue(tmp_path) == {})
    assert "hello" in minded.asked


async def test_reset_forgets_the_archived_session_that_is_being_consolidated_and_no_other(tmp_path: Path):
    pause = Pause()
    minded = Minded(pause, saving("Other.", "- Likes pears."))
    async with bot_with(tmp_path, minded) as bot:
        await bot.say("plums")
        await bot.say("/new")
        await bot.say("pears", "cli:other")
        await bot.say("/new", "cli:other")
        async with asyncio.timeout(5):
            await pause.reached.wait()
        answer = await bot.say("/reset --all")
        async with asyncio.timeout(5):
            await bot.settled()
        await bot.say("hello")

    assert "1 earlier conversation waiting for consolidation" in answer
    assert "plums" not in str(minded.turns[-1])
    assert "Likes pears" in str(minded.turns[-1])


class SlowAboutPlums(Minded):
    """Follows its script except for conversations about plums, which it summarises in a second."""

    async def chat_stream(self, messages: Sequence[ChatMessage], *others: Any, **more: Any) -> Any:
        if "USER: plums" in str(messages):
            await asyncio.sleep(1.0)
            yield Finished(saving("Spoke of plums.", "- Likes plums."))
            return
        async for delta in super().chat_stream(messages, *others, **more):
            yield delta


async def test_reset_on_a_slow_disk_is_not_followed_by_another_consolidation_of_what_it_forgot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    delete = DueTimes.delete

    def delete_slowly(times: DueTimes, key: str) -> None:
        time.sleep(0.5 if "direct" in key else 0.0)
        delete(times, key)

    monkeypatch.setattr(DueTimes, "delete", delete_slowly)
    pause = Pause()
    minded = SlowAboutPlums(pause, *[saving("Other.")] * 4)
    async with bot_with(tmp_path, minded) as bot:
        await bot.say("pears", "cli:other")
        await bot.say("/new", "cli:other")
        async with asyncio.timeout(5):
            await pause.reached.wait()
        await bot.say("plums")
        await bot.say("/new")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(bot.say("/reset --all"))
            await asyncio.sleep(0.1)
            pause.resume.set()
        async with asyncio.timeout(5):
            await bot.settled()
        await bot.say("hello")

    assert "plums" not in str(minded.turns[-1])
    assert not [stem for stem in archive_queue(tmp_path) if "direct" in stem]


async def test_one_of_two_processes_consolidates_and_a_session_begun_afresh_stays_as_it_is(tmp_path: Path):
    pause, moving = Pause(), Pause()
    one, other = Minded(pause, saving(), moving, saving()), Minded(saving())
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

        await talk(bot, 10)
        await moving.reached.wait()
        SessionManager(bot.workspace).archive(KEY)
        await store(tmp_path, *turns(10, 14))
        moving.resume.set()
        await bot.settled()

    assert cursor(tmp_path) == 0
    assert len(log_of(memory_of(tmp_path))) == 1


async def test_archive_that_cannot_be_read_keeps_no_other_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    minded, usual = Minded(saving()), SessionManager.read

    def read(self: SessionManager, path: Path) -> Session | None:
        if "broken" in path.stem:
            raise OSError("no such device")
        return usual(self, path)

    monkeypatch.setattr(SessionManager, "read", read)
    async with bot_with(tmp_path, minded) as bot:
        for key in ("cli:broken", "cli:fine"):
            await bot.say("plums", key)
            await bot.say("/new", key)
        await eventually(lambda: [due.failures for due in archive_queue(tmp_path).values()] == [1])
        await eventually(lambda: minded.requests)


async def test_archive_that_cannot_be_summarised_is_named_in_the_log_after_five_tries(tmp_path: Path):
    """Each later than the one before, also when nanobot starts again and again."""
    minded, clock = Minded(*["no call"] * 5), FrozenClock(datetime(2026, 2, 26, tzinfo=UTC))
    asked = []
    for seconds in (0, 599, 1, 1200, 2399, 1, 4800):
        clock.advance(seconds)
        async with bot_with(tmp_path, minded, clock=clock) as bot:
            await bot.say("hello")
            if not seconds:
                await bot.say("/new")
            async with asyncio.timeout(5):
                await bot.settled()
        asked.append(len(minded.requests))
    assert asked == [1, 1, 2, 3, 3, 4, 5]

    [entry] = log_of(memory_of(tmp_path))
    assert "could not be summarised" in entry
    assert archive_queue(tmp_path) == {}


# --- how much: /compact moves all but the last eight messages

TURN_WITH_TOOLS = turn(1, steps=4)
JOINED: list[Any] = [{"role": "user", "content": "and plums", "turn_id": "t1"}, {"role": "user", "origin": "system"}]


@pytest.mark.parametrize(
    ("rows", "moved"),
    [
        (turns(0, 10), 12),
        (turns(0, 300), 592),
        (turns(0, 4), 0),
        ([*turns(0, 2), *turn(2, steps=20)], 4),
        ([*turn(0), TURN_WITH_TOOLS[0], *TURN_WITH_TOOLS[1:3], *JOINED, *TURN_WITH_TOOLS[3:]], 2),
        ([*turn(0), *turn(1, steps=1, provenance="web"), *turns(2, 7)], 8),
        (turns(0, 1_000, provenance="mail"), 0),
    ],
    ids=["all but 8", "many", "too few", "one long turn", "joined by messages", "words of the web", "mail only"],
)
async def test_what_stays_begins_with_a_turn_and_without_anything_to_move_no_model_is_asked(
    tmp_path: Path, rows: list[ChatMessage], moved: int
):
    await store(tmp_path, *rows)
    minded = Minded(*[TEA] * 8)
    async with bot_with(tmp_path, minded) as bot:
        answers = [await bot.say("/compact") for _ in range(2)]

    assert answers[1].startswith("Nothing was moved into memory.")
    assert cursor(tmp_path) == moved
    assert bool(minded.requests) is bool(moved)
    assert f"Moved {moved} messages into memory." in answers[0] or not moved
    assert "TOOL" not in str(minded.requests), "a result of the web"


async def test_later_consolidation_tells_what_is_new_and_the_memory_as_it_stands(tmp_path: Path):
    await store(tmp_path, *turns(0, 10), model="mine")
    minded = Minded(TEA, saving())
    async with bot_with(tmp_path, minded) as bot:
        await bot.say("/compact")
        await talk(bot, 1, first=10)
        await bot.say("/compact")

    assert "question 6" in minded.asked and "Likes tea." in minded.asked
    assert "question 5" not in minded.asked
    assert {row["model"] for row in rows_of(tmp_path) if row["cause"] == "consolidation"} == {"mine"}


@pytest.mark.parametrize(("count", "words", "parts"), [(40, 200, range(2, 8)), (60, 1_000, range(8, 9))])
async def test_long_conversation_goes_in_parts_that_fit_the_model_and_at_most_eight_at_once(
    tmp_path: Path, count: int, words: int, parts: range
):
    said = ({**row, "content": f"{row['content']} {'word ' * words}"} for row in turns(0, count))
    await store(tmp_path, *(cast("ChatMessage", row) for row in said))
    minded = Minded(*[TEA] * 20)
    async with bot_with(tmp_path, minded, contextWindowTokens=9_000, maxTokens=2_000) as bot:
        await bot.say("/compact")

    assert len(minded.requests) in parts
    assert all(len(str(request)) < 4 * 7_000 for request in minded.requests)
    assert 0 < cursor(tmp_path) <= 2 * count - 8
    shown = "".join(str(request[1]["content"]) for request in minded.requests)
    moved = cursor(tmp_path) // 2
    assert [shown.count(f"question {number} ") for number in range(count)] == [1] * moved + [0] * (count - moved)


@pytest.mark.parametrize(
    ("window", "facts", "advice"), [(2_500, 0, "backgroundModel"), (5_000, 1_000, "Shorten MEMORY.md")]
)
async def test_without_room_beside_the_memory_no_model_is_asked(tmp_path: Path, window: int, facts: int, advice: str):
    memory_of(tmp_path).write_long_term("Likes tea. " * facts)
    await store(tmp_path, *turns(0, 10))
    minded = Minded()
    async with bot_with(tmp_path, minded, contextWindowTokens=window, maxTokens=1_000) as bot:
        assert advice in await bot.say("/compact")

    assert (minded.requests, cursor(tmp_path)) == ([], 0)


# --- whose words, into whose memory


async def test_each_chat_goes_into_its_own_memory(tmp_path: Path):
    """Rows say whose memory their turn was told of; one pass takes one scope."""
    await store(tmp_path, *turns(0, 2), *turns(2, 4, scope="telegram:-100"), *turns(4, 12))
    lines = saving("Owner.", "- Owner's."), saving("Group.", "- Group's."), saving("Owner again.", "- Owner's.")
    async with bot_with(tmp_path, Minded(*lines)) as bot:
        await bot.say("/compact")

    memory, group = memory_of(tmp_path), memory_of(tmp_path).of(Scope("telegram:-100"))
    assert group.read_long_term() == "- Group's.\n"
    assert log_of(group) == ["Group."]
    assert log_of(memory) == ["Owner.", "Owner again."]
    assert "Group" not in memory.read_long_term()
    assert cursor(tmp_path) == 16


@pytest.mark.parametrize("second", ["kept", "no call"])
async def test_owners_own_words_are_asked_about_in_a_second_call_and_alone_make_memory(tmp_path: Path, second: str):
    """Where a tool server speaks too. If the second call fails, nothing is kept of the first: all is as it was."""
    ours = saving("Ours.", "- Ours.", handover="Ours.") if second == "kept" else second
    question, call, result, answer = turn(1, 1)
    server: Any = {**result, "name": "mcp_shop", "provenance": "mcp", "content": "Buy!"}
    await store(tmp_path, *turn(0), question, call, server, {**answer, "provenance": Provenance.MCP}, *turns(2, 7))
    await store(tmp_path, handover="Before.")
    minded, memory = Minded(saving("All.", "- Theirs.", handover="Theirs."), ours), memory_of(tmp_path)
    async with bot_with(tmp_path, minded) as bot:
        await bot.say("/compact")
        note = bot.session(KEY).metadata["handover"]

    assert "Buy!" in str(minded.requests[0]) and "Buy!" not in minded.asked
    rows = [row for row in rows_of(tmp_path) if row["cause"] == "consolidation"]
    assert [(row["session"], row["outcome"]) for row in rows] == [(KEY, "ok")] * 2
    if second == "kept":
        assert (memory.read_long_term(), note) == ("- Ours.\n", "Ours.")
        assert log_of(memory)[0] == "All.\n(In part from a tool of somebody else's.)"
    else:
        assert (memory.read_long_term(), note, log_of(memory), cursor(tmp_path)) == ("", "Before.", [], 0)


@pytest.mark.parametrize(
    ("key", "rows", "handover", "facts"),
    [
        ("telegram:7", turns(0, 10, provenance="person", scope=""), "", ""),
        (KEY, turns(0, 10, provenance="person", scope=""), "", "- Likes tea.\n"),
        (
            "telegram:7",
            turns(0, 10, scope=""),
            summary_metadata("Bob wants coffee.", Provenance.PERSON),
            "- Likes tea.\n",
        ),
    ],
    ids=["a guest", "nobody else writes there", "a handover of others"],
)
async def test_words_of_others_change_no_memory_of_the_owners(
    tmp_path: Path, key: str, rows: list[ChatMessage], handover: Any, facts: str
):
    await store(tmp_path, *rows, key=key, handover=handover)
    first = saving("Talked.", "- Likes coffee.", handover="Coffee is wanted.") if handover else saving()
    minded = Minded(first, saving())
    async with bot_with(tmp_path, minded, more=OPEN_TO_ALL) as bot:
        await bot.say("/compact", key)
        note = bot.session(key).metadata.get("handover")

    log = memory_of(tmp_path).history_file.read_text(encoding="utf-8")
    assert memory_of(tmp_path).read_long_term() == facts
    assert ("(In part from somebody else than the owner.)" in log) is (key != KEY)
    assert "coffee" not in minded.asked
    if handover:
        assert note == summary_metadata("Coffee is wanted.", Provenance.PERSON)


async def test_old_messages_of_a_group_are_shown_as_those_of_others(tmp_path: Path):
    rows: list[Any] = [{"role": row["role"], "content": row["content"]} for row in turns(0, 10)]
    await store(tmp_path, *rows, key="telegram:-7")
    minded = Minded(saving())
    async with bot_with(tmp_path, minded, more=OPEN_TO_ALL) as bot:
        await bot.say("/compact", "telegram:-7")

    assert "USER (not the owner): question 0" in minded.asked
    assert memory_of(tmp_path).read_long_term() == ""


# --- in the middle


async def test_model_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("nanobot.agent.memory.consolidation._LIMIT_S", 0.05)
    await store(tmp_path, *turns(0, 10))
    async with bot_with(tmp_path, Minded(Pause())) as bot:
        assert "no answer within" in await bot.say("/compact")

    assert cursor(tmp_path) == 0


async def test_cancel_while_the_disk_works_leaves_all_of_it_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    await store(tmp_path, *turns(0, 10))
    loop, append = asyncio.get_running_loop(), MemoryStore.append_history

    def cancel_midway(self: MemoryStore, entry: str) -> None:
        loop.call_soon_threadsafe(work.cancel)
        append(self, entry)

    monkeypatch.setattr(MemoryStore, "append_history", cancel_midway)
    async with bot_with(tmp_path, Minded(TEA)) as bot:
        work = asyncio.create_task(bot.say("/compact"))
        with pytest.raises(asyncio.CancelledError):
            await work

    assert memory_of(tmp_path).read_long_term() == "- Likes tea.\n"
    assert len(log_of(memory_of(tmp_path))) == 1
    assert cursor(tmp_path) == 12


@POSIX
async def test_kill_before_or_behind_any_write_loses_no_message_and_no_words(tmp_path: Path):
    """The log is written first, the memory second, and last the session's cursor moves."""
    folders = [tmp_path / str(point) for point in range(2, 11)]
    for folder in folders:
        await store(folder, *turns(0, 10))

    ends = (await asyncio.to_thread(told, "tests.programs.killed_memory", "/compact", *map(str, folders))).split()

    assert set(ends[:-1]) == {"-9"}
    assert ends[-1] == "0", "the last of them came to its end: each write was tried"
    left = [await what_a_kill_leaves(folder) for folder in folders]
    assert left == ["", *["log"] * 4, *["memory"] * 2, *["moved"] * 2]


async def what_a_kill_leaves(home: Path) -> str:
    """How far it got."""
    memory, moved = memory_of(home), cursor(home)
    log, facts = log_of(memory), memory.read_long_term()
    assert (len(log), facts) == (1, "- Likes tea.\n") or not moved
    async with bot_with(home, Minded(TEA)) as bot:
        assert ("Nothing was moved" in await bot.say("/compact")) is bool(moved)
        assert bot.session(KEY).message_count == 20
        changes = (await bot.say("/memory log")).splitlines()
    assert (cursor(home), memory.read_long_term()) == (12, "- Likes tea.\n")
    assert len(log_of(memory)) == 1 + (bool(log) and not moved)
    assert [line.count("  consolidation ") for line in changes] == [1], "no edit by hand"
    return "moved" if moved else "memory" if facts else "log" if log else ""
