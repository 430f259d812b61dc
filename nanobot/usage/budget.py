"""Spending limits: `limits.dailyUsd`, `monthlyUsd` and `turnTokens`, enforced before each call, outside the model.

A call reserves the most it may cost, and returns what it did not use. It is admitted while something is left, so a
limit is exceeded by at most one call. If the calls in flight could use up the rest, the next call waits for one of
them. Past spending is read from the ledger once; what other processes append is read before each call. If the disk
fails, limits still hold within this process.
"""

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Any

from nanobot.errors import BudgetExceededError
from nanobot.usage.ledger import Ledger
from nanobot.usage.sums import Days
from nanobot.usage.types import format_dollars
from nanobot.utils.bounded_dict import put_bounded
from nanobot.utils.clock import Clock, zone_name
from nanobot.utils.files import write_in_place

log = logging.getLogger(__name__)

WARN_SHARE = 0.8
"""Share of a limit at which the owner is warned."""
_NOTIFY_AFTER_S = 10.0
_MAX_TURNS = 1000
"""Turns remembered; older ones have ended."""


@dataclass(frozen=True, slots=True)
class SpendingLimits:
    """Limits by their config keys; None means no limit."""

    daily_usd: float | None = None
    monthly_usd: float | None = None
    turn_tokens: int | None = None
    unknown_price: bool = False
    """Whether models without a known price may be called under a limit in dollars; they do not count towards it."""

    @property
    def in_dollars(self) -> bool:
        """Whether there is a limit in dollars, so that prices matter."""
        return self.daily_usd is not None or self.monthly_usd is not None

    @property
    def any(self) -> bool:
        """Whether there is any limit."""
        return self.in_dollars or self.turn_tokens is not None

    def left(self, today: float, month: float) -> list[str]:
        """Describe what is left, one line per limit; `today` and `month` are dollars spent."""
        lines = []
        for name, limit, spent in (("today", self.daily_usd, today), ("this month", self.monthly_usd, month)):
            if limit is not None:
                lines.append(f"Left {name}: {format_dollars(max(limit - spent, 0.0))} of {format_dollars(limit)}")
        if self.turn_tokens is not None:
            lines.append(f"A turn may use {self.turn_tokens:,} tokens")
        return lines


@dataclass(frozen=True, slots=True)
class BudgetedCall:
    """A call about to be made, and the most it may use."""

    turn_id: str = ""
    prompt_tokens: int = 0
    max_tokens: int = 0
    max_usd: float | None = None
    """None if it does not count in dollars: no known price, or free."""
    notify: Callable[[str], None] | None = None
    """Notifies the person who waits for the call; None if nobody does."""


@dataclass(frozen=True, slots=True)
class _Cap:
    """A limit in dollars with its current period."""

    key: str
    title: str
    period: str
    limit: float
    resets_at: datetime

    def stop_text(self, spent: float) -> str:
        until = f"{self.resets_at:%Y-%m-%d %H:%M} ({zone_name(self.resets_at)})"
        return (
            f"{self.title} limit is reached: {format_dollars(spent)} of {format_dollars(self.limit)} spent. "
            f"No paid model is called until {until}. To continue now, send `/raise` (owner only), or raise "
            f"{self.key} in the config."
        )

    def raised_text(self, spent: float) -> str:
        return f"{self.title} limit is {format_dollars(self.limit)} now; {format_dollars(spent)} of it is spent."

    def warning_text(self, spent: float) -> str:
        share = spent / self.limit
        return f"{share:.0%} of {self.title[0].lower()}{self.title[1:]} limit is spent: " + (
            f"{format_dollars(spent)} of {format_dollars(self.limit)} ({self.key} in the config)."
        )


