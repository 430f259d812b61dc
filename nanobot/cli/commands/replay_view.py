"""Recorded turns as lines for a person. All text is redacted and stripped of control sequences."""

import difflib
import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nanobot.agent.trace.reader import RecordedCall, RecordedPrompt, RecordedTurn
from nanobot.agent.trace.replay import Difference
from nanobot.cli.chat.event_lines import clip_output, diff_paint
from nanobot.cli.output import format_timestamp, to_one_line
from nanobot.cli.terminal import Paint, strip_control
from nanobot.messages.shown import shown_text
from nanobot.messages.types import ChatMessage
from nanobot.providers.wire.rows import wire_text
from nanobot.security.secrets import redact_named
from nanobot.usage.types import format_dollars
from nanobot.utils.text import count_noun

RESULT_LINES = 5


def turn_summary(turn: RecordedTurn) -> dict[str, Any]:
    """A turn in a list, as JSON data."""
    return {
        "turn": turn.turn_id,
        "at": turn.at,
        "outcome": turn.outcome or "unfinished",
        "seconds": turn.seconds,
        **{name: turn.usage.get(name, 0) for name in ("prompt_tokens", "completion_tokens", "cached_tokens")},
        "cost_usd": turn.cost_usd,
        "first_words": to_one_line(redact_named(turn.message))[:200],
    }


def turn_row(turn: RecordedTurn) -> list[str]:
    """A turn in a table."""
    tokens = turn.usage.get("prompt_tokens", 0) + turn.usage.get("completion_tokens", 0)
    return [
        turn.turn_id,
        format_timestamp(turn.at),
        turn.outcome or "unfinished",
        _format_seconds(turn.seconds),
        f"{tokens:,}" if tokens else "",
        _format_cost(turn.cost_usd),
        to_one_line(redact_named(turn.message))[:200],
    ]


