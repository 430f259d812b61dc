"""The channel that docs/guides/channels.md has whole: installed as a package, it serves in a gateway of its own."""

import json
import socket
from typing import Self

from tests.channels.own import install
from tests.fake_models import FakeModels, Say
from tests.gateway.toy import GatewayHome, free_port, until


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
            until(lambda: "lines: connected" in home.log)
            with Client(port, "anna") as anna, Client(port, "zoe") as zoe:
                for _ in range(2):
                    anna.write(id="1", text="hello")
                zoe.write(id="1", text="hello")
                to_anna = [anna.read() for _ in range(3)]
                to_zoe = [zoe.read() for _ in range(2)]
                gateway.terminate()
                gateway.wait(10)

    assert sorted(to_anna, key=str) == [{"text": "Good morning."}, {"took": "1"}, {"took": "1"}]
    assert "I talk only with people my owner knows." in str(to_zoe)
    assert len(model.chats) == 1
    assert gateway.returncode == 0
