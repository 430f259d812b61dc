"""The interactive chat through a running gateway, in a real terminal: it looks and behaves as it does without."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanobot.testing.model_server import Calls, FakeModels, Hang, Say
from tests.support.home import NANOBOT
from tests.support.toy_gateway import GatewayHome

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are a POSIX thing", allow_module_level=True)

import pexpect

from tests.support.eventually import wait_until
from tests.support.terminal import on_screen


@pytest.fixture
def server() -> Iterator[FakeModels]:
    with FakeModels(default=Say("hello there")) as server:
        yield server


@pytest.mark.needs_sandbox
def test_a_chat_steers_stops_and_hears_through_the_gateway_and_goes_on_when_it_is_gone(
    tmp_path: Path, server: FakeModels
):
    home = GatewayHome(tmp_path, server)
    environ = {**home.environ, "TERM": "xterm"}
    with home.gateway() as gateway:
        chat = on_screen([*NANOBOT, "agent"], env=environ, dimensions=(40, 100), encoding="utf-8", timeout=15)
        chat.expect("for commands")

        server.script(Calls(("exec", {"command": "sleep 0.7"})), Say("both are done"))
        chat.send("do this\r")
        wait_until(lambda: server.chats)
        chat.send("and that\r")
        chat.expect("both are done")
        joined = server.chats[-1].body.decode()

        assert home.run("send", "--channel", "cli", "--to", "direct", "the kettle is on").code == 0
        chat.expect("the kettle is on")

        server.script(Calls(("exec", {"command": "sleep 30"})))
        asked = len(server.chats)
        chat.send("take your time\r")
        wait_until(lambda: len(server.chats) > asked)
        chat.expect("sleep 30")
        chat.send("\x1b")
        chat.expect("stopped")

        gateway.terminate()
        gateway.wait(timeout=10)
        server.script(Say("I am still here"))
        chat.send("anyone?\r")
        chat.expect("This chat continues without it")
        chat.expect("I am still here")
        server.script(Say("and so am I"))
        chat.send("you too?\r")
        chat.expect("and so am I")
        chat.sendeof()
        chat.expect(pexpect.EOF)
        chat.close()

    assert "and that" in joined
    assert chat.exitstatus == 0


@pytest.mark.parametrize("end", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_turn_goes_on_in_the_open_chat_when_the_gateway_has_ended(tmp_path: Path, server: FakeModels, end: int):
    home = GatewayHome(tmp_path, server)
    environ = {**home.environ, "TERM": "xterm"}
    server.script(Hang())
    with home.gateway() as gateway:
        chat = on_screen([*NANOBOT, "agent"], env=environ, dimensions=(40, 100), encoding="utf-8", timeout=15)
        chat.expect("for commands")
        chat.send("take your time\r")
        wait_until(lambda: server.chats)
        gateway.send_signal(end)
        gateway.wait(timeout=10)
        chat.expect("This chat continues without it")
        chat.expect("hello there")
        chat.sendeof()
        chat.expect(pexpect.EOF)
        chat.close()

    assert "take your time" in server.chats[-1].body.decode()
