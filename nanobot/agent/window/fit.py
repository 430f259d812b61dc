"""Fit a history into a token budget: pure functions over rows.

While it fits nothing changes, so that each request is a byte-for-byte prefix of the next and the provider's cache
holds. When it no longer fits, one event makes room in stages, down to a target far below the budget, and the resulting
window stays until the next event. Each stage is used only if those before are not enough:

1. Old results shrink: those before the last six turns, and of the running turn all but the last few steps.
2. Whole old turns are dropped, but never the last six before the running one.
3. Results within the last six turns shrink, then older steps of the running turn, then those of its last step.
4. Very long messages of earlier turns shrink; the last six turns are dropped, oldest first; old steps of the running
   turn are dropped with their results.
5. The request to answer is never cut: if it alone is too long, nothing is sent.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum

from nanobot.agent.window.history_view import KEPT_TURNS, HistoryView
from nanobot.agent.window.shrink import Depth
from nanobot.agent.window.state import SHRUNK_CHARS, ShrunkSpan, Window
from nanobot.agent.window.token_budget import TokenBudget
from nanobot.errors import RequestTooLongError
from nanobot.messages.types import ChatMessage
from nanobot.utils.text import count_noun

KEPT_STEPS = 4
"""Last steps of the running turn; their results shrink after all others."""
_LAST_STEP_CHARS = (8_000, 4_000, 2_000, SHRUNK_CHARS)
_LAST_RESORT_CHARS = 300
_TARGET_SHARE = 0.6
"""Target of an event: share of the budget left by the request to answer."""
_TIGHT_SHARE = 0.85
"""If even shrinking everything stays above this share, new results are shrunk before they are first sent."""


class Stage(StrEnum):
    """The last stage of an event."""

    NOTHING = "nothing"
    OLD_RESULTS = "old results shrank"
    OLD_TURNS = "old turns were dropped"
    RECENT_RESULTS = "results of the last turns shrank"
    LAST_RESULTS = "results of the last step shrank"
    WORDS = "long messages of earlier turns shrank"
    RECENT_TURNS = "the oldest of the last turns were dropped"
    OLD_STEPS = "old steps of the running turn were dropped"
    LAST_STEP = "the last step shrank or was dropped"


class FitCost(IntEnum):
    """What a stage costs the model. A higher cost is accepted only if no cheaper stage fits."""

    OLD = 0
    """Content that was used already and can be looked up again."""
    LAST_RESULTS = 1
    """Results that it has just asked for."""
    WORDS = 2
    """Text of messages."""
    RECENT = 3
    """Recent turns and steps."""
    LAST_STEP = 4
    """Most of the current step."""


_COSTS = {
    Stage.OLD_RESULTS: FitCost.OLD,
    Stage.OLD_TURNS: FitCost.OLD,
    Stage.RECENT_RESULTS: FitCost.OLD,
    Stage.LAST_RESULTS: FitCost.LAST_RESULTS,
    Stage.WORDS: FitCost.WORDS,
    Stage.RECENT_TURNS: FitCost.RECENT,
    Stage.OLD_STEPS: FitCost.RECENT,
    Stage.LAST_STEP: FitCost.LAST_STEP,
}
_TARGETS = {
    FitCost.OLD: _TARGET_SHARE,
    FitCost.LAST_RESULTS: _TIGHT_SHARE,
    FitCost.WORDS: _TIGHT_SHARE,
    FitCost.RECENT: _TARGET_SHARE,
    FitCost.LAST_STEP: 1.0,
}
"""Target share of the free budget, by cost."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """The rows of a request, their window, and their size in tokens."""

    rows: list[ChatMessage]
    window: Window
    tokens: int
    stage: Stage = Stage.NOTHING


def fit(view: HistoryView, window: Window, budget: TokenBudget) -> Fitted:
    """Select the rows of a request within the budget.

    With the same window and more rows appended, the result begins with the same rows as before until the budget is
    used up. Raises RequestTooLongError if the request to answer does not fit by itself.
    """
    window = view.normalize(window)
    shown = view.show(window)
    tokens = view.weigh(shown)
    if tokens > budget.tokens:
        return _make_room(view, window, budget)
    if view.has_too_many_rows(shown, window, budget.rows):
        return _drop_turns(view, window, budget)
    return Fitted(shown, window, tokens)


@dataclass(frozen=True, slots=True)
class NextEviction:
    """What would be shrunk or dropped next, described for a person, and how many tokens that frees."""

    what: str
    tokens: int


def next_eviction(view: HistoryView, window: Window) -> NextEviction | None:
    """What the next event would do first; None if nothing can be freed."""
    window = view.normalize(window)
    before = view.show(window)
    tokens = view.weigh(before)
    for stage, smaller in _smaller_windows(view, window):
        shown = view.show(smaller)
        freed = tokens - view.weigh(shown)
        if freed > 0:
            return NextEviction(_describe(stage, before, shown), freed)
    return None


def _describe(stage: Stage, before: Sequence[ChatMessage], after: Sequence[ChatMessage]) -> str:
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
    for index, row in enumerate(before):
        step = index if row["role"] == "assistant" else step
        if id(row) not in kept and row["role"] in ("assistant", "tool"):
            steps.add(step)
    return f"the results of {count_noun(len(steps), 'old step')}" if steps else "pictures and reasoning of old turns"


def _make_room(view: HistoryView, window: Window, budget: TokenBudget) -> Fitted:
    """Use the first window that reaches its target, else the last one of the lowest cost that fits."""
    request_tokens = view.weigh(view.requests())
    free = max(budget.tokens - request_tokens, 0)
    fitting: Fitted | None = None
    for stage, smaller in _smaller_windows(view, window):
        if fitting is not None and _COSTS[stage] > _COSTS[fitting.stage]:
            break
        shown = view.show(smaller)
        candidate = Fitted(shown, smaller, view.weigh(shown), stage)
        if candidate.tokens <= budget.tokens:
            fitting = candidate
            target = request_tokens + int(free * _TARGETS[_COSTS[stage]])
            target_rows = int(budget.rows * _TARGET_SHARE)
            if candidate.tokens <= target and not view.has_too_many_rows(shown, smaller, target_rows):
                return candidate
    if fitting is None:
        raise RequestTooLongError(request_tokens, budget.tokens)
    if _COSTS[fitting.stage] < FitCost.RECENT:
        all_shrunk = view.with_spans(fitting.window, ShrunkSpan(view.turns[-1], view.end))
        # otherwise the next event would free as little
        if view.weigh(view.show(all_shrunk)) > request_tokens + int(free * _TIGHT_SHARE):
            return replace(fitting, window=view.pre_shrink(fitting.window, budget.tokens - fitting.tokens))
    return fitting


def _drop_turns(view: HistoryView, window: Window, budget: TokenBudget) -> Fitted:
    """Drop old turns if the tokens fit but there are too many rows."""
    for stage, smaller in _smaller_windows(view, window):
        if stage is Stage.OLD_TURNS:
            window = replace(window, start=smaller.start, resumed=0)
            shown = view.show(window)
            if not view.has_too_many_rows(shown, window, int(budget.rows * _TARGET_SHARE)):
                break
    return Fitted(shown, window, view.weigh(shown), Stage.OLD_TURNS)


def _smaller_windows(view: HistoryView, window: Window) -> Iterator[tuple[Stage, Window]]:
    """Yield ever smaller windows with the stage that led to each, in the order of the module docstring."""
    turns = view.turns
    running, kept = turns[-1], turns[max(len(turns) - 1 - KEPT_TURNS, 0)]
    steps = view.steps(window)
    window = view.close_spans(window)

    # 1. Old results.
    old = ShrunkSpan(window.start, kept, depth=Depth.ASIDES)
    window = view.with_spans(window, old, *(ShrunkSpan(running, step) for step in steps[-KEPT_STEPS:][:1]))
    yield Stage.OLD_RESULTS, window

    # 2. Old turns.
    for turn in turns:
        if window.start < turn <= kept:
            window = replace(window, start=turn, resumed=0)
            yield Stage.OLD_TURNS, window

    # 3. Results of the last turns, then of the running one, its last step last.
    for turn in turns:
        if turn > kept:
            window = view.with_spans(window, ShrunkSpan(window.start, turn, depth=Depth.ASIDES))
            yield Stage.RECENT_RESULTS, window
    for step in steps[1 - KEPT_STEPS :]:
        window = view.with_spans(window, ShrunkSpan(running, step))
        yield Stage.RECENT_RESULTS, window
    for chars in _LAST_STEP_CHARS:
        window = view.with_spans(window, *(ShrunkSpan(step, view.end, chars) for step in steps[-1:]))
        yield Stage.LAST_RESULTS, window

    # 4. Long messages, the last turns, old steps.
    window = view.with_spans(window, ShrunkSpan(window.start, running, depth=Depth.WORDS))
    yield Stage.WORDS, window
    for turn in turns:
        if kept < turn and window.start < turn:
            window = replace(window, start=turn, resumed=0)
            yield Stage.RECENT_TURNS, window
    for step in steps[1:]:
        window = replace(window, resumed=step)
        yield Stage.OLD_STEPS, window

    # Last resort.
    window = view.with_spans(window, *(ShrunkSpan(step, view.end, _LAST_RESORT_CHARS) for step in steps[-1:]))
    yield Stage.LAST_STEP, window
    if steps:
        yield Stage.LAST_STEP, replace(window, resumed=view.end)
