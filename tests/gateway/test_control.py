"""The local socket: commands on this machine talk through the running gateway, and see what they would see without."""

import asyncio
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nanobot.agent.events import TextDelta, TurnOutcome
from nanobot.agent.remote_turn import stop_turn
from nanobot.cli.main import app
from nanobot.config.paths import DataPaths
from nanobot.gateway.control.backend import choose_session, terminal_message
from nanobot.gateway.control.client import GatewayBackend, find_backend
from nanobot.gateway.process import ExitReason, single_instance
from nanobot.net.gateway_socket import GatewayConnection, GatewayError, connect
from nanobot.session.manager import SessionManager
from nanobot.testing import Pause, RecordingSink, open_bot
from tests.support.eventually import eventually
from tests.support.home import NANOBOT
from tests.support.mcp import MCP_SERVER
from tests.support.running_gateway import OpenGateway
from tests.support.toy_gateway import written


async def bot_of(home: Path, session: str | None = None, *, go_on: bool = False) -> GatewayBackend:
    found = await find_backend(home / "state", session, continue_latest=go_on)
    assert found is not None
    return found


async def command(*words: str) -> Result:
    """A command of the terminal, while the gateway runs in this loop."""
    return await asyncio.to_thread(CliRunner().invoke, app, [*words])


async def test_a_turn_through_the_socket_of_the_owner_alone_tells_the_same_events_and_keeps_the_same_session(
    running: OpenGateway, tmp_path: Path
):
    async with running("hello") as here, open_bot(tmp_path / "alone", "hello") as other:
        bot, through, alone = await bot_of(here.home), RecordingSink(), RecordingSink()
        path = here.home / "state" / "gateway.sock"
        mode = stat.S_IMODE(path.stat().st_mode)

        result = await bot.run_turn(terminal_message("hi", bot.session_key), through)
        await other.run_turn(terminal_message("hi", "cli:direct"), alone)

        session = SessionManager(here.home / "workspace").get_or_create("cli:direct")
        assert (result.outcome, result.text) == (TurnOutcome.ANSWERED, "hello")
        assert through.types == alone.types
        assert [row["content"] for row in session.messages] == ["hi", "hello"]
    assert (mode, path.exists()) == (0o600, False)
    async with connect(here.home / "state") as line:
        assert line is None


@pytest.mark.skipif(sys.platform != "linux", reason="walls stand on Linux")
async def test_a_command_of_the_agent_is_turned_away_also_where_it_finds_the_socket(running: OpenGateway):
    ask = """
import socket, sys
from nanobot.security.sandbox.landlock import harden_thread
{sandboxed}
with socket.socket(socket.AF_UNIX) as line:
    line.connect(sys.argv[1])
    print(len(line.recv(9999)) > 0)
"""
    async with running() as here:
        path = str(here.home / "state" / "gateway.sock")
        said = [
            await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-c", ask.format(sandboxed=how), path],
                capture_output=True,
                check=False,
            )
            for how in ("harden_thread()", "")
        ]

    assert [ran.stdout for ran in said] == [b"False\n", b"True\n"]


async def test_a_client_that_is_gone_stops_its_turn_and_no_other_of_the_session(running: OpenGateway):
    pause = Pause()
    async with running(pause, "second") as here:
        first, second = await bot_of(here.home), await bot_of(here.home)
        one = asyncio.create_task(first.run_turn(terminal_message("one", "cli:direct")))
        await pause.reached.wait()
        two = asyncio.create_task(second.run_turn(terminal_message("two", "cli:direct")))
        three = asyncio.create_task(second.run_turn(terminal_message("three", "cli:direct")))
        await asyncio.sleep(0.05)

        three.cancel()
        await asyncio.wait([three])
        assert not one.done()
        one.cancel()

        assert (await two).text == "second"


async def read_until(connection: GatewayConnection | None, last: str) -> list[dict[str, Any]]:
    """The frames until one of this type."""
    frames: list[dict[str, Any]] = []
    while connection is not None and (frame := await connection.receive()) is not None:
        frames.append(frame)
        if frame["type"] == last:
            break
    return frames


