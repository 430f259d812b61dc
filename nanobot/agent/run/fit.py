"""What of a history goes into a request: pure arithmetic over rows.

As long as there is room nothing changes, so that each request is, byte for byte, the head of the next and a provider's
cache holds. When room runs out there is one event: it makes room in stages, each only if the one before was not enough,
down to a mark far below the allowance, and the window it leaves stands until the next one.

1. Old results shrink together: those before the last six turns, and of the running turn all but the last few steps.
2. Whole old turns leave, but never the last six before the running one.
3. Results within the last six turns shrink, and older steps of the running turn; then those of its last step, if they
   alone are too much.
4. Only where this is still above the allowance: very long words of earlier turns shrink, the six leave, oldest first;
   old steps of the running turn leave, each with its results.
5. What the person asks for is never cut: if even that is too long, nothing is sent.

Read fit, then _make_room and _ways.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum

from nanobot.agent.run.allowance import Allowance
from nanobot.agent.run.sheet import KEPT_TURNS, Sheet
from nanobot.agent.run.shrink import Depth
from nanobot.agent.run.window import SHRUNK_CHARS, Span, Window
from nanobot.errors import RequestTooLongError
from nanobot.messages.types import ChatMessage
from nanobot.utils.text import counted

KEPT_STEPS = 4
"""Steps of the running turn whose results shrink only when nothing else is left to shrink."""
_LAST_STEP_CHARS = (8_000, 4_000, 2_000, SHRUNK_CHARS)
_NO_OTHER_WAY_CHARS = 300
_AIM = 0.6
"""What an event comes down to, of the room beside the words that are to be answered."""
_TIGHT = 0.85
"""An event that ends above this has not made much room: what comes is then made small before it is first sent."""


class Stage(StrEnum):
    """What an event did last."""

    NOTHING = "nothing"
    OLD_RESULTS = "old results shrank"
    OLD_TURNS = "old turns left"
    RECENT_RESULTS = "results of the last turns shrank"
    LAST_RESULTS = "results of the last step shrank"
    WORDS = "long words of earlier turns shrank"
    RECENT_TURNS = "of the last turns the oldest left"
    OLD_STEPS = "old steps of the running turn left"
    LAST_STEP = "the last step shrank or left"


class Toll(IntEnum):
    """What making room costs the model. A dearer way is taken only where no cheaper one fits."""

    OLD = 0
    """It has used this, and can look again."""
    LAST_RESULTS = 1
    """It sees less of what it has just asked for."""
    WORDS = 2
    """It sees less of what was said."""
    RECENT = 3
    """It no longer knows what led here."""
    LAST_STEP = 4
    """It hardly knows what it was doing."""


_TOLL = {
    Stage.OLD_RESULTS: Toll.OLD,
    Stage.OLD_TURNS: Toll.OLD,
    Stage.RECENT_RESULTS: Toll.OLD,
    Stage.LAST_RESULTS: Toll.LAST_RESULTS,
    Stage.WORDS: Toll.WORDS,
    Stage.RECENT_TURNS: Toll.RECENT,
    Stage.OLD_STEPS: Toll.RECENT,
    Stage.LAST_STEP: Toll.LAST_STEP,
}
_ENOUGH = {Toll.OLD: _AIM, Toll.LAST_RESULTS: _TIGHT, Toll.WORDS: _TIGHT, Toll.RECENT: _AIM, Toll.LAST_STEP: 1.0}
"""Down to which share of the room an event goes on at this toll."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """The rows of a request, the window they follow from, and what they weigh."""

    rows: list[ChatMessage]
    window: Window
    tokens: int
    happened: Stage = Stage.NOTHING


def fit(sheet: Sheet, window: Window, allowance: Allowance) -> Fitted:
    """What of a history goes into a request, within the allowance.

    With the same window and more rows behind them it begins with the very rows it gave before, until the allowance is
    used up. Raises RequestTooLongError where the words that are to be answered do not fit by themselves.
    """
    window = sheet.sound(window)
    shown = sheet.show(window)
    tokens = sheet.weigh(shown)
    if tokens > allowance.tokens:
        return _make_room(sheet, window, allowance)
    if sheet.has_too_many(shown, window, allowance.rows):
        return _fewer_rows(sheet, window, allowance)
    return Fitted(shown, window, tokens)


@dataclass(frozen=True, slots=True)
class Departure:
    """What would go next, in words, and how many tokens that would free."""

    what: str
    tokens: int


def next_to_go(sheet: Sheet, window: Window) -> Departure | None:
    """What would go first if room ran out now; None where nothing could."""
    window = sheet.sound(window)
    before = sheet.show(window)
    tokens = sheet.weigh(before)
    for stage, smaller in _ways(sheet, window):
        shown = sheet.show(smaller)
        freed = tokens - sheet.weigh(shown)
        if freed > 0:
            return Departure(_in_words(stage, before, shown), freed)
    return None


def _in_words(stage: Stage, before: Sequence[ChatMessage], after: Sequence[ChatMessage]) -> str:
    if stage in (Stage.OLD_TURNS, Stage.RECENT_TURNS):
        return "the oldest turn"
    if stage is Stage.OLD_STEPS:
        return "the oldest step"
    if stage is Stage.LAST_STEP:
        return "most of the last step"
    if stage is Stage.WORDS:
        return "most of some very long messages"
    kept = set(map(id, after))
    steps: set[int] = set()
    step = 0
    for at, row in enumerate(before):
        step = at if row["role"] == "assistant" else step
        if id(row) not in kept and row["role"] in ("assistant", "tool"):
            steps.add(step)
    return f"the results of {counted(len(steps), 'old step')}" if steps else "pictures and thoughts of old turns"


def _make_room(sheet: Sheet, window: Window, allowance: Allowance) -> Fitted:
    """As little as will do: the first way that comes down to enough, else the last of the cheapest kind that fits."""
    words = sheet.weigh(sheet.asked())
    free = max(allowance.tokens - words, 0)
    fitting: Fitted | None = None
    for stage, smaller in _ways(sheet, window):
        if fitting is not None and _TOLL[stage] > _TOLL[fitting.happened]:
            break
        shown = sheet.show(smaller)
        found = Fitted(shown, smaller, sheet.weigh(shown), stage)
        if found.tokens <= allowance.tokens:
            fitting = found
            enough = words + int(free * _ENOUGH[_TOLL[stage]])
            if found.tokens <= enough and not sheet.has_too_many(shown, smaller, int(allowance.rows * _AIM)):
                return found
    if fitting is None:
        raise RequestTooLongError(words, allowance.tokens)
    if _TOLL[fitting.happened] < Toll.RECENT:
        all_shrunk = sheet.shrinking(fitting.window, Span(sheet.turns[-1], sheet.end))
        if sheet.weigh(sheet.show(all_shrunk)) > words + int(free * _TIGHT):  # the next event would free as little
            return replace(fitting, window=sheet.tightened(fitting.window, allowance.tokens - fitting.tokens))
    return fitting


def _fewer_rows(sheet: Sheet, window: Window, allowance: Allowance) -> Fitted:
    """The tokens fit, the rows are too many: old turns leave until there is room for many more."""
    for stage, smaller in _ways(sheet, window):
        if stage is Stage.OLD_TURNS:
            window = replace(window, start=smaller.start, resumed=0)
            shown = sheet.show(window)
            if not sheet.has_too_many(shown, window, int(allowance.rows * _AIM)):
                break
    return Fitted(shown, window, sheet.weigh(shown), Stage.OLD_TURNS)


def _ways(sheet: Sheet, window: Window) -> Iterator[tuple[Stage, Window]]:
    """Smaller and smaller windows, each with what was done last to come to it: the stages of this file's head."""
    turns = sheet.turns
    running, kept = turns[-1], turns[max(len(turns) - 1 - KEPT_TURNS, 0)]
    steps = sheet.steps(window)
    window = sheet.closed(window)

    # 1. Old results.
    old = Span(window.start, kept, depth=Depth.ASIDES)
    window = sheet.shrinking(window, old, *(Span(running, step) for step in steps[-KEPT_STEPS:][:1]))
    yield Stage.OLD_RESULTS, window

    # 2. Old turns.
    for turn in turns:
        if window.start < turn <= kept:
            window = replace(window, start=turn, resumed=0)
            yield Stage.OLD_TURNS, window

    # 3. Results of the last turns, then of the running one, its last step last.
    for turn in turns:
        if turn > kept:
            window = sheet.shrinking(window, Span(window.start, turn, depth=Depth.ASIDES))
            yield Stage.RECENT_RESULTS, window
    for step in steps[1 - KEPT_STEPS :]:
        window = sheet.shrinking(window, Span(running, step))
        yield Stage.RECENT_RESULTS, window
    for chars in _LAST_STEP_CHARS:
        window = sheet.shrinking(window, *(Span(step, sheet.end, chars) for step in steps[-1:]))
        yield Stage.LAST_RESULTS, window

    # 4. Long words, the last turns, old steps.
    window = sheet.shrinking(window, Span(window.start, running, depth=Depth.WORDS))
    yield Stage.WORDS, window
    for turn in turns:
        if kept < turn and window.start < turn:
            window = replace(window, start=turn, resumed=0)
            yield Stage.RECENT_TURNS, window
    for step in steps[1:]:
        window = replace(window, resumed=step)
        yield Stage.OLD_STEPS, window

    # Nothing else is left.
    window = sheet.shrinking(window, *(Span(step, sheet.end, _NO_OTHER_WAY_CHARS) for step in steps[-1:]))
    yield Stage.LAST_STEP, window
    if steps:
        yield Stage.LAST_STEP, replace(window, resumed=sheet.end)
