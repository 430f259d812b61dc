"""A gateway somewhere else, through its API: `Nanobot.connect(url, token=...)`."""

import asyncio
from pathlib import Path
from typing import Any, Literal

import pytest

from nanobot import Nanobot
from nanobot.agent.events import TurnOutcome
from nanobot.net.gateway_socket import GatewayError
from nanobot.sdk import ApprovalRequest
from nanobot.security.credentials import HttpRole
from nanobot.session.manager import SessionManager
from nanobot.testing import Pause, calls
from nanobot.testing.model_server import Calls, FakeModels, Hang, Say
from tests.support.api_client import api_key, base_url
from tests.support.home import POSIX
from tests.support.running_gateway import OpenGateway, Running, gateway_opener
from tests.support.toy_gateway import GatewayHome


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenGateway:
    return gateway_opener(tmp_path, monkeypatch)


async def connect(here: Running, role: HttpRole = HttpRole.OWNER) -> Nanobot:
    return Nanobot.connect(base_url(here), token=await api_key(here, "laptop", role))


async def test_a_program_elsewhere_sees_the_same_events_and_continues_its_session(running: OpenGateway):
    async with running(calls(("list_dir", {"path": "."})), "It is empty.", "Rome") as here:
        async with await connect(here) as bot:
            stream = bot.stream("Look around", session="trip")
            events = [event async for event in stream]
            first = await stream.result()
            second = await bot.run("Where to?", session="trip", instructions="Be brief.")
        through_api = [item.event for item in here.gateway.web.feed.items_after(-1)]

    turn = [event for event in through_api if event.turn_id == first.turn_id and event.seq >= 0]
    assert events == turn
    assert (first.text, first.tools_used, second.text) == ("It is empty.", ["list_dir"], "Rome")
    assert "Look around" in str(here.model.requests[-1])
    assert str(here.model.requests[-1][0]["content"]).endswith("Be brief.")


async def test_files_typed_answers_and_nothing_kept_work_over_http(running: OpenGateway, tmp_path: Path):
    note = tmp_path / "note.txt"
    note.write_text("the milk")
    async with running("maybe", "yes") as here, await connect(here) as bot:
        result = await bot.run("Is it milk?", media=[note], output=Literal["yes", "no"], ephemeral=True)

        stored = SessionManager(here.home / "workspace").list_sessions()

    assert result.output == "yes"
    assert stored == []
    assert "note" in str(here.model.requests[0])


async def test_calls_are_approved_from_elsewhere_and_refused_where_nobody_is_asked(
    running: OpenGateway, tmp_path: Path
):
    outside = tmp_path / "outside" / "note.txt"
    write = calls(("write_file", {"path": str(outside), "content": "hi"}))
    asked: list[str] = []

    def approve(request: ApprovalRequest) -> bool:
        asked.append(request.tool)
        return True

    async with running(write, "No.", write, "Done.") as here, await connect(here) as bot:
        refused = await bot.run("Write it")
        is_there = outside.exists()
        approved = await bot.run("Write it", approve=approve)

    assert (is_there, refused.steps[0].calls[0].ok) == (False, False)
    assert (asked, approved.steps[0].calls[0].ok) == (["write_file"], True)
    assert outside.read_text(encoding="utf-8") == "hi"


async def test_a_run_elsewhere_is_stopped_by_its_timeout_and_by_its_session(running: OpenGateway):
    async with running(Pause("So far ")) as here, await connect(here) as bot:
        late = await bot.run("go", timeout=3)
        here.model.clear()
        pause = Pause("Again ")
        here.model.script(pause)
        turn = asyncio.create_task(bot.run("go on", session="other"))
        await pause.reached.wait()
        is_stopped = await bot.stop("other")
        stopped = await turn

    assert (late.outcome, late.error, late.text.strip()) == (TurnOutcome.STOPPED, "TimeoutError", "So far")
    assert is_stopped
    assert (stopped.outcome, stopped.text.strip()) == (TurnOutcome.STOPPED, "Again")


async def test_what_does_not_work_over_http_is_said_at_once(running: OpenGateway):
    def stock(item: str) -> int:
        """Count."""
        return 1

    async with running() as here:
        with pytest.raises(GatewayError, match="api key add"):
            await Nanobot.connect(base_url(here), token="guessed").run("hi")
        with pytest.raises(GatewayError, match="No gateway answers"):
            await Nanobot.connect("http://127.0.0.1:1").run("hi")
        async with await connect(here) as bot:
            for options in ({"tools": [stock]}, {"session": "telegram:1"}, {"budget_usd": 1.0}):
                with pytest.raises(ValueError, match=r"functions of this program|Over HTTP"):
                    await bot.run("hi", **options)


@POSIX
async def test_a_program_elsewhere_reads_the_same_text_once_although_the_gateway_is_killed(tmp_path: Path):
    with FakeModels() as server:
        home = GatewayHome(tmp_path, server)
        key = home.run("api", "key", "add", "laptop").out.strip()
        url = f"http://127.0.0.1:{home.config['gateway']['port']}"
        server.script(Calls(("list_dir", {"path": "."}), text="I look."), Hang(after="The answer is "))
        text = ""
        with home.gateway() as first:
            async with Nanobot.connect(url, token=key) as bot:
                stream = bot.stream("what is it?")
                events: Any = aiter(stream)
                async for event in events:
                    text += event.delta
                    if text.endswith("The answer is "):
                        break
                first.kill()
                server.script(Say("forty-two."))
                opening = home.gateway()
                await asyncio.to_thread(opening.__enter__)
                try:
                    async for event in events:
                        text += event.delta
                    result = await stream.result()
                finally:
                    opening.__exit__(None, None, None)

    assert text == "I look.The answer is forty-two."
    assert (result.text, result.tools_used) == ("The answer is forty-two.", ["list_dir"])
    assert len(server.chats) == 3
