"""`nanobot replay`: show a turn step by step, its prompt, or the same turn with another model.

Never writes to a session and never runs a tool. All output is redacted, since people paste it elsewhere.
"""

import asyncio
import difflib
import json as jsonlib
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from nanobot.agent.trace.reader import RecordedCall, RecordedPrompt, RecordedTurn, Recording, read_recording
from nanobot.agent.trace.replay import Difference, Replay, first_difference, request_facts
from nanobot.agent.trace.replay import replay as replay_turn
from nanobot.agent.trace.store import TraceStore
from nanobot.cli.chat.turn_output import clip_output, diff_paint
from nanobot.cli.common import JsonOption, Setup, read_setup, unknown_name_error
from nanobot.cli.output import (
    Paint,
    columns,
    format_timestamp,
    print_json,
    print_list,
    strip_control,
    to_one_line,
    when,
)
from nanobot.cli.setup import prompts
from nanobot.errors import UsageError
from nanobot.messages.types import shown_text, text_of
from nanobot.security.secrets import redact_named, redact_texts, redact_value
from nanobot.usage.types import format_dollars
from nanobot.utils.text import count_noun

_RESULT_LINES = 5


def replay(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session, from `nanobot sessions list`.")],
    turn: Annotated[
        str | None,
        typer.Argument(metavar="[TURN]", help="A turn's id or the beginning of one; -1 is the last turn (default)."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", "-l", help="List all turns of the session, oldest first.")] = False,
    prompt: Annotated[
        bool, typer.Option("--prompt", help="Show the system prompt and the messages that were sent.")
    ] = False,
    against: Annotated[
        str | None, typer.Option("--against", metavar="MODEL", help="Run the turn again with this model; no tool runs.")
    ] = None,
    json: JsonOption = False,
) -> None:
    if turn is not None and turn.startswith("-") and not turn[1:].isdigit():
        raise UsageError(f"There is no option {turn}. A turn is an id, the beginning of an id, or -1, -2 and so on.")
    if sum((list_, prompt, against is not None)) > 1 or (list_ and turn is not None):
        raise UsageError("--list takes no turn, and --list, --prompt and --against cannot be combined. Leave one out.")
    setup = read_setup()
    traces, sessions = TraceStore(setup.paths.traces), setup.sessions()
    recording = read_recording(session, sessions, traces)
    if recording is None:
        known = [str(row["key"]) for row in sessions.list_sessions()]
        raise unknown_name_error("session", session, known, "nanobot sessions list")
    printer = TurnPrinter(Paint.on(sys.stdout), max(columns(sys.stdout) or 200, 40))
    if list_:
        _print_turns(recording, as_json=json)
        return
    recorded = recording.find(turn)
    value: dict[str, Any]
    if prompt:
        facts = request_facts(recorded, recording.prompt(recorded, traces))
        value, lines = redact_texts(facts), printer.prompt(facts)
    elif against is not None:
        with prompts.on_interrupt("(stopped)"):
            replayed = asyncio.run(_replay(recorded, recording.prompt(recorded, traces), against, setup))
        difference = first_difference(recorded.steps, replayed.turn.steps)
        comparison = {
            "recorded": recorded.to_json(),
            "replayed": replayed.turn.to_json(),
            "first_difference": asdict(difference) if difference else None,
            "unrecorded": [asdict(call) for call in replayed.unrecorded],
        }
        value, lines = redact_value(comparison), printer.comparison(recorded, replayed.turn, difference)
    else:
        value, lines = redact_value(recorded.to_json()), printer.turn(recorded)
    if json:
        print_json(value)
    else:
        typer.echo("\n".join(lines))
    if against is not None and replayed.turn.outcome == "failed":
        raise typer.Exit(1)


async def _replay(turn: RecordedTurn, prompt: RecordedPrompt, model_name: str, setup: Setup) -> Replay:
    async with setup.open_runtime() as runtime:
        model = await runtime.models.get(model_name)
        return await replay_turn(turn, prompt, model, clock=runtime.clock, workspace=runtime.workspace)


def _print_turns(recording: Recording, *, as_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {
            "turn": turn.turn_id,
            "at": turn.at,
            "outcome": turn.outcome or "unfinished",
            "seconds": turn.seconds,
            **{name: turn.usage.get(name, 0) for name in ("prompt_tokens", "completion_tokens", "cached_tokens")},
            "cost_usd": turn.cost_usd,
            "first_words": to_one_line(redact_named(turn.message))[:200],
        }
        for turn in recording.turns
    ]
    shown = {
        "Turn": "turn",
        "When": when("at"),
        "Outcome": "outcome",
        "Time": lambda row: _format_seconds(row["seconds"]),
        "Tokens": lambda row: f"{tokens:,}" if (tokens := row["prompt_tokens"] + row["completion_tokens"]) else "",
        "Cost": lambda row: _format_cost(row["cost_usd"]),
        "First words": "first_words",
    }
    print_list(rows, shown, as_json=as_json, empty=f"Session {recording.key!r} has no turns yet.")


@dataclass(frozen=True, slots=True)
class TurnPrinter:
    """Formats turns as lines for a terminal, redacted and without control sequences."""

    paint: Paint
    width: int

    def turn(self, turn: RecordedTurn) -> list[str]:
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
            measures = [
                _format_seconds(step.seconds),
                f"first word after {_format_seconds(step.first_s)}" if (step.first_s or 0) >= 0.1 else "",
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

    def prompt(self, facts: Mapping[str, Any]) -> list[str]:
        """The first request of a turn: system prompt, tool names and messages."""
        system, rows = self._clean(facts["system"]), facts["messages"]
        names = ", ".join(str(schema["function"]["name"]) for schema in facts["tools"])
        lines = [self.paint.bold(f"System prompt, {len(system):,} characters"), "", system.rstrip()]
        lines += ["", self.paint.bold(count_noun(len(facts["tools"]), "tool")), "", names]
        lines += ["", self.paint.bold(count_noun(len(rows), "message"))]
        for row in rows:
            name = f" {row.get('name', '')}" if row["role"] == "tool" else ""
            lines += ["", self.paint.dim(f"{row['role']}{name}:"), *self._clean(row["content"]).rstrip().splitlines()]
            for call in row.get("tool_calls") or ():
                lines.append(f"> {call['function']['name']} {self._clean(call['function']['arguments'])}")
        return lines

    def comparison(self, recorded: RecordedTurn, replayed: RecordedTurn, difference: Difference | None) -> list[str]:
        """Both turns, each with its cost, then the first difference and a diff of the answers."""
        lines = [*self.turn(recorded), "", self.paint.bold("The same turn, again. No tool ran."), ""]
        lines += [*self.turn(replayed), ""]
        if difference is not None:
            before, after = self._one_line(difference.recorded), self._one_line(difference.replayed)
            what = f", {after or 'nothing'} where the recorded turn had {before or 'nothing'}."
            rest = "; all calls were the same." if difference.what == "other words" else what
            lines += [self.paint.bold(f"First difference: {difference.what} in step {difference.step}{rest}"), ""]
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
        return lines

    def _call(self, call: RecordedCall) -> list[str]:
        duration = f"  {_format_seconds(call.seconds)}" if call.seconds is not None else ""
        failed = "  failed" if call.ok is False else ""
        words = to_one_line(redact_named(call.summary))
        head = clip_output(f"  > {words}", self.width - len(duration) - len(failed))
        details = []
        if call.asked is not None:
            asked = to_one_line(redact_named(jsonlib.dumps(call.asked, ensure_ascii=False, default=str)))
            details.append(f"changed by a hook from {asked}")
        result = ["no result was stored"]
        if call.content is not None:
            result = self._clean(text_of(call.content)).expandtabs(4).strip("\n").splitlines()
        details += result[:_RESULT_LINES]
        if len(result) > _RESULT_LINES:
            details.append(f"... {count_noun(len(result) - _RESULT_LINES, 'more line')}")
        lines = [self.paint.dim(clip_output(f"    {line}", self.width)) for line in details]
        return [head + self.paint.dim(duration) + self.paint.red(failed), *lines]

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
    if seconds < 0.1:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else "<1 ms"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:,.0f} s"
