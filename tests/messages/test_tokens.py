"""The weights of messages are near enough, and cheap."""

import base64
import random
from typing import Any, cast

import pytest

from nanobot.messages.tokens import TOKENS_PER_IMAGE, estimate_tokens
from nanobot.messages.types import ChatMessage

DICE = random.Random(7)
SAMPLES = [
    ("The window of a model is small, and what goes into it should be chosen with some care. " * 40, 801),
    ("def total(items: list[int]) -> int:\n    return sum(item for item in items if item > 0)\n\n\n" * 40, 1040),
    (DICE.randbytes(3_000).hex(), 3362),
    (base64.b64encode(DICE.randbytes(3_000)).decode(), 2746),
    ("\n".join(",".join(f"{DICE.random():.4f}" for _ in range(10)) for _ in range(100)), 4999),
    ("\n".join(f"2026-11-22T01:00:{n:02} INFO [worker-{n}] GET /api/items/{n * 7919} 200" for n in range(60)), 1678),
    ('{"id": 12, "name": "plum", "tags": ["a", "b"], "price": {"eur": 1.5, "usd": 1.7}},\n' * 60, 2520),
    ("今天天气很好，我们一起去公园散步吧。机器学习模型的上下文窗口有限，需要压缩历史记录。" * 30, 810),
    ("오늘은 날씨가 매우 좋으니 공원을 산책합시다. 컨텍스트 창에는 한계가 있습니다." * 30, 810),
    ("Сегодня очень хорошая погода, пойдём гулять в парк. Окно контекста ограничено." * 30, 720),
    ("😀🎉🔥🚀" * 100, 600),
]
"""Texts of any kind, and what o200k, the tokenizer of newer models, counts."""


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 0), ("a" * 400, 100), ("好" * 100, 105), ("привет" * 10, 39), ("\ud800", 2)]
)
def test_a_text_weighs_by_its_characters(text: str, tokens: int):
    assert estimate_tokens(text) == tokens


@pytest.mark.parametrize(("text", "tokens"), SAMPLES)
def test_an_estimate_is_never_far_below_what_a_tokenizer_counts(text: str, tokens: int):
    assert 0.75 <= estimate_tokens(text) / tokens <= 2.2


@pytest.mark.parametrize(
    "row",
    [
        {"content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}]},
        {"content": "look", "media": ["/tmp/a.PNG", "/tmp/b.pdf"]},
    ],
)
def test_an_image_weighs_the_same_however_large_and_another_file_nothing(row: Any):
    assert TOKENS_PER_IMAGE < estimate_tokens([cast(ChatMessage, row)]) < TOKENS_PER_IMAGE + 20


def test_calls_context_and_reasoning_weigh_too():
    bare: ChatMessage = {"role": "assistant", "content": "ok"}
    call = {"id": "a", "type": "function", "function": {"name": "write_file", "arguments": "x" * 400}}
    more = {"tool_calls": [call], "reasoning_content": "y" * 400, "runtime_context": "z" * 400}

    assert estimate_tokens([cast(ChatMessage, {**bare, **more})]) > estimate_tokens([bare]) + 300


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"content": 5},
        {"content": {"a": 1}},
        {"content": [3, {}, {"type": []}]},
        {"content": None, "tool_calls": [1, {"function": 2}]},
        {"content": "x", "tool_calls": 7, "thinking_blocks": [5], "media": [None]},
    ],
)
def test_odd_rows_weigh_something_and_raise_nothing(row: Any):
    assert estimate_tokens([row]) >= 0
