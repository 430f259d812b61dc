"""Recorded turns as people read them: one turn, what it was sent with, two beside each other."""

import difflib
import json
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest

from nanobot.agent.trace.recorded import RecordedCall, RecordedPrompt, RecordedStep, RecordedTurn
from nanobot.agent.trace.replay import Difference, Replay
from nanobot.cli.common import one_line
from nanobot.cli.terminal import Paint, visible
from nanobot.cli.tool_lines import clipped
from nanobot.messages.shown import shown_text
from nanobot.messages.types import ChatMessage
from nanobot.providers.wire import wire_text
from nanobot.security.secrets import Redactor
from nanobot.usage.types import dollars
from nanobot.utils.text import counted

RESULT_LINES = 5
UNFINISHED = "unfinished"
_INDENT = "  "


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """A turn in a list."""

    turn: str
    at: str
    outcome: str
    seconds: float | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cost_usd: float | None
    first_words: str

    @classmethod
    def of(cls, turn: RecordedTurn, redactor: Redactor) -> "TurnFacts":
        """What a list shows of a turn."""
        return cls(
            turn=turn.turn_id,
            at=turn.at,
            outcome=turn.outcome or UNFINISHED,
            seconds=turn.seconds,
            prompt_tokens=turn.usage.get("prompt_tokens", 0),
            completion_tokens=turn.usage.get("completion_tokens", 0),
            cached_tokens=turn.usage.get("cached_tokens", 0),
            cost_usd=turn.cost_usd,
            first_words=one_line(redactor.text(turn.message))[:200],
        )

    def as_row(self) -> list[str]:
        """For a table."""
        tokens = f"{self.prompt_tokens + self.completion_tokens:,}" if self.prompt_tokens else ""
        return [
            self.turn,
            _when(self.at),
            self.outcome,
            _time(self.seconds),
            tokens,
            _money(self.cost_usd),
            self.first_words,
        ]


def turn_lines(turn: RecordedTurn, redactor: Redactor, paint: Paint, width: int) -> list[str]:
    """A turn from the message to its end."""
    page = _Page(redactor, paint, width)
    origin = f", from {one_line(turn.origin)}" if turn.origin else ""
    page.line(paint.bold(_named(turn)), f", {_when(turn.at, seconds=True)}{origin}")
    if turn.model:
        before = int((turn.traced or {}).get("history", 1)) - 1
        page.line(paint.dim(f"{_asked(turn)}, {counted(before, 'message')} before it"))
    elif turn.traced is None:
        page.line(paint.dim("This turn was not traced: this is what the session tells of it."))
    page.speech("You", turn.message)
    for number, step in enumerate(turn.steps, 1):
        for row in step.heard:
            page.speech("You, meanwhile", shown_text(row))
        page.step(number, step)
        page.notices(turn, number)
    page.notices(turn, len(turn.steps) + 1)
    if turn.text.strip() not in "".join(step.text for step in turn.steps):
        page.speech("nanobot", turn.text)
    page.line("")
    page.ending(turn)
    return page.lines


def prompt_lines(prompt: RecordedPrompt, messages: list[ChatMessage], redactor: Redactor, paint: Paint) -> list[str]:
    """The first request of a turn, whole."""
    system = visible(redactor.text(prompt.system))
    names = ", ".join(str(schema["function"]["name"]) for schema in prompt.tools)
    lines = [paint.bold(f"System prompt, {len(system):,} characters"), "", system.rstrip()]
    lines += ["", paint.bold(counted(len(prompt.tools), "tool")), "", names]
    sent = [row for row in messages if row["role"] != "system"]
    lines += ["", paint.bold(counted(len(sent), "message"))]
    for row in sent:
        name = f" {row.get('name', '')}" if row["role"] == "tool" else ""
        lines += ["", paint.dim(f"{row['role']}{name}:")]
        lines += filter(None, [visible(redactor.text(wire_text(row))).rstrip()])
        for call in row.get("tool_calls") or ():
            function = call["function"]
            lines.append(f"> {function['name']} {visible(redactor.text(function['arguments']))}")
    return lines


