"""The trace of one turn: a sink that gathers what happened as facts, and hands them on in one piece, or a few.

A quick turn is one line on the disk. Of a turn that lasts, what is known is handed on from time to time, so that a kill
in the middle of it leaves more than the rows of its session. Text is not gathered: it is in the session.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from nanobot.agent import turn as events
from nanobot.agent.run.spec import RunSpec
from nanobot.bus.events import InboundMessage
from nanobot.utils.clock import Clock, timestamp

Facts = dict[str, Any]
"""A line of a trace: `turn`, `session`, and what was learnt since the line before. docs/formats.md has the fields."""

MOST_NOTICES = 40
_MOST_KEYS, _MOST_ITEMS, _DEEPEST = 16, 8, 3


@dataclass(slots=True)
class Piece:
    """Facts on their way to the disk. `prompt` is what is stored once for all turns, and referred to."""

    facts: Facts
    prompt: dict[str, object] = field(default_factory=dict)


class TurnTrace:
    """One turn's sink. Neither blocks nor raises. `close` hands on what is left; after it nothing is taken in."""

    def __init__(
        self,
        turn_id: str,
        message: InboundMessage,
        clock: Clock,
        put: Callable[[Piece], None],
        *,
        workspace: str = "",
        first_s: float = 0.25,
        every_s: float = 2.0,
    ) -> None:
        """`put` is handed the first piece after `first_s` of work, later ones at most every so many seconds."""
        self._clock = clock
        self._put = put
        self._every_s = every_s
        self._next_s = first_s
        self._started = clock.monotonic()
        self._who: Facts = {"turn": turn_id, "session": message.session_key}
        where = {"workspace": workspace} if workspace else {}
        said = {"at": timestamp(clock), "origin": message.origin.value, "message": message.content}
        self._piece = Piece({**self._who, **where, **said})
        self._step: Facts | None = None
        self._calls: dict[str, Facts] = {}
        self._steps = self._notices = 0
        self._timer: asyncio.TimerHandle | None = None
        self._asked = self._closed = False

    def __call__(self, event: events.TurnEvent) -> None:
        """Take in what happened."""
        take = self._takes.get(type(event))
        if take is not None and not self._closed:
            take(self, event)

    def heard(self, text: str) -> None:
        """What hooks made of the message is what was asked."""
        if "message" in self._piece.facts:
            self._piece.facts["message"] = text

    def runs(self, spec: RunSpec) -> None:
        """The run begins: this is what the model is sent, beside the rows that its session keeps.

        Of several runs of one turn the first one counts.
        """
        if self._asked:
            return
        self._asked = True
        model = spec.model
        until = spec.history[-1].get("timestamp") if spec.history else None
        self._piece.prompt = {"system": spec.system, "tools": spec.tools.get_definitions(), "limits": model.limits}
        self._learn(model=model.name, provider=model.provider_name, history=len(spec.history), until=until)

    def close(self) -> None:
        """The turn is over, whatever became of it. Doing it twice is harmless."""
        if self._closed:
            return
        if self._step is not None:
            self._end_step()
        self._hand_on()
        self._closed = True

    # --- what happened

    def _run_started(self, event: events.RunStarted) -> None:
        self._learn(model=event.model)

    def _step_started(self, event: events.StepStarted) -> None:
        if self._step is not None:
            self._end_step()
        self._step = {"at": self._since()}

    def _first_word(self, event: events.TurnEvent) -> None:
        step = self._open_step()
        step.setdefault("first_s", _rounded(self._since() - step["at"]))

    def _text_ended(self, event: events.TextEnded) -> None:
        step = self._open_step()
        step["said"] = step.get("said", 0) + len(event.text)

    def _tool_started(self, event: events.ToolStarted) -> None:
        call = {"id": event.call_id, "tool": event.name, "at": self._since(), "args": bounded(event.arguments)}
        if event.asked is not None:
            call["asked"] = bounded(event.asked)
        self._calls[event.call_id] = call
        self._open_step().setdefault("calls", []).append(call)

    def _tool_ended(self, event: events.ToolEnded) -> None:
        call = self._calls.pop(event.call_id, None)
        if call is None:
            call = {"id": event.call_id, "tool": event.name}
            self._open_step().setdefault("calls", []).append(call)
        call |= {"seconds": _rounded(event.seconds), "ok": event.ok, "size": len(event.content)}
        if not event.ok:
            call["error"] = event.content

    def _step_ended(self, event: events.StepEnded) -> None:
        step = self._open_step()
        step |= {"finish": event.finish_reason, "usage": event.usage}
        if event.cost_usd is not None:
            step["usd"] = event.cost_usd
        self._end_step()

    def _notice(self, event: events.Notice) -> None:
        self._told(event.kind.value, event.text)

    def _approval_asked(self, event: events.ApprovalAsked) -> None:
        self._told("asked", event.text)

    def _approval_answered(self, event: events.ApprovalAnswered) -> None:
        self._told("answered", event.answer.value)

    def _approval_refused(self, event: events.ApprovalRefused) -> None:
        self._told("refused", f"{event.text}\n{event.reason}")

    def _told(self, kind: str, text: str) -> None:
        self._notices += 1
        if self._notices <= MOST_NOTICES:
            self._add("notices", {"at": self._since(), "step": self._steps, "kind": kind, "text": text})

    def _turn_ended(self, event: events.TurnEnded) -> None:
        facts: Facts = {"seconds": self._since(), "phases": _rounded_all(event.phase_seconds), "usage": event.usage}
        if event.cost_usd is not None:
            facts["usd"] = event.cost_usd
        if self._notices > MOST_NOTICES:
            facts["more_notices"] = self._notices - MOST_NOTICES
        if event.error is not None:
            facts["error"] = event.error
        if event.outcome is not events.TurnOutcome.ANSWERED or not self._steps:
            facts["text"] = event.text  # it may be our own word, which no row of the session has
        self._piece.facts |= {"outcome": event.outcome.value, **facts}
        self.close()

    _takes: ClassVar[dict[type[events.TurnEvent], Callable[["TurnTrace", Any], None]]] = {
        events.RunStarted: _run_started,
        events.StepStarted: _step_started,
        events.ReasoningStarted: _first_word,
        events.TextStarted: _first_word,
        events.TextEnded: _text_ended,
        events.ToolStarted: _tool_started,
        events.ToolEnded: _tool_ended,
        events.StepEnded: _step_ended,
        events.Notice: _notice,
        events.ApprovalAsked: _approval_asked,
        events.ApprovalAnswered: _approval_answered,
        events.ApprovalRefused: _approval_refused,
        events.TurnEnded: _turn_ended,
    }

    # --- handing on

    def _open_step(self) -> Facts:
        if self._step is None:
            self._step = {"at": self._since()}
        return self._step

    def _end_step(self) -> None:
        step = self._open_step()
        step["seconds"] = _rounded(self._since() - step["at"])
        self._step = None
        self._steps += 1
        self._calls.clear()
        self._add("steps", step)

    def _add(self, name: str, fact: Facts) -> None:
        self._piece.facts.setdefault(name, []).append(fact)
        self._hand_on_later()

    def _learn(self, **facts: object) -> None:
        self._piece.facts |= facts
        self._hand_on_later()

    def _hand_on_later(self) -> None:
        if self._timer is None:
            with suppress(RuntimeError):  # without an event loop it is all handed on at the end
                self._timer = asyncio.get_running_loop().call_later(self._next_s, self._hand_on)
                self._next_s = self._every_s

    def _hand_on(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if len(self._piece.facts) > len(self._who):
            self._put(self._piece)
            self._piece = Piece({**self._who})

    def _since(self) -> float:
        return _rounded(self._clock.monotonic() - self._started)


def bounded(value: Any, deepest: int = _DEEPEST) -> Any:
    """A copy that later changes do not touch, without most of what is too much to keep. Texts are left whole."""
    if isinstance(value, dict):
        if deepest == 0:
            return f"{{{len(value)} keys}}"
        kept = {str(name): bounded(inner, deepest - 1) for name, inner in [*value.items()][:_MOST_KEYS]}
        return kept if len(kept) == len(value) else {**kept, "...": f"{len(value) - len(kept)} more"}
    if isinstance(value, list | tuple):
        if deepest == 0:
            return f"[{len(value)} items]"
        items = [bounded(inner, deepest - 1) for inner in value[:_MOST_ITEMS]]
        return items if len(items) == len(value) else [*items, f"... {len(value) - len(items)} more"]
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)


def _rounded(seconds: float) -> float:
    return round(seconds, 4)


def _rounded_all(seconds: dict[str, float]) -> dict[str, float]:
    return {str(name): _rounded(value) for name, value in seconds.items()}
