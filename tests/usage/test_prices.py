"""Prices: LiteLLM's table read as data, a copy of what a call needs, and names as people write them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nanobot.usage.prices import FREE, Price, find_price, litellm_table
from nanobot.usage.types import Tokens, format_dollars

TABLE: dict[str, Any] = {
    "sample_spec": {"mode": "one of: chat, embedding", "input_cost_per_token": 0.0, "output_cost_per_token": 0.0},
    "big-model-4-5": {
        "mode": "chat", "max_input_tokens": 1_000_000,
        "input_cost_per_token": 4e-06, "output_cost_per_token": 2e-05, "output_cost_per_token_batches": 1e-05,
        "cache_read_input_token_cost": 1e-06, "cache_creation_input_token_cost": 5e-06,
        "input_cost_per_token_above_200k_tokens": 8e-06, "output_cost_per_token_above_200k_tokens": 3e-05,
        "input_cost_per_token_above_200k_tokens_priority": 9e-06,
    },
    "old": {"input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06, "max_tokens": 8000},
    "house/small": {"mode": "chat", "input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06, "max_tokens": 8000},
    "small": {"mode": "chat", "input_cost_per_token": 9e-06, "output_cost_per_token": 9e-06},
    "dated-2026-01-01": {"mode": "chat", "input_cost_per_token": 1e-06, "output_cost_per_token": 1e-06},
    "dated-2026-06-01": {"mode": "chat", "input_cost_per_token": 2e-06, "output_cost_per_token": 2e-06},
    "east/tiered": {"mode": "chat", "tiered_pricing": [
        {"range": [0, 1000.0], "input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06},
        {"range": [1000.0, 9000.0], "input_cost_per_token": 3e-06, "output_cost_per_token": 4e-06,
         "output_cost_per_reasoning_token": 5e-06},
    ]},
    "painter": {"mode": "image_generation", "input_cost_per_token": 1e-06, "output_cost_per_token": 1e-06},
    "half": {"mode": "chat", "input_cost_per_token": 1e-06},
    "odd": {"mode": "chat", "input_cost_per_token": "cheap", "output_cost_per_token": True},
    "no-entry": 7,
}  # fmt: skip


def found(source: Path, model: str, *prefixes: str) -> Price:
    price = find_price(model, *prefixes, table=source)
    assert price is not None
    return price


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(TABLE), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("model", "prefixes"),
    [
        ("big-model-4-5", ()),
        ("maker/big-model-4-5", ("maker",)),
        ("maker/big-model-4-5", ("gateway",)),
        ("gateway/maker/big-model-4-5", ("gateway",)),
        ("maker/big-model-4.5", ("gateway",)),
        ("Big-Model-4.5", ()),
        ("big-model-4-5-20260101", ()),
        ("big-model-4-5@20260101", ()),
        ("big-model-4-5-2026-01-01", ("maker", "")),
    ],
)
def test_a_model_is_found_however_it_is_written(source: Path, model: str, prefixes: tuple[str, ...]):
    assert found(source, model, *prefixes).rates[0].input == 4e-06


def test_the_provider_s_own_row_comes_first_and_without_a_date_the_newest(source: Path):
    names = [("small", "house"), ("small",), ("dated",), ("old",)]  # the last has no mode, as old rows of the table

    assert [found(source, *name).rates[0].input for name in names] == [1e-06, 9e-06, 2e-06, 1e-06]


@pytest.mark.parametrize(
    "model", ["nobody-knows", "big-model", "painter", "half", "odd", "no-entry", "", "house", "4-5"]
)
def test_what_the_table_does_not_tell_has_no_price(source: Path, model: str):
    assert find_price(model, "house", table=source) is None


@pytest.mark.parametrize(
    ("name", "tokens", "usd"),
    [
        (("big-model-4-5",), Tokens(prompt=1000, cached=600, cache_written=100, completion=50, reasoning=20),
         300 * 4e-06 + 600 * 1e-06 + 100 * 5e-06 + 50 * 2e-05),
        # a long request costs more, all of it
        (("big-model-4-5",), Tokens(prompt=200_000), 0.8),
        (("big-model-4-5",), Tokens(prompt=200_001, cached=200_001, completion=1), 200_001e-06 + 3e-05),
        (("tiered", "east"), Tokens(prompt=1000, completion=10), 1020e-06),
        (("tiered", "east"), Tokens(prompt=2000, completion=10, reasoning=4), 6000e-06 + 24e-06 + 20e-06),
    ],
)  # fmt: skip
def test_each_kind_of_token_has_its_price(source: Path, name: tuple[str, ...], tokens: Tokens, usd: float):
    assert found(source, *name).cost(tokens) == pytest.approx(usd)


def test_no_call_costs_more_than_the_most(source: Path):
    dearest, price = Tokens(1000, cache_written=1000, completion=100, reasoning=100), found(source, "big-model-4-5")

    assert price.cost(dearest) == pytest.approx(price.max_cost(1000, 100))
    assert FREE.max_cost(10**6, 10**6) == 0


@pytest.mark.parametrize(
    "content", [None, "{", "[]", '{"big-model-4-5": {"mode": "chat", "input', '{"big-model-4-5": 7}']
)
def test_without_a_table_no_price_is_known(tmp_path: Path, content: str | None):
    source = tmp_path / "gone.json"
    if content is not None:
        source.write_text(content, encoding="utf-8")

    assert find_price("big-model-4-5", table=source) is None


def test_the_real_table_prices_what_people_ask_and_litellm_is_not_imported():
    code = (
        "import sys\n"
        "from nanobot.usage.prices import find_price\n"
        "asked = [('claude-opus-4-5', 'anthropic'), ('anthropic/claude-opus-4.5', 'openrouter'),\n"
        "         ('gpt-4.1', 'openai'), ('gemini-2.5-flash', 'gemini'), ('deepseek-chat', 'deepseek'),\n"
        "         ('kimi-k2.5', 'moonshot'), ('glm-4.6', 'zai'), ('qwen-plus', 'dashscope'),\n"
        "         ('mistral-large-latest', 'mistral')]\n"
        "print([name for name, of in asked if find_price(name, of) is None], 'litellm' in sys.modules)\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.stdout.split() == ["[]", "False"], done.stderr
    assert litellm_table() is not None


@pytest.mark.parametrize(
    ("usd", "text"),
    [(None, "-"), (0, "$0"), (0.0004, "<$0.001"), (0.0123, "$0.012"), (0.5, "$0.50"), (1234.5, "$1,234.50")],
)
def test_an_amount_for_a_person(usd: float | None, text: str):
    assert format_dollars(usd) == text
