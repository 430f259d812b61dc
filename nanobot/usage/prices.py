"""What models cost, from the table that LiteLLM ships as JSON. LiteLLM itself, which takes seconds, is not imported.

The table is large, so what a call needs of it is kept as `state/prices.json`, made anew when the table changes: a model
to its input, cached, written (to a cache), output and reasoning price of a token in dollars, and its window. A model
that is not in the table has no price; nothing is guessed.
"""

import json
import logging
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
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
_LONG = re.compile(rf"({'|'.join(_FIELDS)})_above_(\d+)k_tokens")
_TALKS = ("chat", "responses", "completion", None)
_DATE = re.compile(r"[-@]\d{4}-?\d{2}-?\d{2}$")
_SHAPE = 1
"""Of our copy; another number makes everybody make it anew."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Dollars a token, for requests above so many tokens."""

    above: int
    input: float
    cached: float
    written: float
    output: float
    reasoning: float


@dataclass(frozen=True, slots=True)
class Price:
    """What a model costs; a long request may cost more a token, all of it. `window` is what the model can read."""

    rates: tuple[Rates, ...]
    window: int | None = None

    def cost(self, tokens: Tokens) -> float:
        """What a call cost."""
        rates = self._at(tokens.prompt)
        fresh = max(tokens.prompt - tokens.cached - tokens.cache_written, 0)
        spoken = max(tokens.completion - tokens.reasoning, 0)
        return (
            fresh * rates.input
            + tokens.cached * rates.cached
            + tokens.cache_written * rates.written
            + spoken * rates.output
            + tokens.reasoning * rates.reasoning
        )

    def most(self, prompt_tokens: int, max_tokens: int) -> float:
        """The most that a call may cost: nothing of it cached, the answer as long as it may be."""
        rates = self._at(prompt_tokens)
        return prompt_tokens * max(rates.input, rates.written) + max_tokens * max(rates.output, rates.reasoning)

    def _at(self, prompt_tokens: int) -> Rates:
        return next((rates for rates in reversed(self.rates) if prompt_tokens > rates.above), self.rates[0])


FREE = Price((Rates(0, 0.0, 0.0, 0.0, 0.0, 0.0),))
"""A model on a machine of one's own, or one that is paid for by the month."""


def litellm_table() -> Path | None:
    """Where LiteLLM keeps its table; None where it is not installed."""
    spec = find_spec("litellm")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).with_name("model_prices_and_context_window_backup.json")