def against_lines(
    turn: RecordedTurn, again: Replay, difference: Difference | None, redactor: Redactor, paint: Paint, width: int
) -> list[str]:
    """Two turns step by step, where they part, how they end, and what they cost."""
    page = _Page(redactor, paint, width)
    page.line(paint.bold(f"{_named(turn)}, again"))
    page.line(paint.dim(f"recorded: {_asked(turn)}"))
    page.line(paint.dim(f"now:      {_asked(again.turn)}; no tool ran"))
    page.speech("You", turn.message)
    for number, (then, now) in enumerate(zip_longest(turn.asked, again.turn.asked), 1):
        page.line("")
        page.line(paint.bold(f"Step {number}") + _mark(difference, number, paint))
        page.side("recorded", then, again)
        page.side("now     ", now, again)
    if difference is not None or again.turn.outcome != "failed":
        page.line("")
        page.line(paint.bold("".join(_parting(difference, page))))
    page.line("")
    if again.turn.outcome == "failed":
        page.line(paint.red("It failed: "), page.clean(again.turn.text))
    else:
        page.diff(turn, again.turn)
    page.line("")
    page.line(paint.dim(f"{'':9}{'steps':>6}{'in':>10}{'cached':>10}{'out':>8}{'time':>10}  cost"))
    for name, one in (("recorded", turn), ("now", again.turn)):
        page.line(_sums(name, one))
    return page.lines


class _Page:
    """Lines for a person. Whatever somebody else wrote is cleaned of secrets and of what would steer a terminal."""

    def __init__(self, redactor: Redactor, paint: Paint, width: int) -> None:
        self.lines: list[str] = []
        self._redactor = redactor
        self._paint = paint
        self._width = max(width, 40)

    def line(self, *parts: str) -> None:
        """One line of ours."""
        self.lines.append("".join(parts))

    def clean(self, text: str) -> str:
        """A text of somebody's, in one line that fits."""
        return clipped(one_line(self._redactor.text(text)), self._width - 12)

    def speech(self, who: str, text: str) -> None:
        """What somebody said, whole."""
        self.lines += ["", self._paint.bold(who)]
        self._indented(text, 1)

    def step(self, number: int, step: RecordedStep) -> None:
        """A model call, and the calls it asked for."""
        self.lines += ["", self._paint.bold(f"Step {number}") + self._paint.dim(_measures(step))]
        if step.text.strip():
            self._indented(step.text, 1)
        for call in step.calls:
            self._call(call)

    def notices(self, turn: RecordedTurn, number: int) -> None:
        """What the person was told in this step."""
        last = len(turn.steps) + 1
        for notice in turn.notices:
            if min(int(notice.get("step", 0)) + 1, last) == number:
                self.line(f"{_INDENT}! {self.clean(str(notice.get('text', '')))}")

    def ending(self, turn: RecordedTurn) -> None:
        """How it ended, and what it took."""
        outcome = (turn.outcome or "no end was recorded: it still runs, or the process died").capitalize()
        error = f" ({one_line(turn.error)})" if turn.error else ""
        after = f" after {_time(turn.seconds)}" if turn.seconds is not None else ""
        told = [counted(len(turn.steps), "step"), _tokens(turn.usage), _money(turn.cost_usd)]
        paint = self._paint.red if turn.outcome == "failed" else self._paint.bold
        self.line(paint(f"{outcome}{error}{after}"), f": {', '.join(filter(None, told))}")
        if turn.phases:
            phases = ", ".join(f"{name} {_time(seconds)}" for name, seconds in turn.phases.items())
            self.line(self._paint.dim(f"Phases: {phases}"))

    def side(self, name: str, step: RecordedStep | None, again: Replay) -> None:
        """One of two steps, in a line or a few."""
        head = f"{_INDENT}{self._paint.dim(name)}  "
        if step is None:
            self.line(head, self._paint.dim("had ended"))
            return
        if step.text.strip() or not step.calls:
            self.line(head, self._paint.dim("says "), self.clean(step.text) or "nothing")
        for call in step.calls:
            unknown = any(call.name == one.name and call.arguments == one.arguments for one in again.unrecorded)
            note = "  not recorded, not run" if unknown and name.startswith("now") else ""
            room = self._width - len(name) - len(note) - 8
            self.line(head, clipped(one_line(self._redactor.text(call.in_words)), room), self._paint.red(note))

    def diff(self, turn: RecordedTurn, again: RecordedTurn) -> None:
        """The two answers, line by line."""
        then, now = (visible(self._redactor.text(one.text)).strip().splitlines() for one in (turn, again))
        if then == now:
            self.line("The answers are the same.")
            return
        names = (turn.model or "recorded", again.model or "now")
        for line in difflib.unified_diff(then, now, *names, lineterm=""):
            self.line(_diff_paint(line, self._paint)(line))

    def _call(self, call: RecordedCall) -> None:
        took = f"  {_time(call.seconds)}" if call.seconds is not None else ""
        failed = "  failed" if call.ok is False else ""
        words = one_line(self._redactor.text(call.in_words))
        shown = clipped(f"{_INDENT}> {words}", self._width - len(took) - len(failed))
        self.line(shown, self._paint.dim(took), self._paint.red(failed))
        if call.asked is not None:
            asked = one_line(self._redactor.text(json.dumps(call.asked, ensure_ascii=False, default=str)))
            self.line(self._paint.dim(clipped(f"{_INDENT * 2}a hook made it of {asked}", self._width)))
        if call.result is None:
            self.line(self._paint.dim(f"{_INDENT * 2}no result was kept"))
            return
        lines = visible(self._redactor.text(call.result)).expandtabs(4).strip("\n").splitlines()
        for line in lines[:RESULT_LINES]:
            self.line(self._paint.dim(clipped(_INDENT * 2 + line, self._width)))
        if len(lines) > RESULT_LINES:
            self.line(self._paint.dim(f"{_INDENT * 2}... {counted(len(lines) - RESULT_LINES, 'more line')}"))

    def _indented(self, text: str, depth: int) -> None:
        self.lines += textwrap.indent(visible(self._redactor.text(text)).strip(), _INDENT * depth).splitlines()


