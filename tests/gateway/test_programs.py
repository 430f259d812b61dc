"""Programs in the running gateway: `Nanobot.connect()`."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any, Literal

import pytest

from nanobot import Nanobot
from nanobot.agent.events import TurnOutcome
from nanobot.config.paths import use_config
from nanobot.net.gateway_socket import GatewayError
from nanobot.sdk import ApprovalRequest
from nanobot.session.manager import SessionManager
from nanobot.testing import Pause, calls
from tests.house.repo import ROOT, text_of
from tests.support.running_gateway import OpenGateway

AT_SIX = {"action": "add", "message": "Call Ana", "at": "2030-01-01T18:00:00", "deliver": True}


async def test_the_example_of_the_guide_runs(running: OpenGateway):
    section = text_of(ROOT / "docs" / "guides" / "sdk.md").partition("\n## The gateway that runs\n")[2]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {}
    exec(found[1], names)

    async with running("At six.") as here:
        use_config(here.home / "config.json")
        await names["remind"]()

        session = SessionManager(here.home / "workspace").get_or_create("telegram:123")

    assert [row["content"] for row in session.messages] == ["Remind me at six to call Ana", "At six."]


async def test_a_reminder_that_a_program_asks_for_goes_to_the_chat_of_the_session(running: OpenGateway):
    async with running(calls(("cron", AT_SIX)), "I remind you at six.") as here:
        use_config(here.home / "config.json")
        async with Nanobot.connect() as bot:
            result = await bot.run("Remind me at six to call Ana", session="toy:7")
            await here.gateway.channels.manager.drain()
        (job,) = json.loads((here.home / "workspace" / "cron" / "jobs.json").read_text(encoding="utf-8"))["jobs"]

    assert result.text == "I remind you at six."
    assert here.toy.got() == []  # the program has the answer
    assert result.tools_used == ["cron"]
    assert (job["payload"]["channel"], job["payload"]["to"]) == ("toy", "7")


async def test_options_of_a_run_count_in_the_gateway_too(running: OpenGateway):
    async with running("maybe", "yes") as here:
        use_config(here.home / "config.json")
        async with Nanobot.connect() as bot:
            result = await bot.run(
                "Yes or no?", output=Literal["yes", "no"], instructions="Be brief.", ephemeral=True, model="other"
            )
        stored = SessionManager(here.home / "workspace").list_sessions()

    assert (result.output, result.model) == ("yes", "other")
    assert str(here.model.requests[0][0]["content"]).endswith("Be brief.")
    assert stored == []


async def test_a_program_approves_calls_in_the_gateway(running: OpenGateway, tmp_path: Path):
    asked: list[str] = []
    outside = tmp_path / "outside" / "note.txt"

    async def approve(request: ApprovalRequest) -> bool:
        asked.append(request.tool)
        return True

    async with running(calls(("write_file", {"path": str(outside), "content": "hi"})), "It is there.") as here:
        use_config(here.home / "config.json")
        async with Nanobot.connect() as bot:
            result = await bot.run("Write it", approve=approve)

    assert asked == ["write_file"]
    assert outside.read_text(encoding="utf-8") == "hi"
    assert result.files == (outside,)


async def test_a_run_in_the_gateway_is_stopped_by_its_timeout_and_by_its_session(running: OpenGateway):
    async with running(Pause("So far ")) as here:
        use_config(here.home / "config.json")
        async with Nanobot.connect() as bot:
            late = await bot.run("go", timeout=2)
            here.model.clear()
            pause = Pause("Again ")
            here.model.script(pause)
            running_turn = asyncio.create_task(bot.run("go on"))
            await pause.reached.wait()
            is_stopped = await bot.stop("sdk:default")
            stopped = await running_turn

    assert (late.outcome, late.error, late.text.strip()) == (TurnOutcome.STOPPED, "TimeoutError", "So far")
    assert is_stopped
    assert (stopped.outcome, stopped.text.strip()) == (TurnOutcome.STOPPED, "Again")


async def test_what_the_gateway_cannot_do_for_a_program_is_said_at_once(running: OpenGateway, tmp_path: Path):
    def stock(item: str) -> int:
        """Count."""
        return 1

    use_config(tmp_path / "nowhere" / "config.json")
    with pytest.raises(GatewayError, match="No gateway is running"):
        await Nanobot.connect().run("hi")
    async with running() as here:
        use_config(here.home / "config.json")
        async with Nanobot.connect() as bot:
            with pytest.raises(ValueError, match="functions of this program"):
                await bot.run("hi", tools=[stock])
            with pytest.raises(Exception, match="use from_config"):
                bot.branch("telegram:123")
