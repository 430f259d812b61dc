"""What may be spent: `limits.dailyUsd`, `monthlyUsd` and `turnTokens`, held before each call, outside the model.

A call sets aside the most it may cost before it is made, and gives back what it did not use. It is let through while
something is left, so that what is spent passes a limit by one call at most; while the calls under way could use up what
is left, the next one waits for one of them to end. What was spent is read from the ledger once, then kept in memory;
what other processes append is read before each call. A disk that refuses changes nothing of that within the process.
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
from nanobot.usage.raised import Raised
from nanobot.usage.sums import Days
from nanobot.usage.types import dollars
from nanobot.utils.clock import Clock, zone_name
from nanobot.utils.files import write_in_place
from nanobot.utils.newest import put_newest

log = logging.getLogger(__name__)

SOON = 0.8
"""The share of a limit at which the owner is told that it comes near."""
_SILENCE_S = 10.0
_TURNS = 1000
"""How many turns are remembered; one that is older has ended."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be spent; None means no limit. Each is named after its key in the config."""

    daily_usd: float | None = None
    monthly_usd: float | None = None
    turn_tokens: int | None = None

    @property
    def in_dollars(self) -> bool:
        """Whether prices matter."""
        return self.daily_usd is not None or self.monthly_usd is not None

    @property
    def any(self) -> bool:
        """Whether there is anything to hold."""
        return self.in_dollars or self.turn_tokens is not None

    def left(self, today: float, month: float) -> list[str]:
        """What may still be spent, a sentence a limit; `today` and `month` are the dollars that were."""
        lines = []
        for name, limit, spent in (("today", self.daily_usd, today), ("this month", self.monthly_usd, month)):
            if limit is not None:
                lines.append(f"Left {name}: {dollars(max(limit - spent, 0.0))} of {dollars(limit)}")
        if self.turn_tokens is not None:
            lines.append(f"A turn may use {self.turn_tokens:,} tokens")
        return lines


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call about to be made, and the most it may use."""

    turn_id: str = ""
    prompt_tokens: int = 0
    max_tokens: int = 0
    most_usd: float | None = None
    """None where it does not count in dollars: no price is known, or it costs nothing."""
    notify: Callable[[str], None] | None = None
    """Tells the person who waits for it; None where nobody does."""


@dataclass(frozen=True, slots=True)
class _Cap:
    """A limit in dollars and the period it holds for, as of now."""

    key: str
    words: str
    period: str
    limit: float
    free_at: datetime

    def stop(self, spent: float) -> str:
        until = f"{self.free_at:%Y-%m-%d %H:%M} ({zone_name(self.free_at)})"
        return (
            f"{self.words} limit is reached: {dollars(spent)} of {dollars(self.limit)} spent. "
            f"No model that costs money is asked until {until}. To go on now, send `/raise` (owner only), or raise "
            f"{self.key} in the config."
        )

    def raised(self, spent: float) -> str:
        return f"{self.words} limit is {dollars(self.limit)} now; {dollars(spent)} of it is spent."

    def soon(self, spent: float) -> str:
        share = spent / self.limit
        return f"{share:.0%} of {self.words[0].lower()}{self.words[1:]} limit is spent: " + (
            f"{dollars(spent)} of {dollars(self.limit)} ({self.key} in the config)."
        )


class Budget:
    """Holds the limits for all sessions of a process, and tells the owner at 80 % and at the stop, once a period."""

    def __init__(self, limits: Limits, ledger: Ledger, clock: Clock) -> None:
        self.limits = limits
        self._ledger = ledger
        self._clock = clock
        self._reader = ledger.reader()
        self._gate = asyncio.Lock()
        self._ended = asyncio.Event()
        self._begun = False
        self._own: dict[str, float] = defaultdict(float)
        self._others: dict[str, float] = defaultdict(float)
        self._under_way = 0
        self._aside_usd = 0.0
        self._aside_tokens: dict[str, int] = defaultdict(int)
        self._turns: dict[str, int] = {}
        self._told = _Told(ledger.folder / "told.json")
        self._raised = Raised(ledger.folder / "raised.json")

    async def reserve(self, call: PlannedCall) -> None:
        """Set aside what the call may use; waits where calls under way may use up what is left. `settle` must follow.

        Raises BudgetExceededError, which says which limit, what is spent, which key to raise and when it is free again;
        then nothing is set aside. Cancelling is safe. Without limits it returns at once.
        """
        if not self.limits.any:
            return
        told_of_wait = False
        while True:
            async with self._gate:
                await self._read_others()
                ended = self._ended
                must_wait = self._must_wait(call)  # a refusal tells all by itself
                await self.tell(call)
                if not must_wait:
                    self._under_way += 1
                    self._aside_usd += call.most_usd or 0.0
                    self._aside_tokens[call.turn_id] += call.prompt_tokens + call.max_tokens
                    return
            try:
                async with asyncio.timeout(None if told_of_wait else _SILENCE_S):
                    await ended.wait()
            except TimeoutError:
                told_of_wait = True
                if call.notify is not None:
                    call.notify("Waiting for other calls to end: they may use up what limits in the config leaves.")

    async def raise_by(self, usd: float | None = None) -> list[str]:
        """Add so much to each limit in dollars that comes near or is reached, half of it where no sum is said.

        What holds then, a line a limit; empty where none is near. It is gone with the period. Raises OSError.
        """
        async with self._gate:
            await self._read_others()
            near = [cap for cap in self._caps() if self._spent(cap) >= SOON * cap.limit]
            for cap in near:
                await asyncio.to_thread(self._raised.add, cap.key, cap.period, cap.limit / 2 if usd is None else usd)
            ended, self._ended = self._ended, asyncio.Event()
            ended.set()
            now = {cap.key: cap for cap in self._caps()}
            return [now[cap.key].raised(self._spent(cap)) for cap in near]

    def settle(self, call: PlannedCall, when: str, usd: float | None, tokens: int) -> None:
        """The call has ended, begun at `when` (ISO); what it used is counted instead of what was set aside."""
        if not self.limits.any:
            return
        self._own[self._day_of()(when)] += usd or 0.0
        self._under_way -= 1
        # Exactly nothing when nobody is under way: sums of floats leave crumbs, and somebody might wait for a crumb.
        self._aside_usd = self._aside_usd - (call.most_usd or 0.0) if self._under_way else 0.0
        left = self._aside_tokens[call.turn_id] - call.prompt_tokens - call.max_tokens
        self._aside_tokens[call.turn_id] = left
        if left <= 0:
            del self._aside_tokens[call.turn_id]
        self._count_turn(call.turn_id, tokens)
        ended, self._ended = self._ended, asyncio.Event()
        ended.set()

    async def tell(self, call: PlannedCall) -> None:
        """Tell who waits for the call what is new about the limits; where nobody does it stays news. Never raises."""
        if call.notify is None or call.most_usd is None:
            return
        for cap in self._caps():
            spent = self._spent(cap)
            level = "stop" if spent >= cap.limit else "soon" if spent >= SOON * cap.limit else ""
            if level and await self._told.is_first(cap.key, cap.period, cap.limit, level):
                call.notify(cap.stop(spent) if level == "stop" else cap.soon(spent))

    def _must_wait(self, call: PlannedCall) -> bool:
        """Raises BudgetExceededError where waiting would not help."""
        wait = False
        for cap in self._caps() if call.most_usd is not None else ():
            spent = self._spent(cap)
            if spent >= cap.limit:
                raise BudgetExceededError(cap.stop(spent))
            wait = wait or spent + self._aside_usd >= cap.limit
        limit, turn = self.limits.turn_tokens, call.turn_id
        if limit is not None and turn:
            used = self._turns.get(turn, 0)
            if used + call.prompt_tokens > limit:
                raise BudgetExceededError(_turn_is_over(used, call.prompt_tokens, limit))
            wait = wait or used + self._aside_tokens.get(turn, 0) + call.prompt_tokens > limit
        return wait

    def _count_turn(self, turn_id: str, tokens: int) -> None:
        put_newest(self._turns, turn_id, self._turns.get(turn_id, 0) + tokens, _TURNS)

    def _spent(self, cap: _Cap) -> float:
        return sum(usd for days in (self._own, self._others) for day, usd in days.items() if day.startswith(cap.period))

    def _caps(self) -> list[_Cap]:
        now = self._clock.now()
        caps = []
        if (limit := self.limits.daily_usd) is not None:
            free_at = _midnight(now + timedelta(days=1))
            caps.append(_Cap("limits.dailyUsd", "Today's", f"{now:%Y-%m-%d}", limit, free_at))
        if (limit := self.limits.monthly_usd) is not None:
            free_at = _midnight(now.replace(day=1) + timedelta(days=32)).replace(day=1)
            caps.append(_Cap("limits.monthlyUsd", "This month's", f"{now:%Y-%m}", limit, free_at))
        return [replace(cap, limit=cap.limit + self._raised.of(cap.key, cap.period)) for cap in caps]

    async def limits_now(self) -> Limits:
        """The limits with what was added to them."""
        return await asyncio.to_thread(self.limits_as_raised)

    def limits_as_raised(self) -> Limits:
        """The same, for who has no event loop. Blocks for a moment."""
        self._raised.look()
        now = {cap.key: cap.limit for cap in self._caps()}
        daily, monthly = now.get("limits.dailyUsd"), now.get("limits.monthlyUsd")
        return replace(self.limits, daily_usd=daily, monthly_usd=monthly)

    def _day_of(self) -> Days:
        return Days(self._clock.now().tzinfo)

    async def _read_others(self) -> None:
        """What others spent meanwhile; at first also what was spent before, by turns that a crash cut short too."""
        if self._begun and not self.limits.in_dollars:
            return  # a turn belongs to one process
        try:
            anew, spent, turns = await asyncio.to_thread(self._read)
        except OSError as error:
            log.warning("What was spent before cannot be read, only this process counts: %s", error)
            anew, spent, turns = False, {}, {}
        if anew:
            self._others.clear()
        for day, usd in spent.items():
            self._others[day] += usd
        for turn_id, tokens in turns.items() if not self._begun else ():
            self._count_turn(turn_id, tokens)
        self._begun = True

    def _read(self) -> tuple[bool, dict[str, float], dict[str, int]]:
        """Whether the ledger begins anew; dollars by day and tokens by turn, of the rows that are new and not ours."""
        self._raised.look()
        if anew := self._reader.outlived():
            self._reader = self._ledger.reader()
        spent: dict[str, float] = defaultdict(float)
        turns: dict[str, int] = defaultdict(int)
        day_of = self._day_of()
        for row in self._reader.rows(self._clock.now().date().replace(day=1)):
            if row["process"] != self._ledger.process:
                spent[day_of(row["when"])] += row["usd"] or 0.0
                turns[row["turn"]] += row["prompt_tokens"] + row["completion_tokens"]
        return anew, spent, turns


def _midnight(moment: datetime) -> datetime:
    return datetime.combine(moment.date(), time(), moment.tzinfo)


def _turn_is_over(used: int, more: int, limit: int) -> str:
    if not used:
        return (
            f"A turn may use {limit:,} tokens, and to send this message alone takes about {more:,}. "
            "Raise limits.turnTokens in the config, or begin afresh with `/new`."
        )
    return (
        f"This turn has used {used:,} tokens of the {limit:,} it may (limits.turnTokens), and the next call would send "
        f"about {more:,} more. "
        "The next message has the whole limit again; to let a turn go further, raise limits.turnTokens in the config."
    )


class _Told:
    """What the owner was told of each limit, kept so that it is once a period whoever runs; a new limit begins anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, list[Any]] = {}

    async def is_first(self, key: str, period: str, limit: float, level: str) -> bool:
        """Whether this is news; from now on it is not."""
        news = [period, limit, level]
        if self._is_old(self._known.get(key), news):
            return False
        self._known[key] = news  # before anybody else can ask
        return await asyncio.to_thread(self._note, key, news)

    def _note(self, key: str, news: list[Any]) -> bool:
        told = self._load()
        if self._is_old(told.get(key), news):
            return False
        try:
            write_in_place(self._path, json.dumps(told | {key: news}) + "\n")
        except OSError as error:
            log.warning("That the owner was told of %s is not kept: %s", key, error)
        return True

    def _load(self) -> dict[str, Any]:
        try:
            told = json.loads(self._path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return told if isinstance(told, dict) else {}

    @staticmethod
    def _is_old(known: Any, news: list[Any]) -> bool:
        """Who was told of the stop needs no word of its coming."""
        return isinstance(known, list) and known[:2] == news[:2] and known[2:] in (news[2:], ["stop"])
