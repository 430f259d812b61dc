"""Hooks that are programs: told on stdin, heard on stdout, and behind the same wall as all others."""

import asyncio
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.events import ToolEnded, TurnOutcome
from nanobot.config.schema import Config
from nanobot.testing import calls, open_bot

LOOK = ("list_dir", {"path": "."})


def config(code: str, *on: str, **more: Any) -> Config:
    program = {"command": [sys.executable, "-I", "-S", "-c", code], "on": [*on], **more}
    return Config.model_validate({"plugins": {"commands": {"mine": program}}})


def saying(said: object) -> str:
    return f"print({json.dumps(said)!r})"


async def test_a_program_denies_a_message_and_its_sender_reads_why(tmp_path: Path):
    async with open_bot(tmp_path, config=config(saying({"deny": "Not today."}), "message")) as bot:
        result = await bot.turn("hi")

    assert (result.outcome, result.text) == (TurnOutcome.REFUSED, "Not today.")


async def test_a_program_is_told_what_happens_and_changes_it(tmp_path: Path):
    code = (
        "import json, sys; told = json.load(sys.stdin); event = told.pop('event')\n"
        "print(json.dumps({'arguments': {'path': './' + told['name']}} if event == 'beforeTool' else "
        "{'text': told['call']['arguments']['path'] + ' for ' + told['call']['turn']['session_key']}))"
    )
    (tmp_path / "workspace" / "list_dir").mkdir(parents=True)
    async with open_bot(tmp_path, calls(LOOK), "done", config=config(code, "beforeTool", "afterTool")) as bot:
        await bot.say("go")

    assert bot.provider.requests[1][-1]["content"] == "./list_dir for cli:direct"


@pytest.mark.parametrize(
    ("code", "said", "guard"),
    [
        ("import sys; sys.exit('no disk')", "it exited with 1: no disk", False),
        ("import sys; sys.exit('no disk')", "it exited with 1: no disk", True),
        ("print('hello')", "not a JSON object", False),
        ("print('[1]')", "not a JSON object", True),
        (saying({"text": "x"}), "its output has text, which is not allowed for this event", False),
        ("import time; time.sleep(60)", "took more than 0.5 s", True),
    ],
)
async def test_a_program_that_fails_is_told_and_denies_only_as_a_guard(
    tmp_path: Path, code: str, said: str, guard: bool
):
    wants = config(code, "beforeTool", guard=guard)
    wants.plugins.hook_timeout_s = 0.5

    began = time.monotonic()
    async with open_bot(tmp_path, calls(LOOK), "done", config=wants) as bot:
        assert await bot.say("go") == "done"
        (told,) = (line for line in (await bot.say("/status")).splitlines() if line.startswith("Plugins: "))

    assert time.monotonic() - began < 10
    assert told.startswith("Plugins: plugins.commands.mine: before_tool ") and said in told
    assert [one.ok for one in bot.sink.events if isinstance(one, ToolEnded)] == [not guard]


async def test_a_program_gets_no_keys_of_ours_and_runs_where_no_tool_writes(tmp_path: Path):
    code = "import json, os; print(json.dumps({'deny': json.dumps([sorted(os.environ), os.getcwd()])}))"
    wants = config(code, "message", env={"MINE": "1"})
    async with open_bot(tmp_path, config=wants, environ={"OPENAI_API_KEY": "sk-1", "PATH": "/bin"}) as bot:
        names, folder = json.loads((await bot.turn("hi")).text)

    assert "MINE" in names and "PATH" in names and "OPENAI_API_KEY" not in names
    assert Path(folder) == tmp_path


@pytest.mark.skipif(shutil.which("curl") is None, reason="the program that the guide names")
async def test_an_address_is_asked_by_a_program_that_knows_how(tmp_path: Path):
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        (size,) = re.findall(rb"(?i)content-length: (\d+)", head)
        asked.append(await reader.readexactly(int(size)))
        writer.write(b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"deny": "the office is closed"}')
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    wants = config("", "message")
    wants.plugins.commands["mine"].command = ["curl", "-sSf", "--noproxy", "*", "--data-binary", "@-", address]
    async with server, open_bot(tmp_path, config=wants, environ={"PATH": os.environ["PATH"]}) as bot:
        assert await bot.say("hi") == "the office is closed"
    told = json.loads(asked[0])
    assert (told["event"], told["text"], told["turn"]["session_key"]) == ("message", "hi", "cli:direct")


async def test_a_program_may_say_much_and_grumble_more(tmp_path: Path):
    code = "import json, sys; sys.stderr.write('x' * 900_000); print(json.dumps({'text': 'long ' * 20_000}))"
    async with open_bot(tmp_path, "done", config=config(code, "message")) as bot:
        assert await bot.say("go") == "done"

    assert str(bot.provider.requests[0]).count("long ") > 19_000
