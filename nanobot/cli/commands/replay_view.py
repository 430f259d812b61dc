"""Formatting recorded turns: one turn, its first request, and a comparison of two."""

import difflib
import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest

from nanobot.agent.trace.reader import RecordedCall, RecordedPrompt, RecordedStep, RecordedTurn
from nanobot.agent.trace.replay import Difference, Replay
from nanobot.cli.chat.event_lines import clip_output, diff_paint
from nanobot.cli.output import format_timestamp, to_one_line
from nanobot.cli.terminal import Paint, strip_control
from nanobot.messages.shown import shown_text
from nanobot.messages.types import ChatMessage
from nanobot.providers.wire.chat_request import wire_text
from nanobot.security.secrets import Redactor
from nanobot.usage.types import format_dollars
from nanobot.utils.text import count_noun

RESULT_LINES = 5
UNFINISHED = "unfinished"
_INDENT = "  "


@dataclass(frozen=True, slots=True)
class ReplayedTurn:
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
    def of(cls, turn: RecordedTurn, redactor: Redactor) -> "ReplayedTurn":
        """Summarise a turn for the list."""
        return cls(
            turn=turn.turn_id,
            at=turn.at,
            outcome=turn.outcome or UNFINISHED,
            seconds=turn.seconds,
            prompt_tokens=turn.usage.get("prompt_tokens", 0),
            completion_tokens=turn.usage.get("completion_tokens", 0),
            cached_tokens=turn.usage.get("cached_tokens", 0),
            cost_usd=turn.cost_usd,
            first_words=to_one_line(redactor.text(turn.message))[:200],
        )

    def as_row(self) -> list[str]:
        """For a table."""
        tokens = f"{self.prompt_tokens + self.completion_tokens:,}" if self.prompt_tokens else ""
        return [
            self.turn,
            format_timestamp(self.at),
            self.outcome,
            _format_seconds(self.seconds),
            tokens,
            _format_cost(self.cost_usd),
            self.first_words,
        ]


def turn_lines(turn: RecordedTurn, redactor: Redactor, paint: Paint, width: int) -> list[str]:
    """A turn from its message to its end."""
    page = _Page(redactor, paint, width)
    origin = f", from {to_one_line(turn.origin)}" if turn.origin else ""
    page.line(paint.bold(_turn_title(turn)), f", {format_timestamp(turn.at, seconds=True)}{origin}")
    if turn.model:
        before = int((turn.traced or {}).get("history", 1)) - 1
        page.line(paint.dim(f"{_model_label(turn)}, {count_noun(before, 'message')} before it"))
    elif turn.traced is None:
        page.line(paint.dim("This turn was not traced; shown is what the session contains."))
    page.speech("You", turn.message)
    for number, step in enumerate(turn.steps, 1):
        for row in step.joined:
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
    """The first request of a turn: system prompt, tool names and messages."""
    system = strip_control(redactor.text(prompt.system))
    names = ", ".join(str(schema["function"]["name"]) for schema in prompt.tools)
    lines = [paint.bold(f"System prompt, {len(system):,} characters"), "", system.rstrip()]
    lines += ["", paint.bold(count_noun(len(prompt.tools), "tool")), "", names]
    sent = [row for row in messages if row["role"] != "system"]
    lines += ["", paint.bold(count_noun(len(sent), "message"))]
    for row in sent:
        name = f" {row.get('name', '')}" if row["role"] == "tool" else ""
        lines += ["", paint.dim(f"{row['role']}{name}:")]
        lines += filter(None, [strip_control(redactor.text(wire_text(row))).rstrip()])
        for call in row.get("tool_calls") or ():
            function = call["function"]
            lines.append(f"> {function['name']} {strip_control(redactor.text(function['arguments']))}")
    return lines


