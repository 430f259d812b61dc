"""What of a history goes into a request: pure arithmetic over rows, with a small state that says what is left of them.

As long as there is room nothing changes, so that each request is, byte for byte, the head of the next and a provider's
cache holds. When room runs out there is one event: it makes room in stages, each only if the one before was not enough,
down to a mark far below the budget, and the state it leaves stands until the next one.

1. Old results shrink together: those before the last six turns, and of the running turn all but the last few steps.
2. Whole old turns leave, but never the last six before the running one.
3. Results within the last six turns shrink, and older steps of the running turn; then those of its last step, if they
   alone are too much.
4. Only where this is still above the budget: very long words of earlier turns shrink, the six leave, oldest first; old
   steps of the running turn leave, each with its results.
5. What the person asks for is never cut: if even that is too long, nothing is sent.

Read Window, then fit, then _ways; shrink has what a small row looks like.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from nanobot.agent.run.shrink import Depth, Shrinker
from nanobot.errors import RequestTooLongError
from nanobot.messages.repair import NO_RESULT
from nanobot.messages.tokens import TOKENS_PER_MESSAGE, Scale, estimate_tokens
from nanobot.messages.types import ChatMessage, is_our_word
from nanobot.utils.text import counted

KEPT_TURNS = 6
"""Turns before the running one that stay as long as they fit."""
KEPT_STEPS = 4
"""Steps of the running turn whose results shrink only when nothing else is left to shrink."""
SHRUNK_CHARS = 700
MOST_ROWS = 400
"""Below what a session reads of its end when it is opened, so that the window is in memory from then on."""
_LAST_STEP_CHARS = (8_000, 4_000, 2_000, SHRUNK_CHARS)
_NO_OTHER_WAY_CHARS = (300,)
_AIM = 0.6
"""What an event comes down to, of the budget."""
_TIGHT = 0.85
"""An event that ends above this has not made much room: what comes is then made small before it is first sent."""
_SURE = 0.95
"""Of what a model says it takes: its tokens are not ours."""
_A_LITTLE_MORE = 1.1
_MOST_RATIO = 4.0
_LEAST_RATIO = 0.75
"""Some models do not count what was cached: we believe them only so far."""
_REPLY_STEP = 256
"""In a small window the room for the reply is rounded: it is sent with each request, and should stay the same."""
_NO_RESULT_TOKENS = estimate_tokens(NO_RESULT) + 4 * TOKENS_PER_MESSAGE
_MOST_SPANS = 64
_MOST_MODELS = 16


@dataclass(frozen=True, slots=True)
class Span:
    """Rows from `begin` to before `end` (None: and all that come) show no part longer than about `chars`."""

    begin: int
    end: int | None
    chars: int = SHRUNK_CHARS
    depth: Depth = Depth.RESULTS

    def covers(self, other: "Span") -> bool:
        """Whether the other one changes nothing beside this one."""
        ends = self.end is None or (other.end is not None and other.end <= self.end)
        return ends and self.begin <= other.begin and self.chars <= other.chars and self.depth >= other.depth


@dataclass(frozen=True, slots=True)
class Learned:
    """What requests taught us about a model: its tokens for one of our estimate, and a weight it did not take."""

    ratio: float = 1.0
    most: int | None = None
    """Requests must weigh no more than this, in tokens of our estimate."""
    window: int | None = None
    """What the model said it takes, where that is less than we knew; a little less, to be sure."""

    def told(self, window: int, weight: int, reply: int) -> "Learned":
        """The same after the model refused a request of this weight, and said what it takes: it counts more than we."""
        counted = min(_A_LITTLE_MORE * (window - reply) / max(weight, 1), _MOST_RATIO)
        return replace(self, ratio=max(self.ratio, counted), window=int(window * _SURE))


@dataclass(frozen=True, slots=True)
class Window:
    """What is left of a history. All numbers are positions in it; the state of nothing done yet is `Window()`."""

    start: int = 0
    """Rows before it have left."""
    resumed: int = 0
    """From `start` to here only the words of people are left, where it is behind `start`."""
    shrunk: tuple[Span, ...] = ()
    learned: Mapping[str, Learned] = field(default_factory=dict)
    """By model."""

    def moved(self, by: int) -> "Window":
        """The same window where the history begins so many rows earlier (or, below 0, later)."""
        spans = (
            replace(span, begin=max(span.begin + by, 0), end=None if span.end is None else span.end + by)
            for span in self.shrunk
        )
        kept = tuple(span for span in spans if span.end is None or span.end > span.begin)
        return replace(self, start=max(self.start + by, 0), resumed=max(self.resumed + by, 0), shrunk=kept)

    def model(self, name: str) -> Learned:
        """What is known of a model."""
        return self.learned.get(name, Learned())

    def taught(self, name: str, learned: Learned) -> "Window":
        """The same window, knowing this of a model."""
        others = {known: one for known, one in self.learned.items() if known != name}
        return replace(self, learned=dict([*list(others.items())[1 - _MOST_MODELS :], (name, learned)]))

    def to_json(self) -> dict[str, Any]:
        """As plain data, without what is as it always is."""
        spans = [[span.begin, span.end, span.chars, int(span.depth)] for span in self.shrunk]
        learned = {name: [one.ratio, one.most, one.window] for name, one in self.learned.items()}
        found = {"start": self.start, "resumed": self.resumed, "shrunk": spans, "learned": learned}
        return {name: value for name, value in found.items() if value}

    @classmethod
    def from_json(cls, found: object) -> "Window":
        """What `to_json` gave; of anything else, as much as makes sense. Never raises."""
        if not isinstance(found, dict):
            return cls()
        spans, learned = found.get("shrunk"), found.get("learned")
        read_spans = [span for one in spans if (span := _read_span(one))] if isinstance(spans, list) else []
        pairs = learned.items() if isinstance(learned, dict) else ()
        models = {name: one for name, raw in pairs if isinstance(name, str) and (one := _read_learned(raw))}
        return cls(
            _natural(found.get("start")) or 0,
            _natural(found.get("resumed")) or 0,
            tuple(read_spans[-_MOST_SPANS:]),
            dict(list(models.items())[-_MOST_MODELS:]),
        )


@dataclass(frozen=True, slots=True)
class Budget:
    """What the rows of a request may weigh, in tokens of our estimate, and how many they may be."""

    tokens: int
    rows: int = MOST_ROWS
    reply: int = 8192
    """What the model may be asked to answer at most, in its own tokens."""


def budget_for(
    window_tokens: int, max_tokens: int, fixed: int, learned: Learned | None = None, rows: int = MOST_ROWS
) -> Budget:
    """What is left for the rows beside the fixed part (system prompt and tools) and room for the reply.

    The reply never takes more than half of what the fixed part leaves, however small the window.
    """
    learned = learned or Learned()
    window_tokens = min(window_tokens, learned.window or window_tokens)
    reply = max(min(max_tokens, (window_tokens - fixed) // 2 // _REPLY_STEP * _REPLY_STEP), 1)
    room = int((window_tokens - reply) / learned.ratio)
    if learned.most is not None:
        reply = max(min(reply, learned.most // 2), 1)
        room = min(room, learned.most)
    return Budget(room - fixed, rows, reply)


def after_overflow(
    window: Window, model: str, weight: int, fixed: int = 0, *, said: int | None = None, reply: int = 0
) -> Window:
    """The state after a model refused a request of this weight as too long: the next ones stay at 60 % of it.

    What the fixed part needs is left in any case, with a little room for a question. `said` is what the model takes,
    where it told: the first time that is enough to know. `reply` is what it might have answered.
    """
    known = window.model(model)
    if said is not None and known.window is None:
        return window.taught(model, known.told(said, weight, reply))
    most = max(int(weight * _AIM), fixed + 512)
    return window.taught(model, replace(known, most=most if known.most is None else min(most, known.most)))


def after_answer(window: Window, model: str, weight: int, counted: int) -> Window:
    """The state after a model said how many tokens a request of this weight was.

    It changes in steps, so that a session is not written anew for every request. What cannot be is not believed.
    """
    if weight < 500 or not 0.5 <= counted / weight <= _MOST_RATIO:
        return window
    known, ratio = window.model(model), max(-(-counted * 20 // weight) / 20, _LEAST_RATIO)
    if known.ratio - 0.1 < ratio <= known.ratio:
        return window
    most = None if known.most is None else int(known.most * known.ratio / ratio)
    return window.taught(model, replace(known, ratio=ratio, most=most))


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


_HARSH = {
    Stage.OLD_RESULTS: 0,
    Stage.OLD_TURNS: 0,
    Stage.RECENT_RESULTS: 0,
    Stage.LAST_RESULTS: 1,
    Stage.WORDS: 2,
    Stage.RECENT_TURNS: 3,
    Stage.OLD_STEPS: 3,
    Stage.LAST_STEP: 4,
}
"""A harsher way is taken only where no milder one fits."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """The rows of a request, the state they follow from, and what they weigh."""

    rows: list[ChatMessage]
    window: Window
    tokens: int
    happened: Stage = Stage.NOTHING


def fit(
    rows: Sequence[ChatMessage],
    window: Window,
    budget: Budget,
    scale: Scale | None = None,
    shrinker: Shrinker | None = None,
) -> Fitted:
    """What of `rows` (a history without system rows) goes into a request, within the budget.

    With the same state and more rows behind them it begins with the very rows it gave before, until the budget is used
    up. Raises RequestTooLongError where the words that are to be answered do not fit by themselves. `scale` and
    `shrinker` only remember: hand in the same ones to weigh and shrink each row once.
    """
    sheet = _Sheet(rows, scale or Scale(), shrinker or Shrinker())
    window = sheet.sound(window)
    shown = sheet.show(window)
    tokens = sheet.weigh(shown)
    if tokens <= budget.tokens and not sheet.has_too_many(shown, window, budget.rows):
        return Fitted(shown, window, tokens)
    return _event(sheet, window, budget, tokens)


def standing(rows: Sequence[ChatMessage], window: Window, shrinker: Shrinker | None = None) -> list[ChatMessage]:
    """What of `rows` the window leaves as it stands, whatever that weighs."""
    sheet = _Sheet(rows, Scale(), shrinker or Shrinker())
    return sheet.show(sheet.sound(window))


@dataclass(frozen=True, slots=True)
class Departure:
    """What would go next, in words, and how many tokens that would free."""

    what: str
    tokens: int


def next_to_go(
    rows: Sequence[ChatMessage], window: Window, scale: Scale | None = None, shrinker: Shrinker | None = None
) -> Departure | None:
    """What would go first if room ran out now; None where nothing could."""
    sheet = _Sheet(rows, scale or Scale(), shrinker or Shrinker())
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


def _event(sheet: "_Sheet", window: Window, budget: Budget, tokens: int) -> Fitted:
    """Make room, as little as will do: the first way down to the aim, else the last of the mildest kind that fits."""
    if tokens <= budget.tokens:
        return _fewer_rows(sheet, window, budget)
    words = sheet.weigh(sheet.asked())
    free = max(budget.tokens - words, 0)
    tight = words + int(free * _TIGHT)
    marks = (words + int(free * _AIM), tight, tight, words + int(free * _AIM), budget.tokens)
    fitting: Fitted | None = None
    for stage, smaller in _ways(sheet, window):
        if fitting is not None and _HARSH[stage] > _HARSH[fitting.happened]:
            break
        shown = sheet.show(smaller)
        found = Fitted(shown, smaller, sheet.weigh(shown), stage)
        if found.tokens <= budget.tokens:
            fitting = found
            many = sheet.has_too_many(shown, smaller, int(budget.rows * _AIM))
            if found.tokens <= marks[_HARSH[stage]] and not many:
                return found
    if fitting is None:
        raise RequestTooLongError(words, budget.tokens)
    if _HARSH[fitting.happened] < _HARSH[Stage.RECENT_TURNS]:
        all_shrunk = sheet.shrinking(fitting.window, Span(sheet.turns[-1], sheet.end))
        if sheet.weigh(sheet.show(all_shrunk)) > tight:  # the next event would free as little as this one
            return replace(fitting, window=sheet.tightened(fitting.window, budget.tokens - fitting.tokens))
    return fitting


def _fewer_rows(sheet: "_Sheet", window: Window, budget: Budget) -> Fitted:
    """The tokens fit, the rows are too many: old turns leave until there is room for many more."""
    for stage, smaller in _ways(sheet, window):
        if stage is Stage.OLD_TURNS:
            window = replace(window, start=smaller.start, resumed=0)
            shown = sheet.show(window)
            if not sheet.has_too_many(shown, window, int(budget.rows * _AIM)):
                break
    return Fitted(shown, window, sheet.weigh(shown), Stage.OLD_TURNS)


def _ways(sheet: "_Sheet", window: Window) -> Iterator[tuple[Stage, Window]]:
    """Smaller and smaller windows, each with what was done last to come to it."""
    turns = sheet.turns
    running, kept = turns[-1], turns[max(len(turns) - 1 - KEPT_TURNS, 0)]
    steps = sheet.steps(window)
    window = sheet.closed(window)
    old = [Span(window.start, kept, depth=Depth.ASIDES)]
    window = sheet.shrinking(window, *old, *(Span(running, step) for step in steps[-KEPT_STEPS:][:1]))
    yield Stage.OLD_RESULTS, window
    for turn in turns:
        if window.start < turn <= kept:
            window = replace(window, start=turn, resumed=0)
            yield Stage.OLD_TURNS, window
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
    window = sheet.shrinking(window, Span(window.start, running, depth=Depth.WORDS))
    yield Stage.WORDS, window
    for turn in turns:
        if kept < turn and window.start < turn:
            window = replace(window, start=turn, resumed=0)
            yield Stage.RECENT_TURNS, window
    for step in steps[1:]:
        window = replace(window, resumed=step)
        yield Stage.OLD_STEPS, window
    for chars in _NO_OTHER_WAY_CHARS:
        window = sheet.shrinking(window, *(Span(step, sheet.end, chars) for step in steps[-1:]))
        yield Stage.LAST_STEP, window
    if steps:
        yield Stage.LAST_STEP, replace(window, resumed=sheet.end)


class _Sheet:
    """The rows of a history, where its turns begin, and what a window shows of them."""

    def __init__(self, rows: Sequence[ChatMessage], scale: Scale, shrinker: Shrinker) -> None:
        self._rows = rows
        self._scale = scale
        self._shrinker = shrinker
        self.end = len(rows)

    @cached_property
    def turns(self) -> list[int]:
        """Where turns begin; never empty."""
        return _turns(self._rows)

    def sound(self, window: Window) -> Window:
        """The window with positions that make sense here: its start at the beginning of a turn."""
        if not window.start and not window.resumed:
            return window
        start = max((turn for turn in self.turns if turn <= window.start), default=0)
        resumed = window.resumed if start < window.resumed <= self.end else 0
        return replace(window, start=start, resumed=resumed)

    def steps(self, window: Window) -> list[int]:
        """Where the steps of the running turn begin that the window shows."""
        begin = max(self.turns[-1], window.resumed)
        return [at for at in range(begin, self.end) if self._rows[at]["role"] == "assistant"]

    def asked(self) -> list[ChatMessage]:
        """The words that are to be answered."""
        return [row for row in self._rows[self.turns[-1] :] if _is_persons(row)]

    def has_too_many(self, shown: Sequence[ChatMessage], window: Window, most: int) -> bool:
        """Whether there are too many rows, and old turns that could leave."""
        return len(shown) > most and len(self.turns) > KEPT_TURNS + 1 and window.start < self.turns[-1 - KEPT_TURNS]

    def show(self, window: Window) -> list[ChatMessage]:
        """The rows as the window leaves them."""
        rows = self._rows
        if not window.shrunk and window.resumed <= window.start:
            return [row for row in rows[window.start :] if "_command" not in row]
        shown: list[ChatMessage] = []
        if window.resumed > window.start:
            left = rows[window.start : window.resumed]
            shown += [self._small(at, window) for at in range(window.start, window.resumed) if _is_persons(rows[at])]
            shown.append(self._shrinker.note(left))
        for at in range(max(window.start, window.resumed), self.end):
            if not rows[at].get("_command"):
                shown.append(self._small(at, window))
        return shown

    def weigh(self, shown: Sequence[ChatMessage]) -> int:
        """What rows weigh together, with the words that stand in for results nobody recorded."""
        asked = [call.get("id") for row in shown if "tool_calls" in row for call in _calls(row)]
        answered = {row.get("tool_call_id") for row in shown if row["role"] == "tool"} if asked else ()
        missing = sum(1 for call_id in asked if call_id not in answered)
        return self._scale.weigh_all(shown) + missing * _NO_RESULT_TOKENS

    def closed(self, window: Window) -> Window:
        """The window without spans over what is yet to come."""
        return replace(window, shrunk=tuple(replace(span, end=self._end_of(span)) for span in window.shrunk))

    def shrinking(self, window: Window, *spans: Span) -> Window:
        """The window with these spans too; those that say nothing any more go."""
        clipped = (replace(span, begin=max(span.begin, window.start)) for span in (*window.shrunk, *spans))
        kept: list[Span] = []
        for span in clipped:
            if span.begin < self._end_of(span) and not any(other.covers(span) for other in kept):
                kept = [*(other for other in kept if not span.covers(other)), span]
        return replace(window, shrunk=tuple(kept))

    def tightened(self, window: Window, room: int) -> Window:
        """The window in which what comes is made small before it is first sent, so that many steps find room."""
        return replace(window, shrunk=(*window.shrunk, Span(self.end, None, max(SHRUNK_CHARS, room // 2))))

    def _end_of(self, span: Span) -> int:
        return self.end if span.end is None else min(span.end, self.end)

    def _small(self, at: int, window: Window) -> ChatMessage:
        row = self._rows[at]
        spans = [span for span in window.shrunk if span.begin <= at and (span.end is None or at < span.end)]
        if not spans or (row["role"] == "user" and at >= self.turns[-1]):
            return row
        depth = max(span.depth for span in spans)
        return self._shrinker.shrink(row, min(span.chars for span in spans), depth)


def _turns(rows: Sequence[ChatMessage]) -> list[int]:
    """Where turns begin: at a person's or a job's words, unless these joined a turn that was running. Never empty."""
    begins = [0]
    turn_id: str | None = None
    for at, row in enumerate(rows):
        if _is_persons(row):
            if at and (row.get("turn_id") is None or row.get("turn_id") != turn_id):
                begins.append(at)
            turn_id = row.get("turn_id")
    return begins


def _is_persons(row: ChatMessage) -> bool:
    """Whether these are somebody's words, not ours to the model."""
    return row["role"] == "user" and not is_our_word(row) and not row.get("_command")


def _calls(row: ChatMessage) -> list[Any]:
    found: object = row.get("tool_calls")
    return [call for call in found if isinstance(call, dict)] if isinstance(found, list) else []


def _natural(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _read_span(found: object) -> Span | None:
    if not isinstance(found, list) or len(found) != 4:
        return None
    begin, end, chars, depth = _natural(found[0]), _natural(found[1]), _natural(found[2]), _natural(found[3])
    if begin is None or not chars or depth not in set(Depth) or (end is None and found[1] is not None):
        return None
    return Span(begin, end, chars, Depth(depth)) if end is None or end > begin else None


def _read_learned(found: object) -> Learned | None:
    if not isinstance(found, list) or len(found) not in (2, 3):
        return None
    ratio, most, *window = found
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0.1 <= ratio <= 10:
        return None
    return Learned(float(ratio), _natural(most) or None, _natural(window[0]) or None if window else None)
