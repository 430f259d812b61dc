"""What servers send that is nearly right, or more than anybody wants."""

import json

import pytest
from mcp.types import JSONRPCResponse

from nanobot.agent.tools.mcp.server_output import MAX_LIST_ITEMS, parse_line


def result_in(line: bytes) -> dict[str, object]:
    message = parse_line(line)
    assert message is not None
    assert isinstance(message.message, JSONRPCResponse)
    return message.message.result


def test_what_python_and_javascript_write_and_json_does_not_know_is_read():
    line = (
        rb'{"jsonrpc": "2.0", "id": 1, "result": {"a": NaN, "b": ["half \ud83d", "whole \ud83d\ude00"], "c": Infinity}}'
    )

    assert result_in(line) == {"a": None, "b": ["half �", "whole 😀"], "c": None}


@pytest.mark.parametrize(
    "line", [b"Loading... 42%", b"[1]", b'{"a":' * 20_000, b"NaN", b"\xff\xfe", b'{"result": NaN}']
)
def test_what_is_no_message_is_none(line: bytes):
    assert parse_line(line) is None


def test_of_an_endless_list_the_rest_is_left_away():
    blocks = [{"type": "text", "text": "b"}] * (MAX_LIST_ITEMS + 1)
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"content": blocks, "more": 1}}).encode()

    assert result_in(line) == {"content": blocks[:-1], "more": 1}
