"""Config changes while the gateway runs: applied where that is safe, told where they need a restart."""

import sys
import threading
from typing import Any

import pytest

from nanobot.channels.status import ChannelState
from nanobot.testing import Pause, calls
from nanobot.testing.model_server import FakeModels, Say
from tests.support.eventually import eventually
from tests.support.mcp import MCP_SERVER
from tests.support.running_gateway import OpenGateway
from tests.support.toy_gateway import Toy


async def test_who_may_speak_changes_at_once_and_a_channel_is_switched_off_and_on_while_the_others_stay(
    running: OpenGateway, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delitem(sys.modules, "toys", raising=False)  # another test may have imported it
    async with running("hello", "again") as here:
        manager = here.gateway.channels.manager
        toy, plush = manager.get("toy"), manager.get("plush")
        assert sys.modules["toys"].IMPORTED_IN is not threading.current_thread()

        here.change(lambda config: config["channels"]["toy"].update(allowFrom=["7", "9"]))
        await eventually(lambda: toy is not None and toy.is_allowed("9"))
        here.toy.write("hi", sender="9", chat="9", message_id="1")
        await eventually(lambda: here.toy.got("9"))
        assert manager.get("toy") is toy

        here.change(lambda config: config["channels"]["toy"].update(enabled=False))
        await eventually(lambda: manager.get("toy") is None)
        here.toy.write("hi", message_id="2")
        here.change(lambda config: config["channels"]["toy"].update(enabled=True))
        await eventually(lambda: here.toy.got("7") == ["again"])
        assert manager.get("plush") is plush


async def test_new_settings_begin_a_channel_anew_and_what_waited_for_it_is_sent(running: OpenGateway, tmp_path):
    async with running(pause := Pause(), "patience") as here:
        old = here.gateway.channels.manager.get("toy")
        assert old is not None
        here.toy.write("hi", message_id="1")
        await pause.reached.wait()
        (here.toy.folder / "cut").touch()
        await eventually(lambda: old.status.state is ChannelState.DOWN)
        pause.resume.set()
        session = here.home / "workspace" / "sessions" / "toy_7.jsonl"
        await eventually(lambda: "patience" in session.read_text(encoding="utf-8"))
        elsewhere = Toy(tmp_path / "elsewhere")
        here.change(lambda config: config["channels"]["toy"].update(folder=str(elsewhere.folder)))

        await eventually(lambda: elsewhere.got() == ["patience"])
        assert here.toy.got() == []


def models_of(server: FakeModels, key: str, **defaults: Any) -> dict[str, Any]:
    return {
        "agents": {"defaults": {"model": "first", "provider": "custom", **defaults}},
        "providers": {"custom": {"apiKey": key, "apiBase": server.v1}},
    }


async def test_model_key_and_limits_change_for_the_next_turn(running: OpenGateway, caplog):
    caplog.set_level("INFO")
    with FakeModels() as server:
        server.script(Say("one"), Say("two"))
        async with running(uses_config=True, **models_of(server, "key-before")) as here:
            here.toy.write("hi", message_id="1")
            await eventually(here.toy.got)
            changed = {**models_of(server, "key-after", model="second", maxTokens=77), "limits": {"turnTokens": 1}}
            here.change(lambda config: config.update(changed))
            await eventually(lambda: caplog.text.count("the config was changed:") == 1)
            here.toy.write("and now", message_id="2")
            await eventually(lambda: len(here.toy.got()) == 2)
            here.change(lambda config: config.update(limits={}))
            await eventually(lambda: caplog.text.count("the config was changed:") == 2)
            here.toy.write("again", message_id="3")
            await eventually(lambda: "two" in here.toy.got())

    said, (first, second) = here.toy.got(), server.chats
    assert said[0] == "one"
    assert "limits.turnTokens" in said[1]
    assert (first.json["model"], first.headers["authorization"]) == ("first", "Bearer key-before")
    assert (second.json["model"], second.headers["authorization"]) == ("second", "Bearer key-after")
    assert second.json["max_tokens"] == 77


async def test_background_model_changes_for_the_next_dream(running: OpenGateway, caplog):
    caplog.set_level("INFO")
    with FakeModels() as server:
        server.script(Say("Nothing to tidy."))
        async with running(uses_config=True, **models_of(server, "key", backgroundModel="small")) as here:
            memory = here.home / "workspace" / "memory"
            memory.mkdir(parents=True, exist_ok=True)
            (memory / "MEMORY.md").write_text("- Lives in Berlin.\n- Home: Berlin.\n")
            (memory / "HISTORY.md").write_text("[2026-02-26 13:21] Talked of home.\n\n")
            here.change(lambda config: config["agents"]["defaults"].update(backgroundModel="large"))
            await eventually(lambda: "the config was changed:" in caplog.text)
            here.toy.write("/dream", message_id="1")
            await eventually(here.toy.got)

    assert [chat.json["model"] for chat in server.chats] == ["large"]


async def test_tools_and_approval_change_for_the_next_turn_and_a_turn_that_runs_keeps_its_own(
    running: OpenGateway, tmp_path, caplog
):
    caplog.set_level("INFO")
    outside, pause = tmp_path / "outside.txt", Pause()
    write = ("write_file", {"path": str(outside), "content": "written"})
    first = calls(write, ("exec", {"command": "echo said"}))
    async with running(pause, first, "done", calls(write), "over", tools={"approval": "off"}) as here:
        here.toy.write("begin", message_id="1")
        await pause.reached.wait()
        tools = {"exec": {"enable": False}, "web": {"enable": False}, "approval": "deny"}
        here.change(lambda config: config.update(tools=tools))
        await eventually(lambda: "tools.approval, tools.exec.enable" in caplog.text)
        pause.resume.set()
        await eventually(lambda: "done" in here.toy.got())
        results = [str(row["content"]) for row in here.model.requests[1] if row["role"] == "tool"]
        was_written = outside.exists()
        outside.unlink()
        here.toy.write("go on", message_id="2")
        await eventually(lambda: "over" in here.toy.got())

    carried = [{tool["function"]["name"] for tool in tools} for tools in here.model.tools]
    assert not any("There is no tool" in result for result in results)
    assert (was_written, outside.exists()) == (True, False)
    assert all({"exec", "web_fetch"} <= names for names in carried[:2])
    assert not {"exec", "web_fetch", "web_search"} & carried[-1]
    assert {"message", "cron", "spawn", "read_file"} <= carried[-1]


async def test_mcp_servers_come_and_go(running: OpenGateway):
    server = {"command": sys.executable, "args": ["-I", "-S", MCP_SERVER]}

    def has(names: set[str]) -> bool:
        return {one for one in ("lamp", "late") if here.gateway.runtime.tools.has(f"mcp_{one}_echo")} == names

    async with running(*["done"] * 40, tools={"mcpServers": {"lamp": server}}) as here:
        runtime = here.gateway.runtime
        here.change(lambda config: config["tools"]["mcpServers"].update(late=server))
        await eventually(lambda: len(runtime.servers.servers if runtime.servers else ()) == 2)
        for one in runtime.servers.servers if runtime.servers else ():
            await one.connect()
        here.toy.write("hi", message_id="1")
        await eventually(lambda: has({"lamp", "late"}))
        kept = runtime.servers.find("late") if runtime.servers else None
        here.change(lambda config: config["tools"]["mcpServers"].pop("lamp"))
        await eventually(lambda: len(runtime.servers.servers if runtime.servers else ()) == 1)
        here.toy.write("hi again", message_id="2")
        await eventually(lambda: has({"late"}))

        assert runtime.servers is not None
        assert runtime.servers.find("late") is kept


async def test_the_first_mcp_server_needs_no_restart(running: OpenGateway, caplog):
    caplog.set_level("INFO")
    server = {"command": sys.executable, "args": ["-I", "-S", MCP_SERVER]}
    async with running("done") as here:
        here.change(lambda config: config.update(tools={"mcpServers": {"lamp": server}}))
        await eventually(lambda: "tools.mcpServers.lamp" in caplog.text)
        here.toy.write("/mcp", message_id="1")
        await eventually(here.toy.got)

    assert here.toy.got()[0].startswith("lamp: ")


async def test_the_heartbeat_is_switched_off_and_on(running: OpenGateway, caplog):
    caplog.set_level("INFO")
    async with running("done") as here:
        members = here.gateway.supervisor.tasks
        await eventually(lambda: members["heartbeat"].alive)
        here.change(lambda config: config["gateway"].update(heartbeat={"enabled": False}))
        await eventually(lambda: "heartbeat" not in members)
        here.change(lambda config: config["gateway"].update(heartbeat={"enabled": True, "intervalS": 5}))
        await eventually(lambda: "heartbeat" in members and members["heartbeat"].alive)

    assert "gateway.heartbeat.intervalS" in caplog.text


async def test_the_log_names_what_needs_a_restart_and_a_file_that_is_damaged_or_gone_changes_nothing(
    running: OpenGateway, caplog
):
    async with running("hello", "again") as here:
        file = here.home / "config.json"
        here.change(lambda config: config.update(agents={"defaults": {"timezone": "Europe/Berlin"}}))
        await eventually(lambda: "for agents.defaults.timezone restart with `nanobot gateway restart`" in caplog.text)
        for count, text in enumerate(("{", None), start=1):
            if text is None:
                file.unlink()
            else:
                file.write_text(text)
            await eventually(lambda count=count: caplog.text.count("the previous settings stay in use") == count)  # type: ignore[misc]
            report = await here.gateway.reporter.report()
            here.toy.write("hi", message_id=str(count))
            await eventually(lambda count=count: len(here.toy.got()) == count)  # type: ignore[misc]

            assert [problem.split(":")[0] for problem in report["problems"]] == ["config"]
