"""nanobot inside another program."""

import json
import subprocess
import sys
from pathlib import Path

import nanobot
from nanobot.agent.turn import TurnEnded, TurnOutcome
from tests.fake_models import Calls, FakeModels, Say


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


def test_the_name_is_offered_without_being_loaded():
    code = "import sys, nanobot; print('nanobot.sdk' in sys.modules, nanobot.Nanobot and 'nanobot.sdk' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stdout.split() == ["False", "True"], done.stderr
