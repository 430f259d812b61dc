"""The trace of one turn: an event sink that collects facts and passes them on in one or a few records.

A short turn is one line on disk. A long turn is written periodically, so that a kill loses little. Texts are not
collected, since the session has them.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from nanobot.agent import events
from nanobot.agent.engine.spec import RunSpec
from nanobot.bus.events import InboundMessage
from nanobot.utils.clock import Clock, timestamp

Facts = dict[str, Any]
"""A line of a trace: `turn`, `session`, and what is new since the previous line. The fields are in docs/formats.md."""

MAX_NOTICES = 40
_MAX_KEYS, _MAX_ITEMS, _MAX_DEPTH = 16, 8, 3


@dataclass(slots=True)
class TraceRecord:
    """Facts to be written. `prompt` is stored once for all turns and referred to by hash."""

    facts: Facts
    prompt: dict[str, object] = field(default_factory=dict)


class TurnTrace:
    """The sink of one turn. Never blocks or raises. `close` passes on the rest; later events are ignored."""

    def __init__(
        self,
        turn_id: str,
        message: InboundMessage,
        clock: Clock,
        put: Callable[[TraceRecord], None],
        *,
        workspace: str = "",
        first_s: float = 0.25,
        every_s: float = 2.0,
    ) -> None:
        """`put` gets the first record after `first_s` of work, later ones at most every `every_s` seconds."""
        self._clock = clock
        self._put = put
        self._every_s = every_s
        self._next_s = first_s
        self._started = clock.monotonic()
        self._turn_ids: Facts = {"turn": turn_id, "session": message.session_key}
        workspace_facts = {"workspace": workspace} if workspace else {}
        message_facts = {"at": timestamp(clock), "origin": message.origin.value, "message": message.content}
        self._record = TraceRecord({**self._turn_ids, **workspace_facts, **message_facts})
        self._step: Facts | None = None
        self._calls: dict[str, Facts] = {}
        self._steps = self._notices = 0
        self._timer: asyncio.TimerHandle | None = None
        self._run_recorded = self._closed = False

    def __call__(self, event: events.TurnEvent) -> None:
        handler = self._handlers.get(type(event))
        if handler is not None and not self._closed:
            handler(self, event)

    def set_message(self, text: str) -> None:
        """Replace the message by what hooks made of it."""
        if "message" in self._record.facts:
            self._record.facts["message"] = text

    def record_request(self, spec: RunSpec) -> None:
        """Record what the model is sent besides the session's rows.

        Only the first run of a turn counts.
        """
        if self._run_recorded:
            return
        self._run_recorded = True
        model = spec.model
        until = spec.history[-1].get("timestamp") if spec.history else None
        self._record.prompt = {"system": spec.system, "tools": spec.tools.get_definitions(), "limits": model.limits}
        self._set(model=model.name, provider=model.provider_name, history=len(spec.history), until=until)

    def close(self) -> None:
        """End the trace. Safe to call twice."""
        if self._closed:
            return
        if self._step is not None:
            self._end_step()
        self._flush()
        self._closed = True

    # --- events

    def _run_started(self, event: events.RunStarted) -> None:
        self._set(model=event.model)

    def _step_started(self, event: events.StepStarted) -> None:
        if self._step is not None:
            self._end_step()
        self._step = {"at": self._elapsed()}

    def _first_token(self, event: events.TurnEvent) -> None:
        step = self._open_step()
        step.setdefault("first_s", _round(self._elapsed() - step["at"]))

    def _text_ended(self, event: events.TextEnded) -> None:
        step = self._open_step()
        step["said"] = step.get("said", 0) + len(event.text)

    def _tool_started(self, event: events.ToolStarted) -> None:
        call = {"id": event.call_id, "tool": event.name, "at": self._elapsed(), "args": bound_value(event.arguments)}
        if event.asked is not None:
            call["asked"] = bound_value(event.asked)
        self._calls[event.call_id] = call
        self._open_step().setdefault("calls", []).append(call)

    def _tool_ended(self, event: events.ToolEnded) -> None:
        call = self._calls.pop(event.call_id, None)
        if call is None:
            call = {"id": event.call_id, "tool": event.name}
            self._open_step().setdefault("calls", []).append(call)
        call |= {"seconds": _round(event.seconds), "ok": event.ok, "size": len(event.content)}
        if not event.ok:
            call["error"] = event.content

    def _step_ended(self, event: events.StepEnded) -> None:
        step = self._open_step()
        step |= {"finish": event.finish_reason, "usage": event.usage}
        if event.cost_usd is not None:
            step["usd"] = event.cost_usd
        self._end_step()

    def _notice(self, event: events.Notice) -> None:
        self._add_notice(event.kind.value, event.text)

    def _approval_asked(self, event: events.ApprovalAsked) -> None:
        self._add_notice("asked", event.text)

    def _approval_answered(self, event: events.ApprovalAnswered) -> None:
        self._add_notice("answered", event.answer.value)

    def _approval_refused(self, event: events.ApprovalRefused) -> None:
        self._add_notice("refused", f"{event.text}\n{event.reason}")

    def _add_notice(self, kind: str, text: str) -> None:
        self._notices += 1
        if self._notices <= MAX_NOTICES:
            self._add("notices", {"at": self._elapsed(), "step": self._steps, "kind": kind, "text": text})

    def _turn_ended(self, event: events.TurnEnded) -> None:
        facts: Facts = {"seconds": self._elapsed(), "phases": _round_all(event.phase_seconds), "usage": event.usage}
        if event.cost_usd is not None:
            facts["usd"] = event.cost_usd
        if self._notices > MAX_NOTICES:
            facts["more_notices"] = self._notices - MAX_NOTICES
        if event.error is not None:
            facts["error"] = event.error
        if event.outcome is not events.TurnOutcome.ANSWERED or not self._steps:
            facts["text"] = event.text  # may be a text that the session does not have
        self._record.facts |= {"outcome": event.outcome.value, **facts}
        self.close()

    _handlers: ClassVar[dict[type[events.TurnEvent], Callable[["TurnTrace", Any], None]]] = {
        events.RunStarted: _run_started,
        events.StepStarted: _step_started,
        events.ReasoningStarted: _first_token,
        events.TextStarted: _first_token,
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

    # --- records

    def _open_step(self) -> Facts:
        if self._step is None:
            self._step = {"at": self._elapsed()}
        return self._step

    def _end_step(self) -> None:
        step = self._open_step()
        step["seconds"] = _round(self._elapsed() - step["at"])
        self._step = None
        self._steps += 1
        self._calls.clear()
        self._add("steps", step)

    def _add(self, name: str, fact: Facts) -> None:
        self._record.facts.setdefault(name, []).append(fact)
        self._flush_later()

    def _set(self, **facts: object) -> None:
        self._record.facts |= facts
        self._flush_later()

    def _flush_later(self) -> None:
        if self._timer is None:
            with suppress(RuntimeError):  # without an event loop, everything is passed on at the end
                self._timer = asyncio.get_running_loop().call_later(self._next_s, self._flush)
                self._next_s = self._every_s

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if len(self._record.facts) > len(self._turn_ids):
            self._put(self._record)
            self._record = TraceRecord({**self._turn_ids})

    def _elapsed(self) -> float:
        return _round(self._clock.monotonic() - self._started)


def bound_value(value: Any, max_depth: int = _MAX_DEPTH) -> Any:
    """Return a copy limited in depth and items. Texts are not shortened."""
    if isinstance(value, dict):
        if max_depth == 0:
            return f"{{{len(value)} keys}}"
        limited = {str(name): bound_value(item, max_depth - 1) for name, item in [*value.items()][:_MAX_KEYS]}
        return limited if len(limited) == len(value) else {**limited, "...": f"{len(value) - len(limited)} more"}
    if isinstance(value, list | tuple):
        if max_depth == 0:
            return f"[{len(value)} items]"
        items = [bound_value(item, max_depth - 1) for item in value[:_MAX_ITEMS]]
        return items if len(items) == len(value) else [*items, f"... {len(value) - len(items)} more"]
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)


def _round(seconds: float) -> float:
    return round(seconds, 4)


def _round_all(seconds: dict[str, float]) -> dict[str, float]:
    return {str(name): _round(value) for name, value in seconds.items()}