@dataclass(frozen=True, slots=True)
class TurnPrinter:
    """Formats turns for a terminal."""

    paint: Paint
    width: int

    def turn(self, turn: RecordedTurn) -> list[str]:
        """A turn from its message to its end."""
        origin = f", from {to_one_line(turn.origin)}" if turn.origin else ""
        title = self.paint.bold(to_one_line(f"{turn.session}, turn {turn.turn_id}"))
        lines = [f"{title}, {format_timestamp(turn.at, seconds=True)}{origin}"]
        if turn.model:
            before = count_noun(int((turn.traced or {}).get("history", 1)) - 1, "message")
            lines.append(self.paint.dim(to_one_line(f"{turn.model} ({turn.provider}), {before} before it")))
        elif turn.traced is None:
            lines.append(self.paint.dim("This turn was not traced; shown is what the session contains."))
        lines += self._speech("You", turn.message)
        for number, step in enumerate(turn.steps):
            for row in step.joined:
                lines += self._speech("You, meanwhile", shown_text(row))
            first = step.first_s if step.first_s is not None and step.first_s >= 0.1 else None
            measures = [
                _format_seconds(step.seconds),
                f"first word after {_format_seconds(first)}" if first is not None else "",
                _format_usage(step.usage),
                _format_cost(step.cost_usd),
                "" if step.finish in ("stop", "tool_calls") else step.finish.replace("_", " "),
            ]
            head = self.paint.bold(f"Step {number + 1}")
            lines += ["", head + self.paint.dim("".join(f"  {measure}" for measure in measures if measure))]
            lines += self._indented(step.text)
            for call in step.calls:
                lines += self._call(call)
            lines += self._notices(turn, number)
        lines += self._notices(turn, len(turn.steps))
        if turn.text.strip() not in "".join(step.text for step in turn.steps):
            lines += self._speech("nanobot", turn.text)
        outcome = (turn.outcome or "no end was recorded: it is still running, or the process died").capitalize()
        error = f" ({to_one_line(turn.error)})" if turn.error else ""
        after = f" after {_format_seconds(turn.seconds)}" if turn.seconds is not None else ""
        totals = [count_noun(len(turn.steps), "step"), _format_usage(turn.usage), _format_cost(turn.cost_usd)]
        paint = self.paint.red if turn.outcome == "failed" else self.paint.bold
        lines += ["", f"{paint(f'{outcome}{error}{after}')}: {', '.join(filter(None, totals))}"]
        if turn.phases:
            phases = ", ".join(f"{name} {_format_seconds(seconds)}" for name, seconds in turn.phases.items())
            lines.append(self.paint.dim(f"Phases: {phases}"))
        return lines

    def prompt(self, prompt: RecordedPrompt, messages: list[ChatMessage]) -> list[str]:
        """The first request of a turn: system prompt, tool names and messages."""
        system, sent = self._clean(prompt.system), [row for row in messages if row["role"] != "system"]
        names = ", ".join(str(schema["function"]["name"]) for schema in prompt.tools)
        lines = [self.paint.bold(f"System prompt, {len(system):,} characters"), "", system.rstrip()]
        lines += ["", self.paint.bold(count_noun(len(prompt.tools), "tool")), "", names]
        lines += ["", self.paint.bold(count_noun(len(sent), "message"))]
        for row in sent:
            name = f" {row.get('name', '')}" if row["role"] == "tool" else ""
            lines += ["", self.paint.dim(f"{row['role']}{name}:"), *self._clean(wire_text(row)).rstrip().splitlines()]
            for call in row.get("tool_calls") or ():
                lines.append(f"> {call['function']['name']} {self._clean(call['function']['arguments'])}")
        return lines

    def comparison(self, recorded: RecordedTurn, replayed: RecordedTurn, difference: Difference | None) -> list[str]:
        """How a replayed turn differs: both turns, the first difference, the answers, and the cost."""
        lines = [*self.turn(recorded), "", self.paint.bold("The same turn, again. No tool ran."), ""]
        lines += [*self.turn(replayed), ""]
        if difference is not None:
            found = f"First difference: {difference.what} in step {difference.step}"
            rest = "; all calls were the same."
            if difference.what != "other words":
                before, after = self._one_line(difference.recorded), self._one_line(difference.replayed)
                rest = f", {after or 'nothing'} where the recorded turn had {before or 'nothing'}."
            lines += [self.paint.bold(found + rest), ""]
        elif replayed.outcome != "failed":
            lines += [self.paint.bold("No difference: same calls, same text."), ""]
        then, now = (self._clean(turn.text).strip().splitlines() for turn in (recorded, replayed))
        if replayed.outcome == "failed":
            lines.append(f"{self.paint.red('It failed: ')}{self._one_line(replayed.text)}")
        elif then == now:
            lines.append("The answers are the same.")
        else:
            diff = difflib.unified_diff(then, now, recorded.model or "recorded", replayed.model or "now", lineterm="")
            lines += [diff_paint(line, self.paint)(line) for line in diff]
        lines += ["", self.paint.dim(f"{'':9}{'steps':>6}{'in':>10}{'cached':>10}{'out':>8}{'time':>10}  cost")]
        for name, turn in (("recorded", recorded), ("now", replayed)):
            tokens = [turn.usage.get(f"{kind}_tokens", 0) for kind in ("prompt", "cached", "completion")]
            figures = f"{tokens[0]:>10,}{tokens[1]:>10,}{tokens[2]:>8,}{_format_seconds(turn.seconds):>10}"
            cost = _format_cost(turn.cost_usd) or "no price known"
            lines.append(f"{name:9}{len(turn.steps):>6}{figures}  {cost}")
        return lines

    def _call(self, call: RecordedCall) -> list[str]:
        duration = f"  {_format_seconds(call.seconds)}" if call.seconds is not None else ""
        failed = "  failed" if call.ok is False else ""
        words = to_one_line(redact_named(call.summary))
        shown = clip_output(f"  > {words}", self.width - len(duration) - len(failed))
        lines = [shown + self.paint.dim(duration) + self.paint.red(failed)]
        details = []
        if call.asked is not None:
            asked = to_one_line(redact_named(json.dumps(call.asked, ensure_ascii=False, default=str)))
            details.append(f"changed by a hook from {asked}")
        if call.result is None:
            details.append("no result was stored")
        else:
            result = self._clean(call.result).expandtabs(4).strip("\n").splitlines()
            details += result[:RESULT_LINES]
            if len(result) > RESULT_LINES:
                details.append(f"... {count_noun(len(result) - RESULT_LINES, 'more line')}")
        return lines + [self.paint.dim(clip_output(f"    {line}", self.width)) for line in details]

    def _notices(self, turn: RecordedTurn, step: int) -> list[str]:
        """The notices of this step, counted from 0."""
        told = [notice["text"] for notice in turn.notices if min(notice.get("step", 0), len(turn.steps)) == step]
        return [f"  ! {self._one_line(text)}" for text in told]

    def _speech(self, who: str, text: str) -> list[str]:
        return ["", self.paint.bold(who), *self._indented(text)]

    def _indented(self, text: str) -> list[str]:
        return textwrap.indent(self._clean(text).strip(), "  ").splitlines()

    def _one_line(self, text: str) -> str:
        return clip_output(to_one_line(redact_named(text)), self.width - 12)

    def _clean(self, text: str) -> str:
        return strip_control(redact_named(text))


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
