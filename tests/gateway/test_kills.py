"""A client of the local socket goes on where its turn broke off when the gateway was killed: the same text, once."""

import json
from pathlib import Path

from nanobot.testing.model_server import FakeModels, Hang, Say
from tests.support.home import POSIX
from tests.support.toy_gateway import GatewayHome

pytestmark = POSIX


def test_a_single_message_at_the_terminal_is_answered_once_although_the_gateway_is_killed(tmp_path: Path):
    with FakeModels() as server:
        home = GatewayHome(tmp_path, server)
        server.script(Hang(after="The answer is "))
        with home.gateway() as first:
            command = home.start("agent", "--json", "-m", "what is it?")
            assert command.stdout is not None
            lines = []
            for line in command.stdout:
                lines.append(json.loads(line))
                if "".join(one.get("text", "") for one in lines if one["type"] == "text_delta") == "The answer is ":
                    break
            first.kill()
        server.script(Say("forty-two."))
        with home.gateway():
            lines += map(json.loads, command.communicate(timeout=30)[0].splitlines())

    assert "".join(one["text"] for one in lines if one["type"] == "text_delta") == "The answer is forty-two."
    assert lines[-1]["text"] == "The answer is forty-two."
    assert [one["seq"] for one in lines] == [*range(len(lines))]
    assert len(server.chats) == 2
