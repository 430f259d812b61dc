"""No task, no call; an open task is looked at every interval; nothing to say, nothing sent."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from nanobot.errors import BudgetExceededError
from nanobot.heartbeat.service import HeartbeatService
from nanobot.providers.base import LLMResponse, ToolCallRequest, call_context
from nanobot.providers.errors import AuthenticationError, ModelOverloadedError
from nanobot.testing import ScriptedProvider
from nanobot.utils.clock import FrozenClock
from nanobot.utils.installation import templates_dir

NOON = datetime(2026, 11, 22, 12, 0).astimezone()


def decides(**arguments: object) -> LLMResponse:
    return LLMResponse(None, tool_calls=[ToolCallRequest("1", "heartbeat", dict(arguments))])


class Desk:
    """A heartbeat over a scripted model; what it did and said."""

    def __init__(self, home: Path, tasks: str = "- [ ] water the plants", result: str = "Watered.") -> None:
        self.home = home
        self.file = home / "HEARTBEAT.md"
        self.file.write_text(tasks, encoding="utf-8")
        self.provider = ScriptedProvider()
        self.clock = FrozenClock(NOON)
        self.result = result
        self.done: list[str] = []
        self.said: list[str] = []
        self.service = self.opened()

    def opened(self) -> HeartbeatService:
        return HeartbeatService(
            self.home,
            self.provider,
            "small",
            self.execute,
            self.notify,
            clock=self.clock,
            state_file=self.home / "heartbeat.json",
        )

    async def execute(self, tasks: str) -> str:
        self.done.append(tasks)
        return self.result

    async def notify(self, text: str) -> None:
        self.said.append(text)

    async def looks(self, times: int, every_s: float = 1800) -> None:
        for _ in range(times):
            self.clock.advance(every_s)
            await self.service.check()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


async def test_the_shipped_template_costs_nothing_in_a_day(tmp_path: Path):
    desk = Desk(tmp_path, (templates_dir() / "HEARTBEAT.md").read_text(encoding="utf-8"))

    await desk.looks(48)

    assert desk.provider.requests == []


async def test_a_standing_watch_goes_on_for_days_while_nobody_writes(tmp_path: Path):
    desk = Desk(tmp_path, "- [ ] check the door every half hour", result="The door is shut.")
    desk.provider.script(*[decides(action="run", tasks="check the door")] * 3 * 48)

    await desk.looks(3 * 48)

    assert len(desk.provider.requests) == len(desk.done) == len(desk.said) == 3 * 48
    assert desk.service.paused == ""


async def test_the_question_says_what_was_done_lately_also_after_a_restart(desk: Desk):
    desk.provider.script(decides(action="run", tasks="water the roses"), *[decides(action="skip")] * 2)

    await desk.looks(2)
    desk.service = desk.opened()
    await desk.looks(1)

    first, *later = [str(request[1]["content"]) for request in desk.provider.requests]
    assert "water the roses" not in first
    assert ["- 2026-11-22 12:30: water the roses" in text for text in later] == [True, True]
    assert desk.done == ["water the roses"]


async def test_a_change_is_looked_at_before_the_time_that_was_named_which_outlives_a_restart(desk: Desk):
    desk.provider.script(*[decides(action="skip", again_in_minutes=7 * 24 * 60)] * 4)
    watched = desk.home / "beds.csv"
    desk.file.write_text("- [ ] water what beds.csv says", encoding="utf-8")

    await desk.looks(1)
    desk.service = desk.opened()
    await desk.looks(1)
    watched.write_text("roses", encoding="utf-8")
    await desk.looks(2)
    desk.file.write_text("- [ ] water what beds.csv says\n- [ ] feed the cat", encoding="utf-8")
    await desk.looks(2)
    await desk.looks(1, every_s=86400)

    assert len(desk.provider.requests) == 4
    assert desk.done == []


@pytest.mark.parametrize("result", ["", "HEARTBEAT_OK", "**HEARTBEAT_OK**", "All is well. HEARTBEAT_OK"])
async def test_nothing_to_say_is_not_said(tmp_path: Path, result):
    desk = Desk(tmp_path, result=result)
    desk.provider.script(decides(action="run", tasks="look"))

    await desk.looks(1)

    assert desk.done == ["look"]
    assert desk.said == []


@pytest.mark.parametrize(
    "answer",
    [LLMResponse(content="HEARTBEAT_OK"), LLMResponse(content="I will run it!"), decides(), decides(action=["run"])],
)
async def test_an_answer_that_is_no_clear_yes_sets_nothing_going(desk: Desk, answer):
    desk.provider.script(answer)

    await desk.looks(1)

    assert desk.done == []


async def test_the_question_is_small_and_knows_no_history(tmp_path: Path):
    desk = Desk(tmp_path, "\n".join(f"- [ ] task {number} {'x' * 200}" for number in range(500)))
    desk.provider.script(decides(action="skip"))

    await desk.looks(1)

    (request,), (tools,) = desk.provider.requests, desk.provider.tools
    words = "".join(str(message["content"]) for message in request)
    assert len(words + str(tools)) < 9000  # two thousand tokens
    assert [message["role"] for message in request] == ["system", "user"]
    assert "task 250" not in words


@pytest.mark.parametrize("error", [AuthenticationError("no such key"), BudgetExceededError("limits.dailyUsd is spent")])
async def test_a_pause_tells_the_owner_once_when_and_why_and_ends_with_the_day(desk: Desk, error: Exception):
    desk.provider.script(ModelOverloadedError("busy"), error)

    for expected in (ModelOverloadedError, type(error)):
        with pytest.raises(expected):
            await desk.looks(1)
    await desk.looks(5)

    assert len(desk.provider.requests) == 2
    assert str(error) in desk.service.paused
    [said] = desk.said
    assert said.startswith(f"The heartbeat is paused since 2026-11-22 13:00: {error}")

    desk.provider.script(error, decides(action="skip"))
    with pytest.raises(type(error)):
        await desk.looks(1, every_s=86400)
    await desk.looks(1, every_s=86400)

    assert desk.said == [said]
    assert desk.service.paused == ""


async def test_it_can_be_asked_to_look_now_and_the_ledger_hears_what_for(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    causes = []
    desk.provider.script(*[decides(action="run", tasks="water")] * 2)
    chat = desk.provider.chat

    async def noted(*args: Any, **kwargs: Any) -> LLMResponse:
        causes.append(call_context().cause)
        return await chat(*args, **kwargs)

    monkeypatch.setattr(desk.provider, "chat", noted)
    assert [await desk.service.trigger_now() for _ in range(2)] == ["Watered.", "Watered."]
    assert causes == ["heartbeat", "heartbeat"]