class Budget:
    """Enforces the limits for all sessions of a process. Warns the owner at 80 % and at the limit, once per period."""

    def __init__(self, limits: SpendingLimits, ledger: Ledger, clock: Clock) -> None:
        self.limits = limits
        self._ledger = ledger
        self._clock = clock
        self._reader = ledger.reader()
        self._lock = asyncio.Lock()
        self._call_ended = asyncio.Event()
        self._has_read = False
        self._own: dict[str, float] = defaultdict(float)
        self._others: dict[str, float] = defaultdict(float)
        self._in_flight = 0
        self._reserved_usd = 0.0
        self._reserved_tokens: dict[str, int] = defaultdict(int)
        self._turns: dict[str, int] = {}
        self._reported = _ReportedLimits(ledger.folder / "reported.json")
        self._overrides = LimitOverrides(ledger.folder / "raised.json")

    async def reserve(self, call: BudgetedCall) -> None:
        """Reserve the most a call may use; wait while calls in flight may use up the rest. `settle` must follow.

        Raises BudgetExceededError, which names the limit, the spending, the key to raise and when it resets; nothing is
        reserved then. Cancelling is safe. Returns at once if there are no limits.
        """
        if not self.limits.any:
            self._hold(call)
            return
        has_notified = False
        while True:
            async with self._lock:
                await self._read_others()
                call_ended = self._call_ended
                must_wait = self._must_wait(call)  # raises with a text of its own if the limit is reached
                await self.notify_limits(call)
                if not must_wait:
                    self._hold(call)
                    return
            try:
                async with asyncio.timeout(None if has_notified else _NOTIFY_AFTER_S):
                    await call_ended.wait()
            except TimeoutError:
                has_notified = True
                if call.notify is not None:
                    call.notify("Waiting for other calls to end: they may use up the rest of the limits in the config.")

    async def raise_by(self, usd: float | None = None) -> list[str]:
        """Raise each dollar limit that is near or reached, for its period: by `usd`, else by half of the limit.

        Return a line per raised limit; empty if none is near. Raises OSError.
        """
        async with self._lock:
            await self._read_others()
            near = [cap for cap in self._caps() if self._spent(cap) >= WARN_SHARE * cap.limit]
            for cap in near:
                await asyncio.to_thread(self._overrides.add, cap.key, cap.period, cap.limit / 2 if usd is None else usd)
            call_ended, self._call_ended = self._call_ended, asyncio.Event()
            call_ended.set()
            now = {cap.key: cap for cap in self._caps()}
            return [now[cap.key].raised_text(self._spent(cap)) for cap in near]

    def settle(self, call: BudgetedCall, when: str, usd: float | None, tokens: int) -> None:
        """Replace a call's reservation by what it used. `when`: its start (ISO).

        Also without limits, which may be set or removed while the call is in flight.
        """
        self._own[self._day_of()(when)] += usd or 0.0
        self._in_flight -= 1
        # Exactly 0 without calls in flight: float sums leave residues, and a call might wait for one.
        self._reserved_usd = self._reserved_usd - (call.max_usd or 0.0) if self._in_flight else 0.0
        left = self._reserved_tokens[call.turn_id] - call.prompt_tokens - call.max_tokens
        self._reserved_tokens[call.turn_id] = left
        if left <= 0:
            del self._reserved_tokens[call.turn_id]
        self._count_turn(call.turn_id, tokens)
        call_ended, self._call_ended = self._call_ended, asyncio.Event()
        call_ended.set()

    async def notify_limits(self, call: BudgetedCall) -> None:
        """Notify the waiting person of limits that are near or reached, once per period. Never raises."""
        if call.notify is None or call.max_usd is None:
            return
        for cap in self._caps():
            spent = self._spent(cap)
            level = "stop" if spent >= cap.limit else "soon" if spent >= WARN_SHARE * cap.limit else ""
            if level and await self._reported.is_first(cap.key, cap.period, cap.limit, level):
                call.notify(cap.stop_text(spent) if level == "stop" else cap.warning_text(spent))

    def _hold(self, call: BudgetedCall) -> None:
        self._in_flight += 1
        self._reserved_usd += call.max_usd or 0.0
        self._reserved_tokens[call.turn_id] += call.prompt_tokens + call.max_tokens

    def _must_wait(self, call: BudgetedCall) -> bool:
        """Raises BudgetExceededError if waiting would not help."""
        must_wait = False
        for cap in self._caps() if call.max_usd is not None else ():
            spent = self._spent(cap)
            if spent >= cap.limit:
                raise BudgetExceededError(cap.stop_text(spent))
            must_wait = must_wait or spent + self._reserved_usd >= cap.limit
        limit, turn = self.limits.turn_tokens, call.turn_id
        if limit is not None and turn:
            used = self._turns.get(turn, 0)
            if used + call.prompt_tokens > limit:
                raise BudgetExceededError(_turn_limit_text(used, call.prompt_tokens, limit))
            must_wait = must_wait or used + self._reserved_tokens.get(turn, 0) + call.prompt_tokens > limit
        return must_wait

    def _count_turn(self, turn_id: str, tokens: int) -> None:
        put_bounded(self._turns, turn_id, self._turns.get(turn_id, 0) + tokens, _MAX_TURNS)

    def _spent(self, cap: _Cap) -> float:
        return sum(usd for days in (self._own, self._others) for day, usd in days.items() if day.startswith(cap.period))

    def _caps(self) -> list[_Cap]:
        now = self._clock.now()
        caps = []
        if (limit := self.limits.daily_usd) is not None:
            resets_at = _midnight(now + timedelta(days=1))
            caps.append(_Cap("limits.dailyUsd", "Today's", f"{now:%Y-%m-%d}", limit, resets_at))
        if (limit := self.limits.monthly_usd) is not None:
            resets_at = _midnight(now.replace(day=1) + timedelta(days=32)).replace(day=1)
            caps.append(_Cap("limits.monthlyUsd", "This month's", f"{now:%Y-%m}", limit, resets_at))
        return [replace(cap, limit=cap.limit + self._overrides.of(cap.key, cap.period)) for cap in caps]

    async def limits_now(self) -> SpendingLimits:
        """Return the limits including what `/raise` added."""
        return await asyncio.to_thread(self.limits_as_raised)

    def limits_as_raised(self) -> SpendingLimits:
        """Like `limits_now`, without an event loop. Blocks briefly."""
        self._overrides.refresh()
        now = {cap.key: cap.limit for cap in self._caps()}
        daily, monthly = now.get("limits.dailyUsd"), now.get("limits.monthlyUsd")
        return replace(self.limits, daily_usd=daily, monthly_usd=monthly)

    def _day_of(self) -> Days:
        return Days(self._clock.now().tzinfo)

    async def _read_others(self) -> None:
        """Read what other processes spent; the first time also earlier spending, including interrupted turns."""
        if self._has_read and not self.limits.in_dollars:
            return  # a turn belongs to one process
        try:
            is_replaced, spent, turns = await asyncio.to_thread(self._read)
        except OSError as error:
            log.warning("Past spending cannot be read, only this process counts: %s", error)
            is_replaced, spent, turns = False, {}, {}
        if is_replaced:
            self._others.clear()
        for day, usd in spent.items():
            self._others[day] += usd
        for turn_id, tokens in turns.items() if not self._has_read else ():
            self._count_turn(turn_id, tokens)
        self._has_read = True

    def _read(self) -> tuple[bool, dict[str, float], dict[str, int]]:
        """Read new rows of other processes: whether the ledger was replaced, dollars by day, tokens by turn."""
        self._overrides.refresh()
        if is_replaced := self._reader.was_replaced():
            self._reader = self._ledger.reader()
        spent: dict[str, float] = defaultdict(float)
        turns: dict[str, int] = defaultdict(int)
        day_of = self._day_of()
        for row in self._reader.rows(self._clock.now().date().replace(day=1)):
            if row["process"] != self._ledger.process:
                spent[day_of(row["when"])] += row["usd"] or 0.0
                turns[row["turn"]] += row["prompt_tokens"] + row["completion_tokens"]
        return is_replaced, spent, turns


