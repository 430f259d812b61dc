"""Commands that talk through the running gateway: same sessions, one writer, and back to themselves when it is gone."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_models import Calls, FakeModels, Hang, Say
from tests.gateway.toy import GatewayHome, until
from tests.stories.processes import POSIX, ended

pytestmark = POSIX


@pytest.fixture
def server() -> Iterator[FakeModels]:
    with FakeModels(default=Say("hello")) as server:
        yield server


@pytest.fixture
def home(tmp_path: Path, server: FakeModels) -> GatewayHome:
    return GatewayHome(tmp_path, server)


def test_one_answer_comes_from_the_gateway_that_runs_and_without_one_from_the_command_itself(home: GatewayHome):
    with home.gateway():
        through = home.ask("hi")
        state = json.loads(home.run("gateway", "status", "--json").out)
    alone = home.ask("hi again")

    assert (through.code, through.out) == (alone.code, alone.out) == (0, "hello\n")
    assert state["status"] == "ok"
    assert [text for role, text in home.said() if role == "user"] == ["hi", "hi again"]


def test_the_socket_is_the_owners_alone_and_one_left_by_a_killed_gateway_is_no_hindrance(home: GatewayHome):
    path = home.data / "state" / "gateway.sock"
    with home.gateway() as process:
        mode = stat.S_IMODE(path.stat().st_mode)
        process.kill()
        process.wait()

    assert mode == 0o600
    assert path.exists()
    assert home.ask("hi").out == "hello\n"
    with home.gateway():
        assert home.run("gateway", "status").code == 0


def test_a_data_folder_too_deep_for_a_socket_has_a_port_with_a_token(tmp_path: Path, server: FakeModels):
    home = GatewayHome(tmp_path / ("deep" * 25), server)

    with home.gateway():
        port = json.loads((home.data / "state" / "gateway.port").read_text())
        with socket.create_connection(("127.0.0.1", port["port"]), timeout=5) as stranger:
            stranger.sendall(b'{"token": "guess"}\n{"do": "report"}\n')
            told = stranger.recv(1000)
        answer = home.ask("hi")

    assert told == b""
    assert answer.out == "hello\n"
    assert (home.data / "state" / "gateway.sock").exists() is False


def test_ctrl_c_stops_the_turn_in_the_gateway_and_keeps_what_was_said(home: GatewayHome, server: FakeModels):
    server.script(Hang(after="It was a dark"))
    with home.gateway():
        asking = home.start("agent", "-m", "tell me", stdin=subprocess.DEVNULL)
        until(lambda: server.chats)
        until(lambda: "tell me" in str(home.said()))
        asking.send_signal(signal.SIGINT)
        end = ended(asking)
        again = home.ask("go on")

    assert end.code == 130
    assert again.out == "hello\n"


def test_a_client_that_is_killed_stops_its_turn(home: GatewayHome, server: FakeModels):
    server.script(Hang())
    with home.gateway():
        asking = home.start("agent", "-m", "tell me")
        until(lambda: server.chats)
        asking.kill()
        asking.communicate()

        assert home.ask("and now?").out == "hello\n"


def test_json_and_attachments_look_as_they_do_without_a_gateway(home: GatewayHome, tmp_path: Path):
    note = tmp_path / "note.txt"
    note.write_text("remember the milk")

    with home.gateway():
        through = [json.loads(line) for line in home.ask("look", "--json", "--attach", str(note)).out.splitlines()]
    alone = [json.loads(line) for line in home.ask("look", "--json", "--attach", str(note)).out.splitlines()]

    assert [event["type"] for event in through] == [event["type"] for event in alone]
    assert str(note) in str(home.rows()[0])


def test_a_failed_turn_fails_the_command(home: GatewayHome, server: FakeModels):
    home.change(agents={"defaults": {"model": "stand-in", "provider": "custom"}}, limits={"turnTokens": 1})

    with home.gateway():
        end = home.ask("hi")

    assert end.code == 1
    assert end.aside.startswith("Error: ")


def test_send_prints_the_platforms_id_and_says_why_where_it_cannot(home: GatewayHome):
    words = ("send", "--channel", "toy", "--to")

    with home.gateway():
        sent = home.run(*words, "9", "the kettle is on")
        refused = home.run(*words, "nowhere", "hello?")
        unknown = home.run("send", "--channel", "fax", "--to", "9", "hello?")
    no_gateway = home.run(*words, "9", "hello?")

    assert (sent.code, home.toy.got("9")) == (0, ["the kettle is on"])
    assert sent.out.strip().isdigit()
    assert (refused.code, "there is no such chat" in refused.complaint) == (1, True)
    assert (unknown.code, "there is toy" in unknown.complaint) == (1, True)
    assert (no_gateway.code, "nanobot gateway" in no_gateway.complaint) == (1, True)


def test_channels_test_writes_to_the_owners(home: GatewayHome):
    (home.data / "pairing.json").write_text(json.dumps({"owners": {"toy": ["7"]}, "approved": {"toy": ["7"]}}))

    with home.gateway():
        tried = home.run("channels", "test", "toy")

    assert tried.out.startswith("toy:7 has it, as ")
    assert home.toy.got("7") == ["This is a test of nanobot. It works."]


def test_channels_status_without_a_gateway_says_what_could_start(home: GatewayHome):
    home.change(channels={**home.config["channels"], "slak": {"enabled": True}})

    told = json.loads(home.run("channels", "status", "--json").out)

    assert told["running"] is False
    assert {name: one["state"] for name, one in told["channels"].items()} == {"toy": "off", "slak": "failed"}


def test_gateway_stop_ends_it_in_good_order_and_restart_begins_it_anew(home: GatewayHome):
    with home.gateway() as process:
        home.run("gateway", "restart")
        until(lambda: home.log.count("ready in") == 2)
        home.run("gateway", "stop")

        assert ended(process).code == 0


def test_gateway_logs_shows_the_end_of_the_log(home: GatewayHome):
    with home.gateway():
        pass

    assert "ready in" in home.run("gateway", "logs", "-n", "3").out


def test_a_chat_line_typed_while_the_gateway_works_joins_the_turn(home: GatewayHome, server: FakeModels):
    server.script(Calls(("exec", {"command": "sleep 0.6"})), Say("both done"))
    from nanobot.cli.gateway_bot import find_bot
    from nanobot.cli.inbound import terminal_message

    script = f"""