async def test_a_chat_that_loses_its_connection_shows_each_text_once_and_follows_the_next_turn_too(
    running: OpenGateway,
):
    first, second = Pause("It was a "), Pause("Then ")
    async with running(first, "dark night.", second, "it rained.") as here:
        about = {"session": "cli:direct", "commands": {}, "skills": {}}
        bot, sink = GatewayBackend(here.home / "state", about, retry_s=0.1), RecordingSink()
        turn = asyncio.create_task(bot.run_turn(terminal_message("tell me", "cli:direct"), sink))
        await first.reached.wait()
        await eventually(lambda: "text_delta" in sink.types)
        for client in [*here.gateway._control._clients]:
            client.abort()
        await asyncio.sleep(0.05)
        first.resume.set()
        await turn
        beside = asyncio.create_task(bot.run_turn(terminal_message("go on", "cli:direct")))
        await second.reached.wait()

        resumed = asyncio.create_task(bot.resume("cli:direct", sink))
        await eventually(lambda: "Then" in text_of_deltas(sink))
        second.resume.set()
        await asyncio.gather(resumed, beside)

    assert text_of_deltas(sink) == "It was a dark night.Then it rained."


def text_of_deltas(sink: RecordingSink) -> str:
    return "".join(event.text for event in sink.events if isinstance(event, TextDelta))


@pytest.mark.parametrize("is_left", [False, True], ids=["stopped", "left by its client"])
async def test_a_turn_that_ends_before_its_time_keeps_what_was_said(
    running: OpenGateway, monkeypatch: pytest.MonkeyPatch, is_left: bool
):
    monkeypatch.setattr("nanobot.gateway.control.server.ABANDONED_S", 0.1)
    async with running(Pause("It was a dark")) as here:
        sessions = SessionManager(here.home / "workspace")
        async with connect(here.home / "state") as line:
            assert line is not None
            line.send({"do": "turn", "turn": "a1b2c3d4", "text": "tell me", "session": "cli:direct"})
            await read_until(line, "text_delta")
            if not is_left:
                assert await stop_turn(here.home / "state", "cli:direct")
                assert (await read_until(line, "turn_ended"))[-1]["outcome"] == "stopped"
        await eventually(lambda: sessions.get_or_create("cli:direct").message_count == 2)

        assert "It was a dark" in str(sessions.get_or_create("cli:direct").messages[1]["content"])


async def test_attachments_commands_the_shell_and_other_conversations_work_through_it(
    running: OpenGateway, tmp_path: Path
):
    (note := tmp_path / "note.txt").write_text("the milk")
    async with running("Rome it is.", "Still Rome.") as here:
        bot = await bot_of(here.home)
        await bot.run_turn(terminal_message("Plan a trip to Rome", bot.session_key, [str(note)]))
        help_text = (await bot.run_turn(terminal_message("/help", bot.session_key))).text
        shell = await bot.shell("echo hi", bot.session_key, "")
        checks = [await bot.check_for_terminal(command, "") for command in ("true", "rm -rf /")]
        await bot.run_turn(terminal_message("/new", bot.session_key))
        key, line = await choose_session(bot, "cli:other", "/resume 1")
        reopened = await bot.run_turn(terminal_message(line, key))
        info = await bot.session_info(key)

        assert (key, info.model, info.messages) == ("cli:direct", "scripted", 2)
        assert (await bot_of(here.home, go_on=True)).session_key == key  # the newest one of the terminal
    assert str(note) in str(here.model.requests[0][-1]["content"])
    assert "Rome it is." in reopened.text
    assert "/status" in help_text and "new" in bot.commands()
    assert shell == ("hi\n\nExit code: 0", True)
    assert checks[0] == "" and "was not run" in checks[1]


async def test_what_is_sent_to_the_terminal_appears_in_the_chat_that_is_open_there(running: OpenGateway):
    async with running() as here:
        bot = await bot_of(here.home)
        messages = bot.messages("cli:direct")
        coming = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(0.05)

        sent = await command(
            "send", "--channel", "cli", "--to", "a-closed-chat", "the kettle is on", *config(here.home)
        )

        assert sent.exit_code == 0
        assert await asyncio.wait_for(coming, 5) == "the kettle is on"
        await messages.aclose()


