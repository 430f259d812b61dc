"""Spending limits: `limits.dailyUsd`, `monthlyUsd` and `turnTokens`, enforced before each call, outside the model.

What was spent is the sum of the ledger, read before each call. A call reserves the most it may cost until it ends. It
is admitted while something is left, so a limit is exceeded by at most one call. If the calls in flight could use up the
rest, the next call waits for one of them.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, time, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from nanobot.errors import BudgetExceededError, StorageError
from nanobot.usage.ledger import By, Ledger, UsageSum, UsageSummary, sum_up
from nanobot.usage.types import format_dollars
from nanobot.utils.clock import Clock, zone_name

if TYPE_CHECKING:
    from sqlite3 import Connection

log = logging.getLogger(__name__)

WARN_SHARE = 0.8
"""Share of a limit at which the owner is warned."""
_NOTIFY_AFTER_S = 10.0


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


@dataclass(frozen=True, slots=True, eq=False)
class BudgetedCall:
    """A call about to be made, and the most it may use."""

    turn_id: str = ""
    prompt_tokens: int = 0
    max_tokens: int = 0
    max_usd: float | None = None
    """None if it does not count in dollars: no known price, or free."""
    notify: Callable[[str], None] | None = None
    """Notifies the person who waits for the call; None if nobody does."""
    turn_budget_usd: float | None = None
    """What the calls of its turn may cost together."""


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


Additions = dict[tuple[str, str], float]
"""Dollars added to limits, by config key and period."""


@dataclass(frozen=True, slots=True)
class _Spent:
    """What the ledger says: dollars of this month by day, and what one turn has used."""

    by_day: dict[str, float]
    turn_usd: float
    turn_tokens: int

    def of(self, cap: _Cap) -> float:
        return sum(usd for day, usd in self.by_day.items() if day.startswith(cap.period))


@dataclass(eq=False)
class Budget:
    """Enforces the limits for all sessions of a process. Warns the owner at 80 % and at the limit, once per period."""

    limits: SpendingLimits
    ledger: Ledger
    clock: Clock
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _call_ended: asyncio.Event = field(default_factory=asyncio.Event)
    _in_flight: list[BudgetedCall] = field(default_factory=list)
    _raised: Additions = field(default_factory=dict)
    _reported: dict[str, tuple[str, float, str]] = field(default_factory=dict)
    """The last notification by key: period, limit, level."""

    async def reserve(self, call: BudgetedCall) -> None:
        """Reserve the most a call may use; wait while calls in flight may use up the rest. `settle` must follow.

        Raises BudgetExceededError, which names the limit, the spending, the key to raise and when it resets; nothing is
        reserved then. Cancelling is safe. Returns at once if there are no limits.
        """
        if not self.limits.any and call.turn_budget_usd is None:
            self._in_flight.append(call)
            return
        has_notified = False
        while True:
            async with self._lock:
                call_ended, in_flight = self._call_ended, [*self._in_flight]  # a call that ends while we read counts
                spent = await self._read(call.turn_id)
                must_wait = self._must_wait(call, spent, in_flight)  # raises with a text of its own at the limit
                await self._notify(call, spent)
                if not must_wait:
                    self._in_flight.append(call)
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

        Return a line per raised limit; empty if none is near. Raises StorageError; it then holds in this process only.
        """
        async with self._lock:
            spent = await self._read()
            near = [cap for cap in self._caps() if spent.of(cap) >= WARN_SHARE * cap.limit]
            for cap in near:
                added = cap.limit / 2 if usd is None else usd
                self._raised[cap.key, cap.period] = self._raised.get((cap.key, cap.period), 0.0) + added
                await self.ledger.database.ask(partial(raise_limit, key=cap.key, period=cap.period, usd=added))
            self._wake_waiting()
            now = {cap.key: cap for cap in self._caps()}
            return [now[cap.key].raised_text(spent.of(cap)) for cap in near]

    def settle(self, call: BudgetedCall) -> None:
        """Drop a call's reservation. Its final row must be on its way to the ledger before anything else is awaited."""
        self._in_flight.remove(call)
        self._wake_waiting()

    def _wake_waiting(self) -> None:
        call_ended, self._call_ended = self._call_ended, asyncio.Event()
        call_ended.set()

    async def notify_limits(self, call: BudgetedCall) -> None:
        """Notify the waiting person of limits that are near or reached, once per period. Never raises."""
        if call.notify is not None and call.max_usd is not None and self.limits.in_dollars:
            await self._notify(call, await self._read())

    async def _notify(self, call: BudgetedCall, spent: _Spent) -> None:
        if call.notify is None or call.max_usd is None:
            return
        for cap in self._caps():
            usd = spent.of(cap)
            level = "stop" if usd >= cap.limit else "soon" if usd >= WARN_SHARE * cap.limit else ""
            if level and await self._is_first_report(cap, level):
                call.notify(cap.stop_text(usd) if level == "stop" else cap.warning_text(usd))

    def _must_wait(self, call: BudgetedCall, spent: _Spent, in_flight: list[BudgetedCall]) -> bool:
        """Raises BudgetExceededError if waiting would not help."""
        if call.turn_budget_usd is not None and spent.turn_usd >= call.turn_budget_usd:
            raise BudgetExceededError(
                f"The budget of this turn is used up: {format_dollars(spent.turn_usd)} of "
                f"{format_dollars(call.turn_budget_usd)} spent. Ask with a larger one."
            )
        must_wait = False
        reserved_usd = sum(other.max_usd or 0.0 for other in in_flight)
        for cap in self._caps() if call.max_usd is not None else ():
            usd = spent.of(cap)
            if usd >= cap.limit:
                raise BudgetExceededError(cap.stop_text(usd))
            must_wait = must_wait or usd + reserved_usd >= cap.limit
        limit, used = self.limits.turn_tokens, spent.turn_tokens
        if limit is not None and call.turn_id:
            if used + call.prompt_tokens > limit:
                raise BudgetExceededError(_turn_limit_text(used, call.prompt_tokens, limit))
            others = [other for other in in_flight if other.turn_id == call.turn_id]
            reserved = sum(other.prompt_tokens + other.max_tokens for other in others)
            must_wait = must_wait or used + reserved + call.prompt_tokens > limit
        return must_wait

    def _caps(self) -> list[_Cap]:
        return _caps(self.limits, self._raised, self.clock.now())

    async def limits_now(self) -> SpendingLimits:
        """Return the limits including what `/raise` added."""
        if self.limits.in_dollars:
            await self._read()
        return _as_raised(self.limits, self._raised, self.clock.now())

    async def _read(self, turn_id: str = "") -> _Spent:
        """What all processes spent this month, and what this turn has used. Own calls in flight are not part of it.

        Rows that the disk refuses count, so that limits hold within this process.
        """
        month = f"{self.clock.now():%Y-%m}"

        def select(db: "Connection") -> tuple[list[tuple[str, float, float, int]], Additions]:
            return db.execute(_SPENT, (turn_id, turn_id, month, self.ledger.process)).fetchall(), _read_additions(db)

        try:
            rows, self._raised = await self.ledger.database.ask(select, is_synced=False)
        except StorageError as error:
            log.warning("Past spending cannot be read, only this process counts: %s", error)
            rows = []
        for row in self.ledger.unwritten:
            if row.outcome != "unfinished":
                usd, tokens = row.usd or 0.0, row.prompt_tokens + row.completion_tokens
                rows.append((row.sent_at[:10], usd, *((usd, tokens) if row.turn == turn_id else (0.0, 0))))
        by_day: dict[str, float] = defaultdict(float)
        for day, usd, _, _ in rows:
            by_day[day] += usd
        return _Spent(by_day, sum(usd for *_, usd, _ in rows), sum(tokens for *_, tokens in rows))

    async def _is_first_report(self, cap: _Cap, level: str) -> bool:
        """Whether nobody was notified of this yet; records it. "stop" includes "soon"."""
        last = self._reported.get(cap.key, ("", 0.0, ""))
        if last[:2] == (cap.period, cap.limit) and last[2] in (level, "stop"):
            return False
        self._reported[cap.key] = (cap.period, cap.limit, level)  # before another task can ask
        values = (cap.key, cap.period, cap.limit, level)
        try:
            return await self.ledger.database.ask(lambda db: db.execute(_REPORT, values).rowcount > 0)
        except StorageError as error:
            log.warning("The notification about %s cannot be stored: %s", cap.key, error)
            return True