import asyncio
from pathlib import Path
from nanobot.cli.gateway_bot import find_bot
from nanobot.cli.inbound import terminal_message

async def main():
    bot = await find_bot(Path({str(home.data / "state")!r}), "cli:direct", go_on=False)
    lines = [terminal_message("and the second", bot.session_key)]
    turn = asyncio.create_task(bot.run_turn(terminal_message("do it", bot.session_key), lambda event: None,
                                            waiting=lambda most: print("joined", most) or ()))
    await asyncio.sleep(0.3)
    bot.lines_wait(lines)
    print((await turn).text)

asyncio.run(main())
"""
    del find_bot, terminal_message

    with home.gateway():
        done = subprocess.run([sys.executable, "-c", script], env=home.environ, capture_output=True, text=True)

    assert done.stdout.splitlines() == ["joined 1", "both done"], done.stderr
    assert "and the second" in server.chats[-1].body.decode()


def test_a_command_that_talks_through_the_gateway_loads_neither_the_config_nor_the_engine(home: GatewayHome):
    heavy = ("pydantic", "nanobot.runtime", "nanobot.config.schema", "httpx", "sqlite3", "rich", "loguru")
    script = "import sys; from nanobot.cli.commands import app\ntry: app(sys.argv[1:])\nexcept SystemExit: pass\n"
    script += f"print([name for name in {heavy!r} if name in sys.modules])"

    with home.gateway():
        done = subprocess.run(
            [sys.executable, "-c", script, "agent", "-m", "hi"], env=home.environ, capture_output=True, text=True
        )

    assert done.stdout.splitlines() == ["hello", "[]"], done.stderr
    assert os.environ.get("NANOBOT_CHILD") is None
