"""Servers in whole turns: offered, called, told of, and no burden to a turn that uses other tools."""

import asyncio
import sys
from pathlib import Path

from nanobot.config.schema import Config
from nanobot.testing import calls, open_bot
from tests.support.mcp import MCP_SERVER
from tests.support.tools import call_in_turn


def config_with(**servers: list[str]) -> Config:
    started = {
        name: {"command": sys.executable, "args": ["-I", "-S", MCP_SERVER, *flags]} for name, flags in servers.items()
    }
    return Config.model_validate({"tools": {"mcpServers": started}})


async def met(home: Path, config: Config) -> None:
    """Its servers were met before: a first meeting may take longer than a turn waits for it."""
    async with open_bot(home, "hi", config=config) as bot:
        await bot.say("hello")
        while "starting" in await bot.say("/mcp"):
            await asyncio.sleep(0.05)


async def test_a_model_calls_a_tool_of_a_server_and_another_server_hangs(tmp_path: Path):
    config = config_with(lamp=[], hung=["hangs"])
    await met(tmp_path, config_with(lamp=[]))
    script = (calls(("mcp_lamp_echo", {"n": 1}), ("list_dir", {"path": "."})), "done")

    async with open_bot(tmp_path, *script, config=config) as bot:
        answer = await bot.say("switch it on")

        rows = {row.get("name"): row["content"] for row in bot.provider.requests[-1] if row["role"] == "tool"}
        report = await bot.say("/mcp")

    assert answer == "done"
    assert rows["mcp_lamp_echo"] == '{"n": 1}'
    assert "lamp: connected, 15 tools" in report
    assert "hung: starting, not met yet" in report


async def test_what_a_server_says_of_a_secret_is_not_told_on(tmp_path: Path):
    broken = {"command": "sh", "args": ["-c", "echo $LAMP_TOKEN >&2; exit 1"], "env": {"LAMP_TOKEN": "geheim-geheim"}}
    config = Config.model_validate({"tools": {"mcpServers": {"lamp": broken}}})

    async with open_bot(tmp_path, "hi", config=config) as bot:
        await bot.say("hello")
        while "starting" in (report := await bot.say("/mcp")):
            await asyncio.sleep(0.05)

    assert "exit code 1" in report
    assert "geheim" not in report


async def test_a_file_written_into_the_workspace_is_not_executed_by_a_server(tmp_path: Path):
    mark = tmp_path / "executed"
    environ = {"PYTHONPATH": str(Path(MCP_SERVER).parent)}
    server = {"command": sys.executable, "args": ["-m", "mcp_server"], "env": environ}
    config = Config.model_validate({"tools": {"mcpServers": {"lamp": server}}})
    module = f"open({str(mark)!r}, 'w').close()\n"  # `python -m` looks for modules in its working directory first
    files = [("write_file", {"path": name, "content": module}) for name in ("mcp_server.py", "json.py", "base64.py")]
    async with open_bot(tmp_path, calls(*files), "written") as bot:
        await bot.say("write three files")

    await met(tmp_path, config)
    async with open_bot(tmp_path, config=config) as bot:
        result = (await call_in_turn(bot, "mcp_lamp_echo", n=1))["content"]

    assert (tmp_path / "workspace/mcp_server.py").exists()
    assert result == '{"n": 1}'
    assert not mark.exists()


async def test_without_servers_there_is_no_such_command(tmp_path: Path):
    async with open_bot(tmp_path) as bot:
        assert "nanobot mcp add" in await bot.say("/mcp")
