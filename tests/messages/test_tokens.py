"""The weights of messages are near enough, and cheap."""

from typing import Any, cast

import pytest

from nanobot.messages.tokens import TOKENS_PER_IMAGE, estimate_tokens
from nanobot.messages.types import ChatMessage


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 0), ("a" * 400, 100), ("好" * 100, 75), ("привет" * 10, 30), ("\ud800", 1)]
)
def test_a_text_weighs_by_its_characters(text: str, tokens: int):
    assert estimate_tokens(text) == tokens


def test_an_image_weighs_the_same_however_large_its_bytes():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}

    weight = estimate_tokens([{"role": "user", "content": [{"type": "text", "text": "look"}, image]}])

    assert TOKENS_PER_IMAGE < weight < TOKENS_PER_IMAGE + 20


def test_calls_context_and_reasoning_weigh_too():
    bare: ChatMessage = {"role": "assistant", "content": "ok"}
    call = {"id": "a", "type": "function", "function": {"name": "write_file", "arguments": "x" * 400}}

    laden = cast(
        ChatMessage, {**bare, "tool_calls": [call], "reasoning_content": "y" * 400, "runtime_context": "z" * 400}
    )

    assert estimate_tokens([laden]) > estimate_tokens([bare]) + 300


@pytest.mark.parametrize(
    "row", [{}, {"content": 5}, {"content": [3, {}]}, {"content": None, "tool_calls": [1, {"function": 2}]}]
)
def test_odd_rows_weigh_something_and_raise_nothing(row: Any):
    assert estimate_tokens([row]) >= 0