async def test_a_chat_that_is_open_hears_that_the_gateway_is_back_or_does_not_come_back(running: OpenGateway):
    async with running() as here:
        messages = GatewayBackend(here.home / "state", {}, retry_s=0.1).messages("cli:direct")
        coming = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(0.05)
    async with running(home=here.home):
        assert await asyncio.wait_for(coming, 10) == "The gateway is back."
        coming = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(0.05)

    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(coming, 10)


def config(home: Path) -> tuple[str, str]:
    return "--config", str(home / "config.json")


async def test_a_message_for_another_workspace_is_none_of_the_gateways(running: OpenGateway, tmp_path: Path):
    async with running("from the gateway") as here:
        words = [*NANOBOT, "agent", "-m", "hi", *config(here.home), "--workspace", str(tmp_path / "other")]
        alone = await asyncio.to_thread(
            subprocess.run, words, capture_output=True, stdin=subprocess.DEVNULL, check=False
        )

    assert alone.returncode == 0
    assert b"from the gateway" not in alone.stdout
    assert (tmp_path / "other" / "sessions").is_dir()


async def test_send_prints_the_platforms_id_and_says_why_where_it_cannot(running: OpenGateway):
    async with running() as here:
        words = ("send", *config(here.home), "hello", "--channel")
        sent = await command(*words, "toy", "--to", "9")
        refused = await command(*words, "toy", "--to", "nowhere")
        unknown = await command(*words, "fax", "--to", "9")
    no_gateway = await command(*words, "toy", "--to", "9")

    assert (sent.exit_code, here.toy.got("9")) == (0, ["hello"])
    assert sent.stdout.strip().isdigit()
    assert (refused.exit_code, "there is no such chat" in refused.stderr) == (1, True)
    assert (unknown.exit_code, "running: toy, plush" in unknown.stderr) == (1, True)
    assert (no_gateway.exit_code, "nanobot gateway" in no_gateway.stderr) == (1, True)


async def test_channels_test_writes_to_the_owners_of_a_channel_and_login_is_its_own(running: OpenGateway):
    async with running() as here:
        here.pair(toy=["person7"])

        tried = await command("channels", "test", "toy", *config(here.home))
        done = await command("channels", "login", "toy", *config(here.home))
        unknown = await command("channels", "login", "fax", *config(here.home))

    assert tried.stdout.startswith("Sent to toy:person7 as ")
    assert here.toy.got("own7") == ["This is a test of nanobot. It works."]
    assert (done.exit_code, done.stdout) == (0, "toy is configured and its credentials work.\n")
    assert (unknown.exit_code, "There is no channel" in unknown.stderr) == (1, True)


async def test_the_doctor_asks_the_gateway_for_its_mcp_servers_and_starts_none_beside_it(running: OpenGateway):
    server = {"command": sys.executable, "args": ["-I", "-S", MCP_SERVER]}
    async with running(tools={"mcpServers": {"lamp": server}}) as here:
        config = json.loads((here.home / "config.json").read_text(encoding="utf-8"))
        config["tools"]["mcpServers"]["late"] = server
        other = here.home / "other.json"
        written(other, config)
        told = json.loads((await command("doctor", "--json", "mcp", "--config", str(other))).stdout)
        bot = await bot_of(here.home)
        status = await bot.run_turn(terminal_message("/mcp", bot.session_key))

        assert status.text.startswith("lamp: connected, ")
        assert "answers, offers" in str(told)
        assert "The running gateway does not have it." in str(told)


async def test_nonsense_is_refused_and_harms_nobody(running: OpenGateway, caplog: pytest.LogCaptureFixture):
    async with running("hello") as here:
        for said in (
            b"\xff\xfe\n",
            b"[]\n",
            b"[" * 50_000 + b"\n",
            b"{}\n",
            b'{"do": "fly"}\n',
            b'{"do": "turn"}\n',
            b'{"do": "send"}\n',
            b"half",
        ):
            reader, writer = await asyncio.open_unix_connection(here.home / "state" / "gateway.sock")
            await reader.readline()
            writer.write(said)
            writer.write_eof()
            assert b'"turn_ended"' not in await asyncio.wait_for(reader.read(), 5)
            writer.close()
            await writer.wait_closed()

        assert (await (await bot_of(here.home)).run_turn(terminal_message("hi", "cli:direct"))).text == "hello"
    assert not [line for line in caplog.records if line.levelname == "ERROR"]