_SPENT = """
    SELECT substr(sent_at, 1, 10), TOTAL(usd), TOTAL(usd) FILTER (WHERE turn = ?),
        IFNULL(SUM(prompt_tokens + completion_tokens) FILTER (WHERE turn = ?), 0)
    FROM calls WHERE sent_at >= ? AND NOT (process = ? AND outcome = 'unfinished') GROUP BY 1
"""
_REPORT = """
    INSERT INTO limits (key, period, reported_usd, reported_level) VALUES (?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET reported_usd = excluded.reported_usd, reported_level = excluded.reported_level
    WHERE reported_usd IS NOT excluded.reported_usd OR reported_level NOT IN (excluded.reported_level, 'stop')
"""


def _as_raised(limits: SpendingLimits, raised: Additions, now: datetime) -> SpendingLimits:
    limit_of = {cap.key: cap.limit for cap in _caps(limits, raised, now)}
    return replace(limits, daily_usd=limit_of.get("limits.dailyUsd"), monthly_usd=limit_of.get("limits.monthlyUsd"))


def _caps(limits: SpendingLimits, raised: Additions, now: datetime) -> list[_Cap]:
    caps = []
    if (limit := limits.daily_usd) is not None:
        resets_at = _midnight(now + timedelta(days=1))
        caps.append(_Cap("limits.dailyUsd", "Today's", f"{now:%Y-%m-%d}", limit, resets_at))
    if (limit := limits.monthly_usd) is not None:
        resets_at = _midnight(now.replace(day=1) + timedelta(days=32)).replace(day=1)
        caps.append(_Cap("limits.monthlyUsd", "This month's", f"{now:%Y-%m}", limit, resets_at))
    return [replace(cap, limit=cap.limit + raised.get((cap.key, cap.period), 0.0)) for cap in caps]


