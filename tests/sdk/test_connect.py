"""A gateway that runs: `Nanobot.connect()` on this machine, `Nanobot.connect(url, token=...)` elsewhere."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
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
from nanobot.testing.model_server import Calls, FakeModels, Hang, Say
from tests.house.repo import ROOT, text_of
from tests.support.api_client import api_key, base_url
from tests.support.home import POSIX
from tests.support.running_gateway import OpenGateway, Running, gateway_opener
from tests.support.toy_gateway import GatewayHome

Connect = Callable[[Running], Awaitable[Nanobot]]
AT_SIX = {"action": "add", "message": "Call Ana", "at": "2126-01-01T18:00:00", "deliver": True}


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenGateway:
    return gateway_opener(tmp_path, monkeypatch)


async def here_connected(here: Running) -> Nanobot:
    use_config(here.home / "config.json")
    return Nanobot.connect()


async def connected_elsewhere(here: Running) -> Nanobot:
    return Nanobot.connect(base_url(here), token=await api_key(here, "laptop"))


both_ways = pytest.mark.parametrize("connect", [here_connected, connected_elsewhere], ids=["socket", "HTTP"])


def stock(item: str) -> int:
    """Count."""
    return 1


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
        async with await here_connected(here) as bot:
            result = await bot.run("Remind me at six to call Ana", session="toy:7")
            await here.gateway.channels.manager.drain()
        (job,) = json.loads((here.home / "workspace" / "cron" / "jobs.json").read_text(encoding="utf-8"))["jobs"]

    assert (result.text, result.tools_used) == ("I remind you at six.", ["cron"])
    assert here.toy.got() == []  # the program has the answer
    assert (job["payload"]["channel"], job["payload"]["to"]) == ("toy", "7")


async def test_a_program_elsewhere_sees_the_same_events_and_continues_its_session(running: OpenGateway):
    async with running(calls(("list_dir", {"path": "."})), "It is empty.", "Rome") as here:
        async with await connected_elsewhere(here) as bot:
            stream = bot.stream("Look around", session="trip")
            events = [event async for event in stream]
            first = await stream.result()
            second = await bot.run("Where to?", session="trip")
        through_api = [item.event for item in here.gateway.web.feed.items_after(-1)]

    turn = [event for event in through_api if event.turn_id == first.turn_id and event.seq >= 0]
    assert events == turn
    assert (first.text, first.tools_used, second.text) == ("It is empty.", ["list_dir"], "Rome")
    assert "Look around" in str(here.model.requests[-1])


@both_ways
async def test_options_of_a_run_count_in_the_gateway_too(running: OpenGateway, tmp_path: Path, connect: Connect):
    note = tmp_path / "note.txt"
    note.write_text("the milk")
    async with running("maybe", "yes") as here, await connect(here) as bot:
        options: dict[str, Any] = {"instructions": "Be brief.", "ephemeral": True, "model": "other", "media": [note]}
        result = await bot.run("Is it milk?", output=Literal["yes", "no"], **options)

        stored = SessionManager(here.home / "workspace").list_sessions()

    assert (result.output, stored) == ("yes", [])
    assert result.model == ("other" if connect is here_connected else "scripted")  # as for other clients of the API
    assert str(here.model.requests[0][0]["content"]).endswith("Be brief.")
    assert "note" in str(here.model.requests[0])


@both_ways
async def test_calls_are_approved_by_the_program_and_refused_where_nobody_is_asked(
    running: OpenGateway, tmp_path: Path, connect: Connect
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


@both_ways
async def test_a_run_is_stopped_by_its_timeout_and_by_its_session(running: OpenGateway, connect: Connect):
    async with running(Pause("So far ")) as here, await connect(here) as bot:
        late = await bot.run("go", timeout=2)
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


async def test_what_a_gateway_cannot_do_for_a_program_is_said_at_once(running: OpenGateway, tmp_path: Path):
    use_config(tmp_path / "nowhere" / "config.json")
    with pytest.raises(GatewayError, match="No gateway is running"):
        await Nanobot.connect().run("hi")
    with pytest.raises(GatewayError, match="No gateway answers"):
        await Nanobot.connect("http://127.0.0.1:1").run("hi")
    async with running() as here:
        with pytest.raises(GatewayError, match="api key add"):
            await Nanobot.connect(base_url(here), token="guessed").run("hi")
        async with await here_connected(here) as bot:
            with pytest.raises(ValueError, match="functions of this program"):
                await bot.run("hi", tools=[stock])
            with pytest.raises(Exception, match="use from_config"):
                bot.branch("telegram:123")
        async with await connected_elsewhere(here) as bot:
            for options in ({"tools": [stock]}, {"session": "telegram:1"}, {"budget_usd": 1.0}):
                with pytest.raises(ValueError, match=r"functions of this program|Over HTTP"):
                    await bot.run("hi", **options)


@POSIX
@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["socket", "HTTP"])
async def test_a_program_reads_the_same_text_once_although_the_gateway_is_killed(tmp_path: Path, is_elsewhere: bool):
    with FakeModels() as server:
        home = GatewayHome(tmp_path, server)
        use_config(home.data / "config.json")
        key = home.run("api", "key", "add", "laptop").out.strip()
        url = f"http://127.0.0.1:{home.config['gateway']['port']}"
        server.script(Calls(("list_dir", {"path": "."}), text="I look."), Hang(after="The answer is "))
        text, types = "", []
        with home.gateway() as first:
            async with Nanobot.connect(url, token=key) if is_elsewhere else Nanobot.connect() as bot:
                stream = bot.stream("what is it?")
                events: Any = aiter(stream)
                async for event in events:
                    text += event.delta
                    types.append(event.type)
                    if text.endswith("The answer is "):
                        break
                first.kill()
                server.script(Say("forty-two."))
                opening = home.gateway()
                await asyncio.to_thread(opening.__enter__)
                try:
                    async for event in events:
                        text += event.delta
                        types.append(event.type)
                    result = await stream.result()
                finally:
                    opening.__exit__(None, None, None)

    assert text == "I look.The answer is forty-two."
    assert (result.text, result.tools_used) == ("The answer is forty-two.", ["list_dir"])
    assert len(server.chats) == 3
    for name in ("run", "step", "text", "tool"):
        assert types.count(f"{name}_started") == types.count(f"{name}_ended")