def _midnight(moment: datetime) -> datetime:
    return datetime.combine(moment.date(), time(), moment.tzinfo)


def _turn_limit_text(used: int, more: int, limit: int) -> str:
    if not used:
        return (
            f"A turn may use {limit:,} tokens, and sending this message alone takes about {more:,}. "
            "Raise limits.turnTokens in the config, or start a new conversation with `/new`."
        )
    return (
        f"This turn has used {used:,} of {limit:,} tokens (limits.turnTokens), and the next call would send about "
        f"{more:,} more. "
        "The next message has the full limit again; to let a turn continue, raise limits.turnTokens in the config."
    )


class _ReportedLimits:
    """Which limits the owner was notified of, stored so that it happens once per period and limit."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, list[Any]] = {}

    async def is_first(self, key: str, period: str, limit: float, level: str) -> bool:
        """Whether this is the first notification; records it."""
        entry = [period, limit, level]
        if self._is_old(self._known.get(key), entry):
            return False
        self._known[key] = entry  # before another task can ask
        return await asyncio.to_thread(self._note, key, entry)

    def _note(self, key: str, entry: list[Any]) -> bool:
        entries = self._load()
        if self._is_old(entries.get(key), entry):
            return False
        try:
            write_in_place(self._path, json.dumps(entries | {key: entry}) + "\n")
        except OSError as error:
            log.warning("The notification about %s cannot be stored: %s", key, error)
        return True

    def _load(self) -> dict[str, Any]:
        try:
            entries = json.loads(self._path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return entries if isinstance(entries, dict) else {}

    @staticmethod
    def _is_old(previous: Any, entry: list[Any]) -> bool:
        """Whether an equal or stronger notification was sent: "stop" includes "soon"."""
        return isinstance(previous, list) and previous[:2] == entry[:2] and previous[2:] in (entry[2:], ["stop"])


class LimitOverrides:
    """Dollars added to the limits, in a small file shared by all processes of a data folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._known: dict[str, tuple[str, float]] = {}

    def of(self, key: str, period: str) -> float:
        """Return what was added to a limit in this period, as of the last `refresh`."""
        addition = self._known.get(key)
        return addition[1] if addition is not None and addition[0] == period else 0.0

    def add(self, key: str, period: str, usd: float) -> None:
        """Add dollars until the period ends. Blocks. Raises OSError; it then holds in this process only."""
        self.refresh()
        self._known[key] = (period, self.of(key, period) + usd)
        data = {name: [*entry] for name, entry in self._known.items()}
        write_in_place(self._path, json.dumps(data) + "\n")
        self._stamp = None

    def refresh(self) -> None:
        """Read what other processes added. Blocks briefly, never raises."""
        try:
            status = self._path.stat()
            if (stamp := (status.st_mtime_ns, status.st_size)) == self._stamp:
                return
            data = json.loads(self._path.read_bytes())
            self._known = {str(key): (str(period), float(usd)) for key, (period, usd) in data.items()}
            self._stamp = stamp
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, AttributeError) as error:
            log.warning("Raised limits cannot be read: %s", error)