async def test_who_sets_something_else_by_the_environment_gets_a_bot_of_their_own(
    running: OpenGateway, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("NANOBOT_AGENTS__DEFAULTS__MODEL", "one")
    async with running() as here:
        same = await find_backend(here.home / "state", None, continue_latest=False)
        async with connect(here.home / "state") as line:
            told = line.hello if line is not None else {}
        monkeypatch.setattr("nanobot.gateway.control.server.settings_in", lambda environ: {})
        other = await find_backend(here.home / "state", None, continue_latest=False)

    assert same is not None
    assert other is None
    assert "one" not in told["settings"].values()


async def test_where_a_path_is_too_long_for_a_socket_a_port_with_a_token_stands_in(
    running: OpenGateway, tmp_path: Path
):
    async with running("hello", home=tmp_path / ("deep" * 25)) as here:
        told = json.loads((here.home / "state" / "gateway.port").read_text(encoding="utf-8"))
        reader, writer = await asyncio.open_connection("127.0.0.1", told["port"])
        writer.write(b'{"token": "guessed"}\n{"do": "report"}\n')
        stranger = await asyncio.wait_for(reader.read(), 5)
        writer.close()

        answer = await (await bot_of(here.home)).run_turn(terminal_message("hi", "cli:direct"))

        assert (stranger, answer.text) == (b"", "hello")
        assert stat.S_IMODE((here.home / "state" / "gateway.port").stat().st_mode) == 0o600


async def test_a_gateway_that_leaves_in_the_middle_says_so(running: OpenGateway):
    pause = Pause()
    async with running(pause) as here:
        bot = await bot_of(here.home)
        turn = asyncio.create_task(bot.run_turn(terminal_message("hi", "cli:direct")))
        await pause.reached.wait()

    assert (await turn).text == "nanobot is stopping; this goes on at the next start."
    with pytest.raises(GatewayError, match="does not answer"):
        await bot.run_turn(terminal_message("hi", "cli:direct"))


async def test_gateway_stop_asks_the_one_that_runs_and_without_one_says_so(running: OpenGateway):
    async with running() as here:
        stopped = await command("gateway", "stop", *config(here.home))
        leave = await asyncio.wait_for(here.gateway.wait(), 5)
    again = await command("gateway", "stop", *config(here.home))

    assert (stopped.stdout, leave) == ("The gateway is shutting down.\n", ExitReason.STOP)
    assert (again.exit_code, "No gateway is running" in again.stderr) == (1, True)


async def test_commands_tell_whether_it_runs_how_its_channels_are_and_what_could_start_when_not(running: OpenGateway):
    async def told(*words: str) -> dict[str, Any]:
        result = await command(*words, "--json", *config(here.home))
        return {**json.loads(result.stdout), "exit": result.exit_code}

    async with running("hello") as here:
        here.toy.write("hi", message_id="1")
        await eventually(here.toy.got)
        await eventually(lambda: all(one.state == "up" for one in here.gateway.channels.statuses().values()))
        well, whole, channels = await told("gateway", "status"), await told("status"), await told("channels", "status")
        lines = [
            " ".join((await command(*words, *config(here.home))).stdout.split())
            for words in (("gateway", "status"), ("status",), ("channels", "status"))
        ]
        here.gateway.channels.broken["fax"] = "it fell apart"
        unwell = await told("gateway", "status")
    with single_instance(DataPaths(here.home)):
        silent = await told("gateway", "status")
    off, channels_off = await told("gateway", "status"), await told("channels", "status")

    assert [one["status"] for one in (well, unwell, silent, off)] == ["ok", "failing", "silent", "off"]
    assert [one["exit"] for one in (well, unwell, silent, off)] == [0, 1, 1, 1]
    assert unwell["problems"] == ["fax: it fell apart"]
    assert (whole["gateway"]["running"], whole["channels"]["toy"]["state"]) == (True, "up")
    assert (channels["running"], channels["channels"]["toy"]["received"]) == (True, 1)
    assert (channels_off["running"], channels_off["channels"]["toy"]["state"]) == (False, "off")
    assert "Channels: toy up, plush up" in lines[0]
    assert f"Gateway running (pid {os.getpid()}), ok Channels toy up" in lines[1]
    assert lines[2].startswith("toy up 20")