class PriceTable:
    """Prices by the names of models. `load` reads or makes the copy, once, and may be called from any thread."""

    def __init__(self, copy: Path | None = None, source: Path | None = None) -> None:
        """`copy`: where ours is kept; None keeps none. `source`: LiteLLM's own table where none is given."""
        self._copy = copy
        self._source = source
        self._lock = threading.Lock()
        self._rows: dict[str, Any] | None = None
        self._other_names: dict[str, str] | None = None
        self._found: dict[tuple[str, ...], Price | None] = {}

    @property
    def loaded(self) -> bool:
        """Whether `find` will answer without reading a file."""
        return self._rows is not None

    def load(self) -> None:
        """Read the table. Never raises: without one no price is known."""
        with self._lock:
            if self._rows is None:
                self._rows = self._read()

    def find(self, model: str, *prefixes: str) -> Price | None:
        """The price of a model. `prefixes` are the names its provider goes by in the table, the likeliest first.

        Tried are `prefix/model`, the name as it is, and what is left without its own prefixes; then the same without
        a date at the end, or with the newest date there is; then as others spell it (`4.5` for `4-5`).
        """
        key = (model, *prefixes)
        if key not in self._found:
            self.load()
            try:
                self._found[key] = self._find(key)
            except (AttributeError, KeyError, TypeError, ValueError):  # somebody wrote into our copy
                log.warning("The price of %s in %s cannot be read", model, self._copy)
                self._found[key] = None
        return self._found[key]

    def _find(self, key: tuple[str, ...]) -> Price | None:
        model, *prefixes = key
        rows = self._rows or {}
        names = [*_names(model, prefixes), *_names(_DATE.sub("", model), prefixes)]
        for name in names:
            if name in rows:
                return _price(rows[name])
        if self._other_names is None:
            self._other_names = _other_names(rows)
        for name in names:
            if (other := self._other_names.get(_plain(name))) is not None:
                return _price(rows[other])
        return None

    def _read(self) -> dict[str, Any]:
        try:
            source = self._source or litellm_table()
            if source is None:
                return {}
            state = source.stat()
            made_of = [_SHAPE, str(source), state.st_size, state.st_mtime_ns]
            rows = self._read_copy(made_of)
            if rows is None:
                rows, copied = _made_of(source, *made_of[2:])
                self._write_copy(copied)
            return rows
        except (OSError, ValueError, RecursionError) as error:
            log.warning("No prices of models are known: %s", error)
            return {}

    def _read_copy(self, made_of: list[Any]) -> dict[str, Any] | None:
        if self._copy is None:
            return None
        try:
            data = json.loads(self._copy.read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(data, dict) or data.get("made_of") != made_of or not isinstance(data.get("models"), dict):
            return None
        rows: dict[str, Any] = data["models"]
        return rows

    def _write_copy(self, text: str) -> None:
        if self._copy is None:
            return
        with suppress(OSError):  # it is made again next time
            write_in_place(self._copy, text)


def _names(model: str, prefixes: list[str]) -> Iterator[str]:
    for prefix in prefixes:
        if prefix:
            yield f"{prefix}/{model}"
    rest = model
    while True:
        yield rest
        _, slash, rest = rest.partition("/")
        if not slash:
            return


def _other_names(rows: Mapping[str, Any]) -> dict[str, str]:
    """Each model's name as others may spell it, and without its date, the newest of several."""
    others: dict[str, str] = {}
    for name in sorted(rows):
        others[_plain(_DATE.sub("", name))] = name
    return others | {_plain(name): name for name in rows}


def _plain(name: str) -> str:
    return name.lower().replace(".", "-")


@lru_cache(maxsize=1)
def _made_of(source: Path, size: int, changed_ns: int) -> tuple[dict[str, Any], str]:
    """What we keep of a table, and the text of its copy; made once in a process, whatever number of bots live in it."""
    rows = _slim(json.loads(source.read_bytes()))
    made_of = [_SHAPE, str(source), size, changed_ns]
    return rows, json.dumps({"made_of": made_of, "models": rows}, separators=(",", ":"))


def _slim(table: Any) -> dict[str, Any]:
    """What a call needs to know of each model that one can talk with and whose price the table has."""
    rows = {}
    for name, entry in table.items() if isinstance(table, dict) else ():
        if isinstance(entry, dict) and entry.get("mode") in _TALKS and (row := _slim_row(entry)) is not None:
            rows[name] = row
    return rows


def _slim_row(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    longer: dict[int, dict[str, float]] = {}
    row: dict[str, Any] = _rates(entry)
    for key, value in entry.items():
        if (found := _LONG.fullmatch(key)) and _is_price(value):
            longer.setdefault(int(found[2]) * 1000, {})[_FIELDS[found[1]]] = value
    tiers = entry.get("tiered_pricing")
    for tier in tiers if isinstance(tiers, list) else ():
        span = tier.get("range") if isinstance(tier, dict) else None
        if isinstance(span, list) and span and isinstance(span[0], int | float):
            longer[int(span[0])] = _rates(tier)
    row = longer.pop(0, {}) | row  # the tier of short requests is the price
    if "input" not in row or "output" not in row:
        return None
    if longer:
        row["longer"] = {str(above): longer[above] for above in sorted(longer)}
    window = entry.get("max_input_tokens") or entry.get("max_tokens")
    if isinstance(window, int):
        row["window"] = window
    return row


def _rates(entry: Mapping[str, Any]) -> dict[str, float]:
    return {ours: entry[theirs] for theirs, ours in _FIELDS.items() if _is_price(entry.get(theirs))}


def _is_price(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _price(row: dict[str, Any]) -> Price:
    longer = sorted((int(above), more) for above, more in row.get("longer", {}).items())
    return Price(tuple(_filled(above, row | more) for above, more in [(0, {}), *longer]), row.get("window"))


def _filled(above: int, row: Mapping[str, float]) -> Rates:
    """What the table does not tell costs what any input or output does."""
    into, out = row["input"], row["output"]
    return Rates(above, into, row.get("cached", into), row.get("written", into), out, row.get("reasoning", out))
