"""What models cost, according to the JSON table that LiteLLM ships. LiteLLM, which takes seconds, is not imported.

The table has 3 MB, so a model's entry is looked up in its text, and only that is parsed. A model that is not in the
table has no price; nothing is guessed. Prices in the config (`providers.NAME.prices`) come first.
"""

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nanobot.usage.types import Tokens

log = logging.getLogger(__name__)

_FIELDS = {
    "input_cost_per_token": "input",
    "cache_read_input_token_cost": "cached",
    "cache_creation_input_token_cost": "written",
    "output_cost_per_token": "output",
    "output_cost_per_reasoning_token": "reasoning",
}
_LONG_CONTEXT_KEY = re.compile(rf"({'|'.join(_FIELDS)})_above_(\d+)k_tokens")
_CHAT_MODES = ("chat", "responses", "completion", None)
_DATE = r"[-@]\d{4}-?\d{2}-?\d{2}"


@dataclass(frozen=True, slots=True)
class Rates:
    """Dollars per token, for requests of more than `above` tokens."""

    above: int
    input: float
    cached: float
    written: float
    output: float
    reasoning: float


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a model. A long request may cost more per token, for all its tokens."""

    rates: tuple[Rates, ...]

    def cost(self, tokens: Tokens) -> float:
        rates = self._at(tokens.prompt)
        uncached = max(tokens.prompt - tokens.cached - tokens.cache_written, 0)
        visible = max(tokens.completion - tokens.reasoning, 0)
        return (
            uncached * rates.input
            + tokens.cached * rates.cached
            + tokens.cache_written * rates.written
            + visible * rates.output
            + tokens.reasoning * rates.reasoning
        )

    def max_cost(self, prompt_tokens: int, max_tokens: int) -> float:
        """Return the most a call may cost: nothing cached, and the longest reply."""
        rates = self._at(prompt_tokens)
        return prompt_tokens * max(rates.input, rates.written) + max_tokens * max(rates.output, rates.reasoning)

    def _at(self, prompt_tokens: int) -> Rates:
        return next((rates for rates in reversed(self.rates) if prompt_tokens > rates.above), self.rates[0])


def price_per_million(input_usd: float, output_usd: float, cached_usd: float | None = None) -> Price:
    """Build a price from dollars per million tokens."""
    cached_price = input_usd if cached_usd is None else cached_usd
    return Price((Rates(0, input_usd / 1e6, cached_price / 1e6, input_usd / 1e6, output_usd / 1e6, output_usd / 1e6),))


def matching_price(prices: Mapping[str, Price], model: str) -> Price | None:
    """Return the price for exactly this model name, else for the first matching pattern (`*` and `?`).

    The prefix of the model before a slash is optional.
    """
    names = list(_names(model, ()))
    exact = (prices[name] for name in names if name in prices)
    matching = (price for pattern, price in prices.items() if any(fnmatchcase(name, pattern) for name in names))
    return next(exact, None) or next(matching, None)


FREE = Price((Rates(0, 0.0, 0.0, 0.0, 0.0, 0.0),))
"""A local model, or one with a flat rate."""


def litellm_table() -> Path | None:
    """Return the path of LiteLLM's table; None if it is not installed."""
    spec = find_spec("litellm")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).with_name("model_prices_and_context_window_backup.json")


def find_price(model: str, *prefixes: str, table: Path | None = None) -> Price | None:
    """Return the price of a model; None if unknown. `prefixes`: names of its provider in the table, most likely first.

    Tries `prefix/model`, the full name, and the name without its prefixes; then the same without a date; then other
    spellings (`4.5` for `4-5`), and the newest known date. Never raises. Reads the table: some milliseconds.
    """
    try:
        table = table or litellm_table()
        text = table.read_text(encoding="utf-8") if table is not None else ""
    except (OSError, ValueError) as error:
        log.warning("Model prices cannot be read: %s", error)
        return None
    names = dict.fromkeys([*_names(model, prefixes), *_names(re.sub(f"{_DATE}$", "", model), prefixes)])
    prices = (_price_of(text, at) for at in _entries(text, names))
    return next((price for price in prices if price is not None), None)


def _entries(text: str, names: Iterable[str]) -> Iterator[int]:
    """Where the table may have the entry of a model with one of these names, the most likely place first."""
    for name in names:
        key = f"{json.dumps(name)}: {{"
        if (at := text.find(key)) >= 0:
            yield at + len(key) - 1
    plain_text = _plain(text)
    for name in names:
        entry = re.compile(rf'"{re.escape(_plain(name))}({_DATE})?": {{')
        matches = entry.finditer(plain_text) if name else ()
        for match in sorted(matches, key=lambda match: (match[1] is None, match[1] or ""), reverse=True):
            yield match.end() - 1


def _price_of(text: str, at: int) -> Price | None:
    """The price of the chat model whose entry begins here; None if it is none, or has no price."""
    try:
        entry, _ = json.JSONDecoder().raw_decode(text, at)
    except (ValueError, RecursionError):
        return None
    return _price_in(entry) if entry.get("mode") in _CHAT_MODES else None


def _names(model: str, prefixes: Sequence[str]) -> Iterator[str]:
    for prefix in prefixes:
        if prefix:
            yield f"{prefix}/{model}"
    rest = model
    while True:
        yield rest
        _, slash, rest = rest.partition("/")
        if not slash:
            return


def _plain(text: str) -> str:
    """In lower case and without dots, of the same length: the table is ASCII."""
    return text.lower().replace(".", "-")


def _price_in(entry: Mapping[str, Any]) -> Price | None:
    """The price in an entry. What the table leaves out costs as much as other input or output."""
    longer: dict[int, dict[str, float]] = {}
    for key, value in entry.items():
        if "_above_" in key and (match := _LONG_CONTEXT_KEY.fullmatch(key)) and _is_price(value):
            longer.setdefault(int(match[2]) * 1000, {})[_FIELDS[match[1]]] = value
    tiers = entry.get("tiered_pricing")
    for tier in tiers if isinstance(tiers, list) else ():
        span = tier.get("range") if isinstance(tier, dict) else None
        if isinstance(span, list) and span and isinstance(span[0], int | float):
            longer[int(span[0])] = _prices_by_name(tier)
    base = longer.pop(0, {}) | _prices_by_name(entry)  # the tier from 0 tokens is the base price
    if "input" not in base or "output" not in base:
        return None
    rates = []
    for above, more in sorted({0: {}, **longer}.items()):
        row = base | more
        cached, written = row.get("cached", row["input"]), row.get("written", row["input"])
        rates.append(Rates(above, row["input"], cached, written, row["output"], row.get("reasoning", row["output"])))
    return Price(tuple(rates))


def _prices_by_name(entry: Mapping[str, Any]) -> dict[str, float]:
    return {name: entry[field] for field, name in _FIELDS.items() if _is_price(entry.get(field))}


def _is_price(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
