"""Prices: LiteLLM's table read as data, a copy of what a call needs, and names as people write them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nanobot.usage.prices import FREE, PriceTable, litellm_table
from nanobot.usage.types import Tokens, format_dollars

TABLE = {
    "sample_spec": {"mode": "one of: chat, embedding", "input_cost_per_token": 0.0, "output_cost_per_token": 0.0},
    "big-model-4-5": {
        "mode": "chat",
        "input_cost_per_token": 4e-06,
        "cache_read_input_token_cost": 1e-06,
        "cache_creation_input_token_cost": 5e-06,
        "output_cost_per_token": 2e-05,
        "output_cost_per_token_batches": 1e-05,
        "input_cost_per_token_above_200k_tokens": 8e-06,
        "input_cost_per_token_above_200k_tokens_priority": 9e-06,
        "output_cost_per_token_above_200k_tokens": 3e-05,
        "max_input_tokens": 1_000_000,
    },
    "old": {"input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06, "max_tokens": 8000},
    "house/small": {"mode": "chat", "input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06, "max_tokens": 8000},
    "dated-2026-01-01": {"mode": "chat", "input_cost_per_token": 1e-06, "output_cost_per_token": 1e-06},
    "dated-2026-06-01": {"mode": "chat", "input_cost_per_token": 2e-06, "output_cost_per_token": 2e-06},
    "east/tiered": {
        "mode": "chat",
        "tiered_pricing": [
            {"range": [0, 1000.0], "input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06},
            {
                "range": [1000.0, 9000.0],
                "input_cost_per_token": 3e-06,
                "output_cost_per_token": 4e-06,
                "output_cost_per_reasoning_token": 5e-06,
            },
        ],
    },
    "painter": {"mode": "image_generation", "input_cost_per_token": 1e-06, "output_cost_per_token": 1e-06},
    "half": {"mode": "chat", "input_cost_per_token": 1e-06},
    "odd": {"mode": "chat", "input_cost_per_token": "cheap", "output_cost_per_token": True},
    "no-entry": 7,
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(TABLE), encoding="utf-8")
    return path


@pytest.fixture
def prices(source: Path) -> PriceTable:
    return PriceTable(None, source)


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
def test_a_model_is_found_however_it_is_written(prices: PriceTable, model: str, prefixes: tuple[str, ...]):
    price = prices.find(model, *prefixes)

    assert price is not None
    assert price.rates[0].input == 4e-06
    assert price.window == 1_000_000
    assert prices.find("old") is not None  # no mode, as old rows of the table


def test_the_provider_s_own_row_comes_first_and_without_a_date_the_newest(source: Path):
    table = TABLE | {"small": {"mode": "chat", "input_cost_per_token": 9e-06, "output_cost_per_token": 9e-06}}
    source.write_text(json.dumps(table), encoding="utf-8")
    prices = PriceTable(None, source)

    own, dated = prices.find("small", "house"), prices.find("dated")

    assert own is not None and own.rates[0].input == 1e-06
    assert dated is not None and dated.rates[0].input == 2e-06


@pytest.mark.parametrize(
    "model", ["nobody-knows", "big-model", "painter", "half", "odd", "no-entry", "", "house", "4-5"]
)
def test_what_the_table_does_not_tell_has_no_price(prices: PriceTable, model: str):
    assert prices.find(model, "house") is None


def test_each_kind_of_token_has_its_price(prices: PriceTable):
    price = prices.find("big-model-4-5")
    assert price is not None

    cost = price.cost(Tokens(prompt=1000, cached=600, cache_written=100, completion=50, reasoning=20))

    assert cost == pytest.approx(300 * 4e-06 + 600 * 1e-06 + 100 * 5e-06 + 50 * 2e-05)


def test_a_long_request_costs_more_all_of_it(prices: PriceTable):
    big, tiered = prices.find("big-model-4-5"), prices.find("tiered", "east")
    assert big is not None
    assert tiered is not None

    assert big.cost(Tokens(prompt=200_000)) == pytest.approx(0.8)
    assert big.cost(Tokens(prompt=200_001, cached=200_001, completion=1)) == pytest.approx(200_001e-06 + 3e-05)
    assert tiered.cost(Tokens(prompt=1000, completion=10)) == pytest.approx(1020e-06)
    assert tiered.cost(Tokens(prompt=2000, completion=10, reasoning=4)) == pytest.approx(6000e-06 + 24e-06 + 20e-06)


def test_no_call_costs_more_than_the_most(prices: PriceTable):
    price = prices.find("big-model-4-5")
    assert price is not None

    dearest = Tokens(prompt=1000, cache_written=1000, completion=100, reasoning=100)

    assert price.cost(dearest) == pytest.approx(price.max_cost(1000, 100))
    assert FREE.max_cost(10**6, 10**6) == 0


def test_the_copy_is_read_until_the_table_changes(tmp_path: Path, source: Path):
    copy = tmp_path / "state" / "prices.json"
    PriceTable(copy, source).load()
    made = copy.read_bytes()
    os.utime(copy, ns=(1, 1))

    again = PriceTable(copy, source).find("small", "house")
    untouched = copy.stat().st_mtime_ns == 1
    source.write_text(json.dumps({"small": TABLE["house/small"] | {"input_cost_per_token": 7e-06}}), encoding="utf-8")  # type: ignore[operator]
    changed = PriceTable(copy, source).find("small", "house")

    assert json.loads(made)["models"]["house/small"] == {
        "rates": [[0, 1e-06, 1e-06, 1e-06, 2e-06, 2e-06]],
        "window": 8000,
    }
    assert untouched
    assert again is not None
    assert changed is not None
    assert (again.rates[0].input, changed.rates[0].input) == (1e-06, 7e-06)


def test_a_damaged_copy_is_made_anew_and_one_that_cannot_be_kept_costs_nothing(tmp_path: Path, source: Path):
    copy = tmp_path / "prices.json"
    PriceTable(copy, source).load()
    whole = copy.read_bytes()

    for damage in (b"[]", b'{"made_of": [], "models": 7}', *(whole[:length] for length in range(0, len(whole), 7))):
        copy.write_bytes(damage)
        assert PriceTable(copy, source).find("big-model-4-5") is not None
        assert copy.read_bytes() == whole
    (tmp_path / "state").write_text("no folder", encoding="utf-8")
    assert PriceTable(tmp_path / "state" / "prices.json", source).find("big-model-4-5") is not None


@pytest.mark.parametrize("row", [7, [], {}, {"input": 1}, {"input": 1, "output": 1, "longer": {"far": {}}}])
def test_a_damaged_row_of_the_copy_is_a_price_not_known(tmp_path: Path, source: Path, row: object):
    copy = tmp_path / "prices.json"
    PriceTable(copy, source).load()
    data = json.loads(copy.read_bytes())
    data["models"]["big-model-4-5"] = row
    copy.write_text(json.dumps(data), encoding="utf-8")

    prices = PriceTable(copy, source)

    assert prices.find("big-model-4-5") is None
    assert prices.find("small", "house") is not None


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_without_a_table_no_price_is_known(tmp_path: Path, content: str | None):
    source = tmp_path / "gone.json"
    if content is not None:
        source.write_text(content, encoding="utf-8")

    assert PriceTable(None, source).find("big-model-4-5") is None


def test_the_real_table_prices_what_people_ask_and_litellm_is_not_imported(tmp_path: Path):
    code = (
        "import sys, pathlib\n"
        "from nanobot.usage.prices import PriceTable\n"
        "prices = PriceTable(pathlib.Path(sys.argv[1]))\n"
        "asked = [('claude-opus-4-5', 'anthropic'), ('anthropic/claude-opus-4.5', 'openrouter'),\n"
        "         ('gpt-4.1', 'openai'), ('gemini-2.5-flash', 'gemini'), ('deepseek-chat', 'deepseek'),\n"
        "         ('kimi-k2.5', 'moonshot'), ('glm-4.6', 'zai'), ('qwen-plus', 'dashscope'),\n"
        "         ('mistral-large-latest', 'mistral')]\n"
        "print([name for name, of in asked if prices.find(name, of) is None], 'litellm' in sys.modules)\n"
    )

    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "p.json")], capture_output=True, text=True)

    assert done.stdout.split() == ["[]", "False"], done.stderr
    assert litellm_table() is not None


@pytest.mark.parametrize(
    ("usd", "text"),
    [(None, "-"), (0, "$0"), (0.0004, "<$0.001"), (0.0123, "$0.012"), (0.5, "$0.50"), (1234.5, "$1,234.50")],
)
def test_an_amount_for_a_person(usd: float | None, text: str):
    assert format_dollars(usd) == text