def _named(turn: RecordedTurn) -> str:
    return one_line(f"{turn.session}, turn {turn.turn_id}")


def _asked(turn: RecordedTurn) -> str:
    return one_line(f"{turn.model} ({turn.provider})")


def _measures(step: RecordedStep) -> str:
    first = f"first word after {_time(step.first_s)}" if step.first_s is not None and step.first_s >= 0.1 else ""
    finish = "" if step.finish in ("stop", "tool_calls", "") else step.finish.replace("_", " ")
    told = [_time(step.seconds), first, _tokens(step.usage), _money(step.cost_usd), finish]
    return "".join(f"  {one}" for one in told if one)


def _mark(difference: Difference | None, step: int, paint: Paint) -> str:
    return paint.red("  here they part") if difference is not None and difference.step == step else ""


def _parting(difference: Difference | None, page: _Page) -> Iterator[str]:
    """Where they part, in a sentence."""
    if difference is None:
        yield "No difference: the same calls, and the same words."
        return
    yield f"First difference: {difference.what} in step {difference.step}"
    if difference.what == "other words":
        yield "; all calls were the same."
        return
    yield f", {page.clean(difference.replayed) or 'nothing'}"
    yield f" where the recorded turn had {page.clean(difference.recorded) or 'nothing'}."


def _sums(name: str, turn: RecordedTurn) -> str:
    count = {key: f"{turn.usage.get(f'{key}_tokens', 0):,}" for key in ("prompt", "cached", "completion")}
    figures = f"{count['prompt']:>10}{count['cached']:>10}{count['completion']:>8}{_time(turn.seconds):>10}"
    return f"{name:9}{len(turn.steps):>6}{figures}  {_money(turn.cost_usd) or 'no price known'}"


def _tokens(usage: Mapping[str, int]) -> str:
    sent, cached = usage.get("prompt_tokens", 0), usage.get("cached_tokens", 0)
    if not sent and not usage.get("completion_tokens"):
        return ""
    share = f" ({cached:,} cached)" if cached else ""
    return f"{sent:,} tokens in{share}, {usage.get('completion_tokens', 0):,} out"


def _money(usd: float | None) -> str:
    return "" if usd is None else dollars(usd)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 0.001:
        return "<1 ms"
    if seconds < 0.1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:,.0f} s"


def _when(text: str, *, seconds: bool = False) -> str:
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M")
    except ValueError:
        return text


def _diff_paint(line: str, paint: Paint) -> Callable[[str], str]:
    if line.startswith("+"):
        return paint.green
    return paint.red if line.startswith("-") else paint.dim
