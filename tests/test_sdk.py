"""nanobot inside another program."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import nanobot
from nanobot.agent.events import TurnEnded, TurnOutcome
from nanobot.agent.hooks.api import Hook, MessageSeen, NewText, RequestSeen, TurnSeen
from nanobot.testing.model_server import Calls, FakeModels, Say


def config_for(server: FakeModels, home: Path) -> Path:
    path = home / "config.json"
    content = {
        "agents": {"defaults": {"provider": "custom", "model": "m", "workspace": str(home / "workspace")}},
        "providers": {"custom": {"apiBase": server.v1}},
    }
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


async def test_run_waits_for_the_end_of_the_turn(tmp_path: Path):
    with FakeModels() as server:
        server.script(Calls(("list_dir", {"path": "."})), Say("A few files."))

        async with nanobot.Nanobot.from_config(config_for(server, tmp_path)) as bot:
            result = await bot.run("What is there?")

    assert (result.outcome, result.text) == (TurnOutcome.ANSWERED, "A few files.")


async def test_stream_gives_every_event_and_ends_with_the_turn(tmp_path: Path):
    with FakeModels() as server:
        server.script(Say("hello there"))

        async with nanobot.Nanobot.from_config(config_for(server, tmp_path)) as bot:
            events = [event async for event in bot.stream("hi")]

    assert "text_delta" in [event.type for event in events]
    assert isinstance(events[-1], TurnEnded)
    assert events[-1].text == "hello there"


async def test_sessions_are_apart(tmp_path: Path):
    with FakeModels() as server:
        async with nanobot.Nanobot.from_config(config_for(server, tmp_path)) as bot:
            await bot.run("the word is plum", session="sdk:one")
            await bot.run("what is the word?", session="sdk:two")

        assert "plum" not in str(server.chats[1].json["messages"][1:])


async def test_the_window_that_the_server_lists_is_used_unless_the_config_sets_one(tmp_path: Path):
    with FakeModels(models=["m"], context_length=128_000) as server:
        async with nanobot.Nanobot.from_config(config_for(server, tmp_path)) as bot:
            status = ""
            while "128,000 tokens" not in status:
                status = (await bot.run("/status")).text
                await asyncio.sleep(0.01)
        config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
        config["agents"]["defaults"]["contextWindowTokens"] = 32_000
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        async with nanobot.Nanobot.from_config(tmp_path / "config.json") as bot:
            configured = (await bot.run("/status")).text

    assert "32,000 tokens" in configured


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


async def test_a_hundred_runs_at_once_with_hooks_models_and_sessions_of_their_own_never_cross(tmp_path: Path):
    marks = [Marking(f"mark{number}") for number in range(100)]
    everywhere = Marking("all")
    with FakeModels(default=Say("fine")) as server:
        async with nanobot.Nanobot.from_config(config_for(server, tmp_path), hooks=[everywhere]) as bot:
            await asyncio.gather(
                *(
                    bot.run(f"hi{number}", session=f"sdk:{number}", model=f"m{number % 7}", hooks=[marks[number]])
                    for number in range(100)
                )
            )

        sent = [(chat.json["model"], chat.json["messages"][-1]["content"].split()[0]) for chat in server.chats]

    assert sorted(sent) == sorted((f"m{number % 7}", f"hi{number}-all-mark{number}") for number in range(100))
    assert [one.heard for one in marks] == [
        [f"m{number % 7} hi{number}-all-mark{number}", f"sdk:{number}"] for number in range(100)
    ]
    assert len(everywhere.heard) == 200


async def test_a_stream_has_its_hooks_and_its_model_too(tmp_path: Path):
    mark = Marking("mine")
    with FakeModels(default=Say("fine")) as server:
        async with nanobot.Nanobot.from_config(config_for(server, tmp_path)) as bot:
            assert [event async for event in bot.stream("hi", model="other", hooks=[mark])]

        assert server.chats[0].json["model"] == "other"
    assert mark.heard[0] == "other hi-mine"


def test_the_name_is_offered_without_being_loaded():
    code = "import sys, nanobot; print('nanobot.sdk' in sys.modules, nanobot.Nanobot and 'nanobot.sdk' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stdout.split() == ["False", "True"], done.stderr