def against_lines(
    turn: RecordedTurn, replayed: Replay, difference: Difference | None, redactor: Redactor, paint: Paint, width: int
) -> list[str]:
    """Compare a recorded and a replayed turn: steps, first difference, answers and cost."""
    page = _Page(redactor, paint, width)
    page.line(paint.bold(f"{_turn_title(turn)}, again"))
    page.line(paint.dim(f"recorded: {_model_label(turn)}"))
    page.line(paint.dim(f"now:      {_model_label(replayed.turn)}; no tool ran"))
    page.speech("You", turn.message)
    for number, (recorded, current) in enumerate(zip_longest(turn.model_steps, replayed.turn.model_steps), 1):
        page.line("")
        page.line(paint.bold(f"Step {number}") + _difference_mark(difference, number, paint))
        page.side("recorded", recorded, replayed)
        page.side("now     ", current, replayed)
    if difference is not None or replayed.turn.outcome != "failed":
        page.line("")
        page.line(paint.bold("".join(_describe_difference(difference, page))))
    page.line("")
    if replayed.turn.outcome == "failed":
        page.line(paint.red("It failed: "), page.clean(replayed.turn.text))
    else:
        page.diff(turn, replayed.turn)
    page.line("")
    page.line(paint.dim(f"{'':9}{'steps':>6}{'in':>10}{'cached':>10}{'out':>8}{'time':>10}  cost"))
    for name, item in (("recorded", turn), ("now", replayed.turn)):
        page.line(_format_totals(name, item))
    return page.lines


class _Page:
    """Collects output lines. Text from models, tools and users is redacted and stripped of control sequences."""

    def __init__(self, redactor: Redactor, paint: Paint, width: int) -> None:
        self.lines: list[str] = []
        self._redactor = redactor
        self._paint = paint
        self._width = max(width, 40)

    def line(self, *parts: str) -> None:
        """Add a line as it is."""
        self.lines.append("".join(parts))

    def clean(self, text: str) -> str:
        """The text redacted, in one line that fits the width."""
        return clip_output(to_one_line(self._redactor.text(text)), self._width - 12)

    def speech(self, who: str, text: str) -> None:
        """Add a message under the name of its speaker."""
        self.lines += ["", self._paint.bold(who)]
        self._indented(text, 1)

    def step(self, number: int, step: RecordedStep) -> None:
        """Add a model call and its tool calls."""
        self.lines += ["", self._paint.bold(f"Step {number}") + self._paint.dim(_format_measures(step))]
        if step.text.strip():
            self._indented(step.text, 1)
        for call in step.calls:
            self._call(call)

    def notices(self, turn: RecordedTurn, number: int) -> None:
        """Add the notices of this step."""
        last = len(turn.steps) + 1
        for notice in turn.notices:
            if min(int(notice.get("step", 0)) + 1, last) == number:
                self.line(f"{_INDENT}! {self.clean(str(notice.get('text', '')))}")

    def ending(self, turn: RecordedTurn) -> None:
        """Add the outcome, duration and cost."""
        outcome = (turn.outcome or "no end was recorded: it is still running, or the process died").capitalize()
        error = f" ({to_one_line(turn.error)})" if turn.error else ""
        after = f" after {_format_seconds(turn.seconds)}" if turn.seconds is not None else ""
        parts = [count_noun(len(turn.steps), "step"), _format_usage(turn.usage), _format_cost(turn.cost_usd)]
        paint = self._paint.red if turn.outcome == "failed" else self._paint.bold
        self.line(paint(f"{outcome}{error}{after}"), f": {', '.join(filter(None, parts))}")
        if turn.phases:
            phases = ", ".join(f"{name} {_format_seconds(seconds)}" for name, seconds in turn.phases.items())
            self.line(self._paint.dim(f"Phases: {phases}"))

    def side(self, name: str, step: RecordedStep | None, replayed: Replay) -> None:
        """Add one side of a compared step."""
        head = f"{_INDENT}{self._paint.dim(name)}  "
        if step is None:
            self.line(head, self._paint.dim("(already ended)"))
            return
        if step.text.strip() or not step.calls:
            self.line(head, self._paint.dim("says "), self.clean(step.text) or "nothing")
        for call in step.calls:
            unknown = any((call.name, call.arguments) == (other.name, other.arguments) for other in replayed.unrecorded)
            note = "  not recorded, not run" if unknown and name.startswith("now") else ""
            room = self._width - len(name) - len(note) - 8
            self.line(head, clip_output(to_one_line(self._redactor.text(call.summary)), room), self._paint.red(note))

    def diff(self, turn: RecordedTurn, replayed: RecordedTurn) -> None:
        """Add a unified diff of the two answers."""
        recorded, current = (
            strip_control(self._redactor.text(item.text)).strip().splitlines() for item in (turn, replayed)
        )
        if recorded == current:
            self.line("The answers are the same.")
            return
        names = (turn.model or "recorded", replayed.model or "now")
        for line in difflib.unified_diff(recorded, current, *names, lineterm=""):
            self.line(diff_paint(line, self._paint)(line))

    def _call(self, call: RecordedCall) -> None:
        duration = f"  {_format_seconds(call.seconds)}" if call.seconds is not None else ""
        failed = "  failed" if call.ok is False else ""
        words = to_one_line(self._redactor.text(call.summary))
        shown = clip_output(f"{_INDENT}> {words}", self._width - len(duration) - len(failed))
        self.line(shown, self._paint.dim(duration), self._paint.red(failed))
        if call.asked is not None:
            asked = to_one_line(self._redactor.text(json.dumps(call.asked, ensure_ascii=False, default=str)))
            self.line(self._paint.dim(clip_output(f"{_INDENT * 2}changed by a hook from {asked}", self._width)))
        if call.result is None:
            self.line(self._paint.dim(f"{_INDENT * 2}no result was stored"))
            return
        lines = strip_control(self._redactor.text(call.result)).expandtabs(4).strip("\n").splitlines()
        for line in lines[:RESULT_LINES]:
            self.line(self._paint.dim(clip_output(_INDENT * 2 + line, self._width)))
        if len(lines) > RESULT_LINES:
            self.line(self._paint.dim(f"{_INDENT * 2}... {count_noun(len(lines) - RESULT_LINES, 'more line')}"))

    def _indented(self, text: str, depth: int) -> None:
        self.lines += textwrap.indent(strip_control(self._redactor.text(text)).strip(), _INDENT * depth).splitlines()


