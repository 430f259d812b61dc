"""The servers people really use, as their makers ship them.

Those of PyPI are installed with our tests. Those of npm are looked for in the folder MCP_SERVERS_OF_NPM (where
`npm install @modelcontextprotocol/server-everything ...` was run) and on PATH.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.tools.base import ToolResult
from tests.support.mcp import Configured, OpenBench, configured
from tests.support.toy_gateway import free_port


def from_pypi(name: str, *args: str) -> Configured:
    return configured(name, command=sys.executable, args=["-m", f"mcp_server_{name}", *args])


def from_npm(program: str) -> str:
    folder = os.environ.get("MCP_SERVERS_OF_NPM")
    places = [str(Path(folder) / "node_modules" / ".bin")] if folder else []
    found = shutil.which(program, path=os.pathsep.join([*places, os.environ.get("PATH", "")]))
    if found is None or shutil.which("node") is None:
        pytest.skip(f"{program} is not installed: npm install @modelcontextprotocol/{program[4:]}")
    return found


def words_of(result: ToolResult) -> str:
    assert not result.error, result.content
    return json.dumps(result.content)


@pytest.mark.slow  # each server imports the SDK
async def test_git_time_and_fetch_of_pypi(bench: OpenBench, tmp_path: Path):
    repository = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", repository], check=True)
    (repository / "new.txt").write_text("x", encoding="utf-8")
    servers = await bench(from_pypi("git"), from_pypi("time"), from_pypi("fetch"))
    status, hour, page = await asyncio.gather(
        servers.call("mcp_git_git_status", repo_path=str(repository)),
        servers.call("mcp_time_convert_time", source_timezone="UTC", time="12:00", target_timezone="Asia/Tokyo"),
        servers.call("mcp_fetch_fetch", url="http://127.0.0.1:9/", raw=True),
    )

    assert "new.txt" in words_of(status)
    assert "21:00" in words_of(hour)
    assert page.error
    assert "127.0.0.1:9" in str(page.content)


async def test_filesystem_and_memory_of_npm(bench: OpenBench, tmp_path: Path):
    (folder := tmp_path / "files").mkdir()
    memory = {"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}
    both = await bench(
        configured("fs", command=from_npm("mcp-server-filesystem"), args=[str(folder)]),
        configured("kg", command=from_npm("mcp-server-memory"), env=memory),
    )

    written = await both.call("mcp_fs_write_file", path=str(folder / "a.txt"), content="hi")
    entity = {"name": "Ada", "entityType": "person", "observations": ["likes tea"]}
    made = await both.call("mcp_kg_create_entities", entities=[entity])

    assert "Success" in words_of(written)
    assert (folder / "a.txt").read_text(encoding="utf-8") == "hi"
    assert "Ada" in words_of(made)
    assert "likes tea" in words_of(await both.call("mcp_kg_search_nodes", query="tea"))


async def test_everything_of_npm_on_stdio(bench: OpenBench):
    every = await bench(configured("every", command=from_npm("mcp-server-everything")))

    echoed = await every.call("mcp_every_echo", message="hi")
    summed = await every.call("mcp_every_get-sum", a=2, b=3)
    image = await every.call("mcp_every_get-tiny-image")
    resources = await every.call("mcp_every_resources")
    prompts = await every.call("mcp_every_prompts")
    wrong = await every.call("mcp_every_get-sum", a="two", b=3)

    assert echoed.content == "Echo: hi"
    assert "5" in words_of(summed)
    assert '"image_url"' in words_of(image)
    first = str(resources.content).split()[0]
    assert words_of(await every.call("mcp_every_resources", uri=first))
    assert "simple-prompt" in str(prompts.content)
    assert words_of(await every.call("mcp_every_prompts", name="simple-prompt"))
    assert wrong.error


@contextmanager
def served(*command: str, **environment: str) -> Iterator[None]:
    quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    with subprocess.Popen(command, env={**os.environ, **environment}, **quiet) as server:
        try:
            yield
        finally:
            server.kill()


async def until_it_listens(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


@pytest.mark.timeout(180)  # each server imports the SDK
@pytest.mark.parametrize("maker", ["sdk", "npm"])
@pytest.mark.parametrize("wire", ["http", pytest.param("sse", marks=pytest.mark.slow)])
async def test_a_server_at_an_address(bench: OpenBench, maker: str, wire: str):
    port = free_port()
    if maker == "sdk":
        name = {"http": "streamable-http"}.get(wire, wire)
        command = [sys.executable, "-m", "tests.programs.mcp_web_server", name, str(port)]
    else:
        command = [from_npm("mcp-server-everything"), {"http": "streamableHttp"}.get(wire, wire)]
    with served(*command, PORT=str(port)):
        await until_it_listens(port)
        web = await bench(configured("web", url=f"http://127.0.0.1:{port}/{'mcp' if wire == 'http' else 'sse'}"))
        assert (await web.call("mcp_web_echo", message="hi")).content == "Echo: hi"
        if maker == "sdk":
            picture = await web.call("mcp_web_picture")
            listed = await web.call("mcp_web_resources")
            note = await web.call("mcp_web_resources", uri="note://today")
            greeting = await web.call("mcp_web_prompts", name="greeting", arguments={"name": "Ada"})
            wrong = await web.call("mcp_web_resources", uri="note://tomorrow")
            assert '"image_url"' in words_of(picture)
            assert "note://today" in words_of(listed)
            assert words_of(note) == '"Water the plants."'
            assert "Greet Ada." in words_of(greeting)
            assert "was refused by its server" in str(wrong.content)
