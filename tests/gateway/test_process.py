"""A gateway as a process: it starts once, answers once, and leaves nothing behind when it goes, however it goes."""

import json
import plistlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanobot.gateway.daemon import ServiceSpec, launchd_agent, nanobot_command
from nanobot.testing.model_server import FakeModels, Hang, Say
from tests.support.eventually import wait_until
from tests.support.home import POSIX, ended
from tests.support.toy_gateway import GatewayHome, free_port

pytestmark = POSIX


@pytest.fixture
def server() -> Iterator[FakeModels]:
    with FakeModels(default=Say("hello")) as server:
        yield server


@pytest.fixture
def home(tmp_path: Path, server: FakeModels) -> GatewayHome:
    return GatewayHome(tmp_path, server)


def test_a_turn_that_a_kill_or_a_stop_cuts_off_goes_on_at_the_next_start_and_nothing_is_left_behind(
    home: GatewayHome, server: FakeModels
):
    server.script(Hang(), Say("first"), Hang())
    home.toy.write("hi", message_id="1")
    with home.gateway() as process:
        wait_until(lambda: server.chats)
        process.kill()

    with home.gateway(before=["nohup"]) as process:
        wait_until(home.toy.got)
        home.toy.write("hi again, though this id was here", message_id="1")
        wait_until(lambda: not home.toy.waiting)
        process.send_signal(signal.SIGHUP)  # nohup means to survive it
        home.toy.write("and now?", message_id="2")
        wait_until(lambda: len(server.chats) == 3)
        assert process.poll() is None
        told = time.monotonic()
        process.send_signal(signal.SIGTERM)
        end = ended(process)
        took = time.monotonic() - told

    assert (end.code, took < 5.0) == (0, True)
    assert not {"gateway.sock", "gateway.json"} & {file.name for file in (home.data / "state").iterdir()}
    with home.gateway():
        wait_until(lambda: "hello" in home.toy.got())
    assert [text for text in home.toy.got() if "nanobot is stopping" not in text] == ["first", "hello"]


def test_a_second_gateway_names_the_first_and_restart_begins_the_same_process_anew(home: GatewayHome):
    (home.data / "pairing.json").write_text(json.dumps({"owners": {"toy": ["7"]}, "approved": {"toy": ["7"]}}))

    with home.gateway() as process:
        second = home.run("gateway")
        home.toy.write("/restart", message_id="1")
        wait_until(lambda: home.log.count("ready in") == 2)
        home.toy.write("hi", message_id="2")
        wait_until(lambda: "hello" in home.toy.got())

        assert process.poll() is None
    assert (second.code, f"pid {process.pid}" in second.complaint) == (75, True)
    assert home.toy.got() == ["Restarting. Running work continues afterwards.", "hello"]


def test_what_launchd_starts_has_the_variables_of_the_env_file(home: GatewayHome, server: FakeModels):
    providers = home.config["providers"]
    home.change(providers={name: {**section, "apiKey": "${OWN_KEY}"} for name, section in providers.items()})
    (home.data / "gateway.env").write_text("# keys\n\nOWN_KEY='abc $1 = #2'\n", encoding="utf-8")
    agent = plistlib.loads(launchd_agent(ServiceSpec(nanobot_command(), None, home.data)))
    home.toy.write("hi", message_id="1")

    service = subprocess.Popen(agent["ProgramArguments"], cwd=agent["WorkingDirectory"], env=home.environ)
    try:
        wait_until(home.toy.got)
    finally:
        service.kill()
        service.wait()

    assert server.chats[0].headers["authorization"] == "Bearer abc $1 = #2"


def test_without_a_channel_it_runs_for_its_page_and_without_that_says_what_to_do_and_leaves_with_78(home: GatewayHome):
    home.change(channels={})
    with home.gateway():
        link = home.run("web", "--qr")
    home.change(gateway={"port": free_port(), "web": {"enabled": False}})
    end = home.run("gateway")

    assert "#k=" in link.out
    assert "gateway.web.publicUrl" in link.complaint  # a phone cannot open a loopback address
    assert (end.code, "--allow-empty" in end.complaint) == (78, True)


def test_commands_talk_through_it_without_the_engine_and_by_themselves_when_its_socket_is_stale(
    home: GatewayHome, server: FakeModels
):
    heavy = ("pydantic", "nanobot.runtime.build", "nanobot.config.schema", "httpx", "sqlite3", "rich", "loguru")
    script = "import sys; from nanobot.cli.main import app\ntry: app(sys.argv[1:])\nexcept SystemExit: pass\n"
    script += f"print([name for name in {heavy!r} if name in sys.modules])"
    one_shot = [sys.executable, "-c", script, "agent", "-s", "cli:direct", "-m", "hi"]
    with home.gateway() as process:
        through = subprocess.run(one_shot, env=home.environ, capture_output=True, text=True)
        logged = home.run("gateway", "logs", "-n", "3")
        server.script(Hang(after="It was a dark"))
        asking = home.start("agent", "-s", "cli:direct", "-m", "tell me")
        wait_until(lambda: len(server.chats) == 2)
        asking.send_signal(signal.SIGINT)
        stopped = ended(asking)
        process.kill()
        process.wait()
    alone = home.ask("and now")

    assert through.stdout.splitlines() == ["hello", "[]"], through.stderr
    assert "ready in" in logged.out
    assert stopped.code == 130
    assert (alone.code, alone.out) == (0, "hello\n")
    assert [text for role, text in home.said() if role == "user"] == ["hi", "tell me", "and now"]