def _read_additions(db: "Connection") -> Additions:
    return {(key, period): usd for key, period, usd in db.execute("SELECT key, period, raised_usd FROM limits")}


def raise_limit(db: "Connection", key: str, period: str, usd: float) -> None:
    """Add dollars to a limit until its period ends."""
    db.execute(
        "INSERT INTO limits (key, period, raised_usd) VALUES (?, ?, ?) "
        "ON CONFLICT DO UPDATE SET raised_usd = raised_usd + excluded.raised_usd",
        (key, period, usd),
    )


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


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Usage today, this month and in groups, with the limits as they were raised."""

    summary: UsageSummary
    limits: SpendingLimits
    by: By
    days: int

    def to_json(self) -> dict[str, Any]:
        """The report for programs; docs/guides/money.md documents the fields."""
        summary, limits = self.summary, self.limits

        def left(limit: float | None, used: UsageSum) -> float | None:
            return None if limit is None else max(limit - used.spent, 0.0)

        return {
            "today": summary.today.to_json(),
            "month": summary.month.to_json(),
            "limits": {
                "dailyUsd": limits.daily_usd,
                "monthlyUsd": limits.monthly_usd,
                "turnTokens": limits.turn_tokens,
                "leftTodayUsd": left(limits.daily_usd, summary.today),
                "leftThisMonthUsd": left(limits.monthly_usd, summary.month),
            },
            "by": self.by,
            "days": self.days,
            "rows": [{self.by: name, **total.to_json()} for name, total in summary.groups.items()],
        }


def usage_report(db: "Connection", limits: SpendingLimits, now: datetime, by: By, days: int) -> UsageReport:
    summary = sum_up(db, now, by=by, days=days)
    return UsageReport(summary, _as_raised(limits, _read_additions(db), now), by, days)
