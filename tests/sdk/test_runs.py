"""nanobot inside another program."""

import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import nanobot
from nanobot import Nanobot
from nanobot.agent.events import TurnEvent, TurnOutcome
from nanobot.agent.hooks import Hook, MessageSeen, NewText, RequestSeen, TurnSeen
from nanobot.errors import ConfigError, StorageError
from nanobot.providers.errors import ModelOverloadedError
from nanobot.sdk import ApprovalRequest, TurnFailed, tool
from nanobot.testing import ScriptedProvider, calls
from nanobot.testing.model_server import Calls, FakeModels, Say


def config_for(server: FakeModels, home: Path) -> Path:
    path = home / "config.json"
    content = {
        "agents": {"defaults": {"provider": "custom", "model": "m", "workspace": str(home / "workspace")}},
        "providers": {"custom": {"apiBase": server.v1}},
    }
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


async def test_a_file_that_does_not_exist_is_refused_before_a_model_is_asked():
    model = ScriptedProvider("I have read it.")

    with pytest.raises(FileNotFoundError, match=r"inv\.pdf"):
        await Nanobot.local(model=model).run("Read this invoice", media=["inv.pdf"])

    assert model.requests == []


class Marking(Hook):
    """Puts its mark behind the message of its run, and keeps what it hears."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.heard: list[str] = []

    async def on_message(self, message: MessageSeen) -> NewText:
        return NewText(f"{message.text}-{self.mark}")

    async def on_request(self, request: RequestSeen) -> None:
        self.heard.append(f"{request.model} {str(request.messages[-1]['content']).split()[0]}")

    async def on_turn_end(self, turn: TurnSeen) -> None:
        self.heard.append(turn.turn.session_key)


async def test_thirty_runs_at_once_with_hooks_models_and_sessions_of_their_own_never_cross(tmp_path: Path):
    marks = [Marking(f"mark{number}") for number in range(30)]
    everywhere = Marking("all")
    with FakeModels(default=Say("fine")) as server:
        async with nanobot.Nanobot.from_config(config_for(server, tmp_path), hooks=[everywhere]) as bot:
            await asyncio.gather(
                *(
                    bot.run(f"hi{number}", session=f"sdk:{number}", model=f"m{number % 7}", hooks=[marks[number]])
                    for number in range(30)
                )
            )

        sent = [(chat.json["model"], chat.json["messages"][-1]["content"].split()[0]) for chat in server.chats]

    assert sorted(sent) == sorted((f"m{number % 7}", f"hi{number}-all-mark{number}") for number in range(30))
    assert [one.heard for one in marks] == [
        [f"m{number % 7} hi{number}-all-mark{number}", f"sdk:{number}"] for number in range(30)
    ]
    assert len(everywhere.heard) == 60


_IMPORTS = """
import sys, nanobot
assert "nanobot.sdk" not in sys.modules
from nanobot import Nanobot
heavy = {"pydantic", "httpx", "starlette", "jsonschema", "litellm", "nanobot.channels", "nanobot.runtime"}
print(sorted(heavy & sys.modules.keys()))
"""


def test_the_import_is_lazy_and_brings_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", _IMPORTS], capture_output=True, text=True, check=False)

    assert done.stdout.strip() == "[]", done.stderr


async def test_a_bot_that_is_not_open_is_opened_once_for_all_its_runs_and_closed(tmp_path: Path):
    model = ScriptedProvider("one", "two", "three")
    bot = Nanobot.local(model=model, workspace=tmp_path)

    results = await asyncio.gather(*(bot.run("hi", session=f"s{number}") for number in range(3)))

    assert sorted(map(str, results)) == ["one", "three", "two"]
    with pytest.raises(RuntimeError, match="open the bot first"):
        bot.branch("s1")


async def test_a_local_bot_leaves_nothing_outside_of_its_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    tempfile.tempdir = None
    secret = {"path": ".nanobot/state/nanobot.db"}

    kept = Nanobot.local(model=ScriptedProvider("ok"), workspace=tmp_path / "kept")
    lost = Nanobot.local(model=ScriptedProvider(calls(("read_file", secret)), "No."))
    await kept.run("hi")
    result = await lost.run("Read your own state")

    tempfile.tempdir = None
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert [*Path.home().iterdir()] == []
    assert not result.steps[0].calls[0].ok, "its state is as private as that of any bot"


async def test_a_bot_without_a_file_knows_the_provider_of_its_model():
    with FakeModels(default=Say("hello")) as server:
        result = await Nanobot.local(model="m", api_key="sk-mine", api_base=server.v1).run("hi")

    assert result.text == "hello"
    assert server.chats[0].headers["authorization"] == "Bearer sk-mine"
    with pytest.raises(ConfigError, match="Write the provider before it"):
        Nanobot.local(model="never-heard-of", api_key="sk-mine")


@pytest.mark.parametrize(("budget", "asked"), [(0.01, 1), (10.0, 2)])
async def test_a_budget_ends_a_run_before_the_call_that_it_cannot_pay(tmp_path: Path, budget: float, asked: int):
    with FakeModels() as server:
        server.script(Calls(("list_dir", {"path": "."})), Say("A few files."))
        config = json.loads(config_for(server, tmp_path).read_text(encoding="utf-8"))
        config["providers"]["custom"]["prices"] = {"m": {"input": 1000, "output": 1000}}
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")

        result = await Nanobot.from_config(tmp_path / "config.json").run("What is there?", budget_usd=budget)

    assert len(server.chats) == asked
    assert result.has_price
    assert result.error == ("BudgetExceededError" if asked == 1 else None)
    assert result.outcome is (TurnOutcome.PARTIAL if asked == 1 else TurnOutcome.ANSWERED)


async def test_a_budget_refuses_a_model_without_a_price():
    model = ScriptedProvider("hi")

    result = await Nanobot.local(model=model).run("hi", budget_usd=1)

    assert (result.outcome, result.error, model.requests) == (TurnOutcome.REFUSED, "BudgetExceededError", [])


async def test_instructions_of_bot_and_run_come_after_our_own():
    model = ScriptedProvider("hi", "hi")
    async with Nanobot.local(model=model, instructions="Answer in rhymes.") as bot:
        await bot.run("hi", instructions="Be brief.")
        await bot.run("hi")

    first, second = (str(request[0]["content"]) for request in model.requests)
    assert first.endswith("Answer in rhymes.\n\nBe brief.")
    assert second.endswith("Answer in rhymes.")


async def test_an_ephemeral_run_has_no_tool_that_goes_on_after_it():
    model = ScriptedProvider("hi", "hi")
    async with Nanobot.local(model=model) as bot:
        await bot.run("hi")
        await bot.run("hi", ephemeral=True)

    kept, ephemeral = ({tool["function"]["name"] for tool in tools} for tools in model.tools)
    assert kept - ephemeral == {"spawn", "goal"}


async def test_a_failed_run_is_a_result_whose_output_says_why():
    async with Nanobot.local(model=ScriptedProvider(ModelOverloadedError("busy"))) as bot:
        result = await bot.run("hi", output=int)

    assert (result.outcome, result.ok) == (TurnOutcome.FAILED, False)
    with pytest.raises(TurnFailed, match="busy"):
        _ = result.output
    with pytest.raises(TurnFailed):
        result.check()


async def test_an_unknown_option_and_a_wrong_hook_are_refused_at_once():
    bot = Nanobot.local(model=ScriptedProvider())

    with pytest.raises(TypeError, match="sessions"):
        bot.stream("hi", sessions="mine")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="is no hook"):
        bot.stream("hi", hooks=["no"])  # type: ignore[list-item]


async def test_a_config_file_that_is_named_must_exist(tmp_path: Path):
    with pytest.raises(ConfigError, match="nowhere"):
        Nanobot.from_config(tmp_path / "nowhere.json")


async def test_hooks_that_are_functions_see_every_event_and_end_no_turn():
    seen: list[str] = []

    async def slowly(event: TurnEvent) -> None:
        await asyncio.sleep(0)
        seen.append(event.type)

    def broken(event: TurnEvent) -> None:
        raise OSError("no disk")

    async with Nanobot.local(model=ScriptedProvider("hi"), hooks=[broken]) as bot:
        stream = bot.stream("hi", hooks=[slowly])
        kinds = [event.type async for event in stream]

    assert seen == kinds
    assert (await stream.result()).ok


async def test_an_approval_that_fails_is_a_no_and_always_is_remembered():
    @tool(needs_approval=True)
    def send(text: str) -> str:
        """Send a text."""
        return "sent"

    def broken(request: ApprovalRequest) -> bool:
        raise OSError("no terminal")

    call = calls(("send", {"text": "a"}))
    model = ScriptedProvider(call, "No.", call, "Sent once.", call, "Sent twice.")
    async with Nanobot.local(model=model, tools=[send]) as bot:
        refused = await bot.run("send", approve=broken)
        first = await bot.run("send", approve=lambda request: "always")
        again = await bot.run("send")

    assert [run.steps[0].calls[0].ok for run in (refused, first, again)] == [False, True, True]


async def test_a_branch_ends_after_the_turn_that_is_named():
    model = ScriptedProvider("one", "two", "three")
    async with Nanobot.local(model=model) as bot:
        first = await bot.run("1")
        await bot.run("2")
        await bot.run("3", session=bot.branch("sdk:default", at=first.turn_id))
        with pytest.raises(StorageError, match="no turn"):
            bot.branch("sdk:default", at="never")

    assert [row["content"] for row in model.requests[-1][1:]] == ["1", "one", "3"]


async def test_the_names_of_the_original_still_work(tmp_path: Path):
    model = ScriptedProvider(calls(("list_dir", {"path": "."})), "A few files.", "hi")
    async with Nanobot.local(model=model) as bot:
        run = await bot.run_streamed("What is there?", session_key="mine", channel="web", chat_id="7", sender_id="ana")
        kinds = [event.type async for event in run.stream_events()]
        result = await run.wait()
        stored = bot.sessions.get_or_create("mine").messages

    assert list(dict.fromkeys(kinds)) == [
        "run.started", "tool.started", "tool.completed", "text.delta", "text.completed", "run.completed"
    ]  # fmt: skip
    assert (result.content, result.tools_used, result.stop_reason) == ("A few files.", ["list_dir"], "completed")
    assert [row["role"] for row in result.messages] == [row["role"] for row in stored]
    assert stored[0]["sender_id"] == "ana"
    assert dict(result.usage)["total_tokens"] == result.usage.total_tokens
