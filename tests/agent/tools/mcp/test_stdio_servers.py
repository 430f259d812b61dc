"""Servers that are programs: real children, well-behaved and not."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.tools.base import Effect, ToolContext
from nanobot.agent.tools.mcp.server import McpTimeouts, Phase
from nanobot.messages.types import Provenance
from tests.support.eventually import eventually
from tests.support.mcp import MCP_SERVER, Configured, OpenBench, child, configured
from tests.support.tools import lay


async def test_answers_of_a_server_become_results_of_its_provenance(
    bench: OpenBench, workspace: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "geheim")
    lamp = await bench(child("lamp", env={"LAMP_TOKEN": "its own"}))
    answers: dict[str, tuple[dict[str, Any], str]] = {
        "echo": ({"colour": "röd"}, '{"colour": "röd"}'),
        "fails": ({}, "the lamp is broken"),
        "structured": ({}, '{"degrees": 21}'),
        "half_a_letter": ({}, "half \ufffd, whole \U0001f600"),
        "garbage": ({}, "said some garbage"),
        "big": ({"size": 4_000_000}, "x" * 4_000_000),
    }

    results = {name: await lamp.call(f"mcp_lamp_{name}", **arguments) for name, (arguments, _) in answers.items()}
    environment = json.loads(str((await lamp.call("mcp_lamp_environment")).content))
    picture = await lamp.call("mcp_lamp_picture")

    assert [name for name, result in results.items() if result.content != answers[name][1]] == []
    assert [name for name, result in results.items() if result.error] == ["fails"]
    assert {result.provenance for result in (*results.values(), picture)} == {Provenance.MCP}
    assert (environment.get("ANTHROPIC_API_KEY"), environment["LAMP_TOKEN"]) == (None, "its own")
    assert environment["PATH"]
    assert isinstance(picture.content, list)
    image, sound, note = picture.content
    path = Path(image["image_url"]["url"])
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.is_relative_to(workspace)
    assert (sound["text"].partition(":")[0], note["text"]) == ("[audio", "a note")


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
async def test_what_a_server_sends_does_not_follow_a_link_out(bench: OpenBench, workspace: Path, tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (workspace / ".nanobot").mkdir()
    (workspace / ".nanobot/received").symlink_to(tmp_path / "elsewhere")
    lamp = await bench(child("lamp"))

    result = await lamp.call("mcp_lamp_picture")

    assert "[image: could not be saved]" in str(result.content)
    assert not list((tmp_path / "elsewhere").iterdir())


async def test_all_sessions_share_one_program_that_works_side_by_side(bench: OpenBench):
    lamp = await bench(child("lamp"))
    begun = time.perf_counter()

    slow = await asyncio.gather(*(lamp.call("mcp_lamp_slow", steps=20) for _ in range(10)))
    took = time.perf_counter() - begun
    programs = await asyncio.gather(*(lamp.call("mcp_lamp_pid") for _ in range(200)))

    assert {str(result.content) for result in slow} == {"done at last"}
    assert took < 5  # one after the other would take 10 s
    assert len({str(result.content) for result in programs}) == 1


async def test_known_tools_are_offered_at_once_and_the_first_call_starts_the_server(bench: OpenBench, tmp_path: Path):
    await bench(child("lamp", env={"LAMP_TOKEN": "geheim"}))
    (file,) = (tmp_path / "mcp").glob("*.json")
    mode, remembered = file.stat().st_mode & 0o777, file.read_text(encoding="utf-8")
    again = await bench(child("lamp", env={"LAMP_TOKEN": "geheim"}))
    report = again.servers.report()

    result = await again.call("mcp_lamp_echo", n=1)

    assert (mode, "geheim" in remembered) == (0o600, False)
    assert "lamp: idle" in report
    assert "mcp_lamp_echo" in again.registry.names
    assert result.content == '{"n": 1}'
    for damage in ("", '{"tools": [1]}', "\0"):
        file.write_text(damage, encoding="utf-8")
        assert "mcp_lamp_echo" in (await bench(child("lamp", env={"LAMP_TOKEN": "geheim"}))).registry.names


async def test_the_owner_chooses_which_tools_are_offered(bench: OpenBench):
    by_name = await bench(child("lamp", enabled_tools=["echo", "mcp_lamp_pid", "gone"]))
    none = await bench(child("dark", enabled_tools=[]))

    assert by_name.registry.names == ["mcp_lamp_echo", "mcp_lamp_pid"]
    assert none.registry.names == []


async def test_servers_that_fail_or_hang_do_not_hold_up_the_others_and_are_told_of(bench: OpenBench):
    await bench(child("lamp"))
    all_of_them = await bench(
        child("hung", "hangs"),
        child("noisy", "babbles"),
        configured("missing", command="no-such-program"),
        configured("empty"),
        child("lamp"),
        timeouts=McpTimeouts(to_connect_s=2.0, first_listing_s=1.0),
    )
    hung, noisy, missing, empty, lamp = all_of_them.servers.servers

    result = await all_of_them.call("mcp_lamp_echo", n=1)

    assert result.content == '{"n": 1}'
    assert {name.split("_")[1] for name in all_of_them.registry.names} == {"lamp"}
    phases = [server.state.phase for server in (hung, noisy, missing, empty, lamp)]
    assert phases == [Phase.STARTING, Phase.STARTING, Phase.FAILED, Phase.FAILED, Phase.READY]
    await eventually(lambda: noisy.state.phase is Phase.FAILED)
    assert "did not answer in time" in noisy.state.reason
    assert "Loading... 42%" in noisy.state.reason
    assert noisy.state.retry_in_s > 0
    assert noisy.start() is None


async def test_each_server_starts_in_a_private_folder_of_its_own_or_where_its_owner_wants_it(
    bench: OpenBench, workspace: Path, tmp_path: Path
):
    project = tmp_path / "project"
    lay(project, {"serve": "#!/bin/sh\npwd -P >&2; exit 3\n"})
    (project / "serve").chmod(0o700)

    def where(name: str, **more: Any) -> Configured:
        """A server that only says where it was started."""
        return configured(name, **{"command": "sh", "args": ["-c", "pwd -P >&2; exit 3"], **more})

    all_of_them = await bench(
        where("a b"),
        where("a_b"),
        where("here", cwd=str(project)),
        where("beside", command="./serve", args=[], cwd=str(project)),
        where("gone", cwd=str(tmp_path / "gone")),
    )

    reasons = [server.state.reason for server in all_of_them.servers.servers]
    one, other, here, beside, _ = [Path(reason.rpartition(": ")[2]) for reason in reasons]
    assert one != other
    for folder in (one, other):
        assert not folder.is_relative_to(workspace.resolve())
        assert list(folder.iterdir()) == []
        assert folder.stat().st_mode & 0o777 == 0o700
    assert {here, beside} == {project.resolve()}
    assert "tools.mcpServers.gone.cwd" in reasons[-1]


async def test_many_calls_of_a_server_that_cannot_start_start_it_once(bench: OpenBench, tmp_path: Path):
    broken, starts = tmp_path / "broken", tmp_path / "starts"
    fails = f"if [ -e {broken} ]; then echo >> {starts}; sleep 0.3; echo no database >&2; exit 3; fi"
    script = f"{fails}; exec {sys.executable} -I -S {MCP_SERVER}"
    lamp = configured("lamp", command="sh", args=["-c", script])
    await bench(lamp)
    broken.touch()
    again = await bench(lamp)

    results = await asyncio.gather(*(again.call("mcp_lamp_echo") for _ in range(10)))

    assert all("exit code 3" in str(result.content) and "no database" in str(result.content) for result in results)
    assert starts.read_text(encoding="utf-8") == "\n"


async def test_a_call_that_is_stopped_while_its_server_starts_does_not_stop_the_server(
    bench: OpenBench, tmp_path: Path
):
    starts, go_on = tmp_path / "starts", tmp_path / "go_on"
    wait = f"echo >> {starts}; while [ ! -e {go_on} ]; do sleep 0.05; done"
    lamp = configured("lamp", command="sh", args=["-c", f"{wait}; exec {sys.executable} -I -S {MCP_SERVER}"])
    go_on.touch()
    await bench(lamp)
    go_on.unlink()
    again = await bench(lamp)

    stopped = asyncio.create_task(again.call("mcp_lamp_echo"))
    while starts.read_text(encoding="utf-8").count("\n") < 2:
        await asyncio.sleep(0.01)
    stopped.cancel()
    await asyncio.gather(stopped, return_exceptions=True)
    go_on.touch()
    result = await again.call("mcp_lamp_echo")

    assert result.content == "{}"
    assert starts.read_text(encoding="utf-8").count("\n") == 2


async def test_a_server_that_dies_is_there_again_for_the_next_call_or_for_one_that_may_be_repeated(
    bench: OpenBench, tmp_path: Path
):
    lamp = await bench(child("lamp"))

    died = await lamp.call("mcp_lamp_die")
    number = int(str((await lamp.call("mcp_lamp_pid")).content))
    os.kill(number, signal.SIGKILL)
    await asyncio.sleep(0.1)
    after = await lamp.call("mcp_lamp_echo", n=1)
    repeated = await lamp.call("mcp_lamp_die_once", mark=str(tmp_path / "mark"))

    assert died.error
    assert "may or may not have been done" in str(died.content)
    assert "I am dying" in str(died.content)
    assert after.content == '{"n": 1}'
    assert repeated.content == "this time it went well"


async def test_a_slow_call_is_given_up_and_the_server_told_unless_it_reports_progress(bench: OpenBench):
    lamp = await bench(child("lamp", tool_timeout=0.3))

    late = await lamp.call("mcp_lamp_slow", steps=20, tells=False)

    assert late.error
    assert "did not answer within 0.3 s" in str(late.content)
    assert (await lamp.call("mcp_lamp_was_cancelled")).content == "1 cancelled"
    assert (await lamp.call("mcp_lamp_slow", steps=12)).content == "done at last"


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_a_server_that_never_stops_talking_leaves_the_loop_to_others_and_fills_no_memory(
    bench: OpenBench, caplog: pytest.LogCaptureFixture
):
    both = await bench(child("lamp"), child("other"))
    calling = asyncio.create_task(both.call("mcp_lamp_storm"))
    await asyncio.sleep(0.1)
    before = resident_bytes()

    stalls = []
    for _ in range(100):
        began = time.perf_counter()
        await asyncio.sleep(0.01)
        stalls.append(time.perf_counter() - began)
    result = await both.call("mcp_other_echo", n=1)

    calling.cancel()
    assert max(stalls) < 1
    assert len(caplog.records) < 10
    assert resident_bytes() - before < 50_000_000
    assert result.content == '{"n": 1}'


async def test_a_hostile_schema_is_tamed_and_of_an_endless_list_of_tools_the_rest_is_not_looked_at(bench: OpenBench):
    hostile = await bench(child("odd", "hostile"))
    many = await bench(child("many", "many"))
    arguments = {"text": "a" * 60 + "!", "bomb": {"a": [1, 2, {}]}, "self": 1, "ctx": 2}
    begun = time.perf_counter()

    result = await hostile.call("mcp_odd_echo", **arguments)

    assert json.loads(str(result.content)) == arguments
    assert time.perf_counter() - begun < 3
    assert all(len(json.dumps(one)) < 30_000 for one in hostile.registry.get_definitions())
    assert "many: connected, 500 tools" in many.servers.report()


async def test_a_new_tool_is_offered_to_the_next_turn(bench: OpenBench):
    lamp = await bench(child("lamp"))
    before = lamp.registry.get_definitions()
    await lamp.refresh()
    unchanged = lamp.registry.get_definitions()

    await lamp.call("mcp_lamp_learn", name="dance")
    during = lamp.registry.names
    after = await lamp.refresh()

    assert unchanged is before
    assert "mcp_lamp_dance" not in during
    assert "mcp_lamp_dance" in after


async def test_what_only_reads_may_run_again_and_accesses_the_hosts_it_could_carry_words_to(
    bench: OpenBench, ctx: ToolContext
):
    lamp = await bench(child("lamp"))
    urls = ["https://a.example/page", "http://b.example/?q=notes", "See http://me@c.example/x", "d.example/?q=notes"]

    nothing = await lamp.registry.required_access("mcp_lamp_pid", {}, ctx)
    hosts = await lamp.registry.required_access("mcp_lamp_pid", {"deep": {"urls": urls}}, ctx)
    acts = await lamp.registry.required_access("mcp_lamp_echo", {}, ctx)

    assert nothing == ()
    assert [access.rule for access in hosts] == ["host:b.example", "host:http://me@c.example/x", "host:d.example"]
    assert [access.rule for access in acts] == ["tool:mcp_lamp_echo"]
    effects = {name: tool.effect for name in lamp.registry.names if (tool := lamp.registry.get(name))}
    assert effects["mcp_lamp_pid"] is Effect.READ
    assert effects["mcp_lamp_die_once"] is Effect.REPEATABLE
    assert effects["mcp_lamp_echo"] is Effect.ONCE


async def test_a_program_nobody_asks_is_let_go_and_started_again(bench: OpenBench):
    lamp = await bench(child("lamp"), timeouts=McpTimeouts(first_listing_s=20, idle_s=0.1))
    first = await lamp.call("mcp_lamp_pid")
    await asyncio.sleep(0.3)
    report = lamp.servers.report()

    second = await lamp.call("mcp_lamp_pid")

    assert "lamp: idle" in report
    assert first.content != second.content


FIRST_CALL = """
import asyncio, pathlib, sys
from nanobot.agent.tools.mcp.listing import ServerTool
from nanobot.agent.tools.mcp.server import McpServer
from nanobot.agent.tools.mcp.tool import McpTool
from nanobot.config.schema import McpServerConfig
from nanobot.utils.clock import SystemClock

async def call():
    here = pathlib.Path.cwd()
    server = McpServer("lamp", McpServerConfig(command="lamp"), state_dir=here, clock=SystemClock())
    schema = {"type": "object", "properties": {}}
    calling = asyncio.create_task(McpTool(server, ServerTool("on", "", schema), "mcp_lamp_on", here).execute())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    print("mcp" in sys.modules)
    calling.cancel()

asyncio.to_thread = lambda *_: asyncio.get_running_loop().create_future()  # no thread ever runs
asyncio.run(call())
"""


def test_the_first_call_of_a_known_server_does_not_load_the_sdk_on_the_event_loop(tmp_path: Path):
    said = subprocess.run([sys.executable, "-c", FIRST_CALL], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert said.stdout == "False\n"
