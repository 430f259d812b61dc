"""No task, no call; nothing changed, no call; nothing to say, nothing sent."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nanobot.heartbeat.service import HeartbeatService
from nanobot.messages.tokens import estimate_tokens
from nanobot.providers.base import LLMResponse, ToolCallRequest, call_context
from nanobot.providers.errors import AuthenticationError, ModelOverloadedError
from nanobot.testing import ScriptedProvider
from nanobot.utils.clock import FrozenClock
from nanobot.utils.resources import templates_dir

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
        self.heard: datetime | None = None
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
            last_user=lambda: self.heard,
        )

    async def execute(self, tasks: str) -> str:
        self.done.append(tasks)
        return self.result

    async def notify(self, text: str) -> None:
        self.said.append(text)

    async def looks(self, times: int, every_s: float = 1800) -> None:
        for _ in range(times):
            self.clock.advance(every_s)
            await self.service.look()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


async def test_the_shipped_template_costs_nothing_in_a_day(tmp_path: Path):
    desk = Desk(tmp_path, (templates_dir() / "HEARTBEAT.md").read_text(encoding="utf-8"))

    await desk.looks(48)

    assert desk.provider.requests == []


async def test_a_task_is_decided_on_done_and_told_once_a_day(desk: Desk):
    desk.provider.script(decides(action="run", tasks="water the roses"))

    await desk.looks(20)

    assert desk.done == ["water the roses"]
    assert desk.said == ["Watered."]
    assert len(desk.provider.requests) == 1


async def test_what_changed_is_looked_at_again(desk: Desk):
    desk.provider.script(*[decides(action="skip")] * 4)
    watched = desk.home / "beds.csv"
    desk.file.write_text("- [ ] water what beds.csv says", encoding="utf-8")

    await desk.looks(2)
    watched.write_text("roses", encoding="utf-8")
    await desk.looks(2)
    desk.file.write_text("- [ ] water what beds.csv says\n- [ ] feed the cat", encoding="utf-8")
    await desk.looks(2)
    await desk.looks(1, every_s=86400)

    assert len(desk.provider.requests) == 4
    assert desk.done == []


async def test_a_model_may_ask_to_be_asked_again(desk: Desk):
    desk.provider.script(decides(action="skip", again_in_minutes=60), decides(action="run", tasks="now"))

    await desk.looks(1)
    await desk.looks(1)
    assert len(desk.provider.requests) == 1
    await desk.looks(1)

    assert desk.done == ["now"]


async def test_what_was_decided_outlives_a_restart(desk: Desk):
    desk.provider.script(decides(action="skip"))
    await desk.looks(1)

    desk.service = desk.opened()
    await desk.looks(3)

    assert len(desk.provider.requests) == 1


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
    assert estimate_tokens(words + str(tools)) < 2000
    assert [message["role"] for message in request] == ["system", "user"]
    assert "task 250" not in words


async def test_the_ledger_hears_what_the_question_was_for(tmp_path: Path):
    causes = []

    class Asked(ScriptedProvider):
        async def chat(self, *args: Any, **kwargs: Any) -> LLMResponse:
            causes.append(call_context().cause)
            return decides(action="skip")

    (tmp_path / "HEARTBEAT.md").write_text("- water", encoding="utf-8")

    await HeartbeatService(tmp_path, Asked()).look()

    assert causes == ["heartbeat"]


async def test_it_pauses_when_nobody_has_written_for_a_day(desk: Desk):
    desk.heard = NOON - timedelta(hours=25)

    await desk.looks(3)
    paused = desk.service.paused
    desk.heard = desk.clock.now()
    desk.provider.script(decides(action="skip"))
    await desk.looks(1)

    assert "nobody has written" in paused
    assert desk.service.paused == ""
    assert len(desk.provider.requests) == 1


async def test_a_key_that_is_refused_is_not_tried_at_every_look_but_a_busy_model_is(desk: Desk):
    desk.provider.script(ModelOverloadedError("busy"), AuthenticationError("no such key"))

    for _ in range(2):
        with pytest.raises((ModelOverloadedError, AuthenticationError)):
            await desk.looks(1)
    await desk.looks(5)

    assert len(desk.provider.requests) == 2
    assert "no such key" in desk.service.paused


async def test_it_can_be_asked_to_look_now(desk: Desk):
    desk.provider.script(*[decides(action="run", tasks="water")] * 2)

    first, second = await desk.service.trigger_now(), await desk.service.trigger_now()

    assert (first, second) == ("Watered.", "Watered.")


async def test_off_is_off(desk: Desk):
    desk.service.enabled = False

    await desk.service.start()
    desk.service.stop()

    assert desk.provider.requests == []
