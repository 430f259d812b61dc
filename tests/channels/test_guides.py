"""The examples of the guides work as they are: a channel of one's own, a client for WebSocket."""

import json
import re
import socket
import subprocess
import sys
from typing import Self

from nanobot.testing.model_server import FakeModels, Say
from tests.channels.own import install
from tests.house.repo import ROOT
from tests.support.eventually import wait_until
from tests.support.toy_gateway import GatewayHome, free_port


class Client:
    """Somebody at the other end of the line."""

    def __init__(self, port: int, name: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._lines = self._socket.makefile("rw", encoding="utf-8", newline="\n")
        self.write(name=name)

    def write(self, **words: str) -> None:
        self._lines.write(json.dumps(words) + "\n")
        self._lines.flush()

    def read(self) -> dict[str, str]:
        told: dict[str, str] = json.loads(self._lines.readline())
        return told

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._lines.close()
        self._socket.close()


def test_the_channel_of_the_guide_answers_who_may_speak_and_takes_a_message_once(tmp_path):
    with FakeModels(default=Say("Good morning.")) as model:
        home, port = GatewayHome(tmp_path / "home", model, toys=()), free_port()
        install(tmp_path / "home" / "site")
        home.change(channels={"lines": {"enabled": True, "port": port, "allowFrom": ["anna"]}})
        with home.gateway() as gateway:
            wait_until(lambda: "lines: connected" in home.log)
            with Client(port, "anna") as anna, Client(port, "zoe") as zoe:
                for _ in range(2):
                    anna.write(id="1", text="hello")
                zoe.write(id="1", text="hello")
                to_anna = [anna.read() for _ in range(3)]
                to_zoe = [zoe.read() for _ in range(2)]
                gateway.terminate()
                gateway.wait(10)

    assert sorted(to_anna, key=str) == [{"text": "Good morning."}, {"took": "1"}, {"took": "1"}]
    assert "This is a private bot." in str(to_zoe)
    assert len(model.chats) == 1
    assert gateway.returncode == 0


def test_the_client_of_the_websocket_guide_says_whether_it_is_let_in_and_shows_what_comes(tmp_path):
    script = str(ROOT / "docs" / "examples" / "chat.py")
    with FakeModels(default=Say("Good morning.")) as model:
        home, port = GatewayHome(tmp_path / "home", model, toys=()), free_port()
        home.change(channels={"websocket": {"enabled": True, "port": port, "token": "t", "allowFrom": []}})
        with home.gateway():
            wait_until(lambda: "websocket: connected" in home.log)
            words = [sys.executable, "-u", script, f"ws://127.0.0.1:{port}", "t"]
            with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8") as client:
                assert client.stdin is not None and client.stdout is not None
                print("hello", file=client.stdin, flush=True)
                refused = [client.stdout.readline() for _ in range(5)]
                (code,) = re.findall(r"approve (\w+) --owner", "".join(refused))
                home.run("pairing", "approve", code, "--owner")
                print("hello", file=client.stdin, flush=True)
                welcome, answer = (client.stdout.readline() for _ in range(2))
                print(file=client.stdin, flush=True)
                left = client.wait(10)

    assert "(not taken: nobody has let you in yet)\n" in refused
    assert welcome.startswith("You are in.")
    assert answer == "Good morning.\n"
    assert left == 0