def _turn_title(turn: RecordedTurn) -> str:
    return to_one_line(f"{turn.session}, turn {turn.turn_id}")


def _model_label(turn: RecordedTurn) -> str:
    return to_one_line(f"{turn.model} ({turn.provider})")


def _format_measures(step: RecordedStep) -> str:
    first = (
        f"first word after {_format_seconds(step.first_s)}" if step.first_s is not None and step.first_s >= 0.1 else ""
    )
    finish = "" if step.finish in ("stop", "tool_calls", "") else step.finish.replace("_", " ")
    parts = [_format_seconds(step.seconds), first, _format_usage(step.usage), _format_cost(step.cost_usd), finish]
    return "".join(f"  {item}" for item in parts if item)


def _difference_mark(difference: Difference | None, step: int, paint: Paint) -> str:
    return paint.red("  first difference") if difference is not None and difference.step == step else ""


def _describe_difference(difference: Difference | None, page: _Page) -> Iterator[str]:
    """The first difference, as parts of a sentence."""
    if difference is None:
        yield "No difference: same calls, same text."
        return
    yield f"First difference: {difference.what} in step {difference.step}"
    if difference.what == "other words":
        yield "; all calls were the same."
        return
    yield f", {page.clean(difference.replayed) or 'nothing'}"
    yield f" where the recorded turn had {page.clean(difference.recorded) or 'nothing'}."


def _format_totals(name: str, turn: RecordedTurn) -> str:
    count = {key: f"{turn.usage.get(f'{key}_tokens', 0):,}" for key in ("prompt", "cached", "completion")}
    figures = f"{count['prompt']:>10}{count['cached']:>10}{count['completion']:>8}{_format_seconds(turn.seconds):>10}"
    return f"{name:9}{len(turn.steps):>6}{figures}  {_format_cost(turn.cost_usd) or 'no price known'}"


def _format_usage(usage: Mapping[str, int]) -> str:
    sent, cached = usage.get("prompt_tokens", 0), usage.get("cached_tokens", 0)
    if not sent and not usage.get("completion_tokens"):
        return ""
    share = f" ({cached:,} cached)" if cached else ""
    return f"{sent:,} tokens in{share}, {usage.get('completion_tokens', 0):,} out"


def _format_cost(usd: float | None) -> str:
    return "" if usd is None else format_dollars(usd)


def _format_seconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 0.001:
        return "<1 ms"
    if seconds < 0.1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:,.0f} s"
