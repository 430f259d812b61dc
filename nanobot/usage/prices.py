"""What models cost, according to the JSON table that LiteLLM ships. LiteLLM, which takes seconds, is not imported.

The table is large, so the needed part is copied to `state/prices.json` whenever it changes: for each model its context
window and the price per token, in dollars, of input, cache reads, cache writes, output and reasoning. A model that is
not in the table has no price; nothing is guessed. Prices in the config (`providers.NAME.prices`) come first.
"""

import json
import logging
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nanobot.usage.types import Tokens
from nanobot.utils.files import write_in_place

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
_DATE = re.compile(r"[-@]\d{4}-?\d{2}-?\d{2}$")
_COPY_VERSION = 2
"""Version of our copy; a change rebuilds it."""


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
    """The price of a model. A long request may cost more per token, for all its tokens. `window` is in tokens."""

    rates: tuple[Rates, ...]
    window: int | None = None

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


class PriceTable:
    """Prices by model name. `load` reads or creates the copy once; it is thread-safe."""

    def __init__(self, copy: Path | None = None, source: Path | None = None) -> None:
        """`copy`: path of our copy, None for none. `source`: the table, by default LiteLLM's."""
        self._copy = copy
        self._source = source
        self._lock = threading.Lock()
        self._rows: dict[str, Any] | None = None
        self._cache: dict[tuple[str, ...], Price | None] = {}

    @property
    def loaded(self) -> bool:
        """Whether `find` works without reading a file."""
        return self._rows is not None

    def load(self) -> None:
        """Read the table. Never raises: without a table no price is known."""
        with self._lock:
            if self._rows is None:
                self._rows = self._read()

    def find(self, model: str, *prefixes: str) -> Price | None:
        """Return the price of a model. `prefixes`: names of its provider in the table, most likely first.

        Tries `prefix/model`, the full name, and the name without its prefixes; then the same without a date, or with
        the newest known date; then other spellings (`4.5` for `4-5`).
        """
        key = (model, *prefixes)
        if key not in self._cache:
            self.load()
            rows = self._rows or {}
            names = [*_names(model, prefixes), *_names(_DATE.sub("", model), prefixes)]
            name = next((name for name in names if name in rows), None)
            if name is None:
                others = _other_names(tuple(rows))
                name = next((others[_plain(name)] for name in names if _plain(name) in others), None)
            price = None
            try:
                if name is not None:
                    price = Price(tuple(Rates(*rates) for rates in rows[name]["rates"]), rows[name]["window"])
            except (AttributeError, KeyError, TypeError, ValueError):  # the copy was edited
                log.warning("The price of %s in %s cannot be read", model, self._copy)
            self._cache[key] = price
        return self._cache[key]

    def _read(self) -> dict[str, Any]:
        try:
            if (source := self._source or litellm_table()) is None:
                return {}
            state = source.stat()
            made_of = (_COPY_VERSION, str(source), state.st_size, state.st_mtime_ns)
            if self._copy is not None:
                with suppress(OSError, ValueError, RecursionError, TypeError, KeyError):  # missing or edited
                    data = json.loads(self._copy.read_bytes())
                    if tuple(data["made_of"]) == made_of and isinstance(data["models"], dict):
                        return dict(data["models"])
            rows = _reduce_table(made_of)
            if self._copy is not None:
                with suppress(OSError):  # it is created again next time
                    write_in_place(self._copy, json.dumps({"made_of": made_of, "models": rows}, separators=(",", ":")))
            return rows
        except (OSError, ValueError, RecursionError) as error:
            log.warning("Model prices cannot be read: %s", error)
            return {}


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


@lru_cache(maxsize=1)
def _other_names(models: tuple[str, ...]) -> dict[str, str]:
    """Map other spellings to each model's name; without a date, to the newest one. Several bots may share a process."""
    names: dict[str, str] = {}
    for name in sorted(models):
        names[_plain(_DATE.sub("", name))] = name
    return names | {_plain(name): name for name in models}


def _plain(name: str) -> str:
    return name.lower().replace(".", "-")


@lru_cache(maxsize=1)
def _reduce_table(made_of: tuple[int, str, int, int]) -> dict[str, Any]:
    """The rows of chat models with a price; several bots may share a process."""

    def reduce(entry: dict[str, Any]) -> dict[str, Any] | None:
        """Reduce an entry while the table is being parsed: the whole of it would take 10 MB."""
        if "mode" not in entry:
            return entry
        return _reduce_entry(entry) if entry["mode"] in _CHAT_MODES else None

    table = json.loads(Path(made_of[1]).read_text(encoding="utf-8"), object_hook=reduce)
    entries = table.items() if isinstance(table, dict) else ()
    models = ((name, entry) for name, entry in entries if isinstance(entry, dict))
    rows = {name: entry if "rates" in entry else _reduce_entry(entry) for name, entry in models}
    return {name: row for name, row in rows.items() if row is not None}


def _reduce_entry(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """A row of the copy: the window, and the fields of each of the Rates. None without a price.

    What the table leaves out costs as much as other input or output.
    """
    longer: dict[int, dict[str, float]] = {}
    for key, value in entry.items():
        if "_above_" in key and (match := _LONG_CONTEXT_KEY.fullmatch(key)) and _is_price(value):
            longer.setdefault(int(match[2]) * 1000, {})[_FIELDS[match[1]]] = value
    tiers = entry.get("tiered_pricing")
    for tier in tiers if isinstance(tiers, list) else ():
        span = tier.get("range") if isinstance(tier, dict) else None
        if isinstance(span, list) and span and isinstance(span[0], int | float):
            longer[int(span[0])] = _prices_in(tier)
    base = longer.pop(0, {}) | _prices_in(entry)  # the tier from 0 tokens is the base price
    if "input" not in base or "output" not in base:
        return None
    rates = []
    for above, more in sorted({0: {}, **longer}.items()):
        row = base | more
        cached, written = row.get("cached", row["input"]), row.get("written", row["input"])
        rates.append([above, row["input"], cached, written, row["output"], row.get("reasoning", row["output"])])
    window = entry.get("max_input_tokens") or entry.get("max_tokens")
    return {"rates": rates, "window": window if isinstance(window, int) else None}


def _prices_in(entry: Mapping[str, Any]) -> dict[str, float]:
    return {name: entry[field] for field, name in _FIELDS.items() if _is_price(entry.get(field))}


def _is_price(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
