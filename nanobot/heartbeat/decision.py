"""Asks a model whether a task is due now: a small prompt without history, answered by one tool call."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.providers.base import LLMResponse
from nanobot.utils.clock import zone_name
from nanobot.utils.text import clip

OK = "HEARTBEAT_OK"
"""What a model answers if there is nothing to do or to report."""
_MAX_TASK_CHARS = 5_000
"""Limit of the task list, so that the prompt stays below 2,000 tokens."""
_MAX_MINUTES = 7 * 24 * 60

_SYSTEM = """\
You look after the standing tasks of a personal AI agent. You are asked at a regular interval, and remember nothing of \
the last time but the list of what was done. Decide whether one of the tasks has to be worked on right now, and call \
`heartbeat` once; write nothing else.

- `skip`: nothing is due, or what is due was done already. `run`: something is due; put into `tasks` what is to be \
done now, complete in itself.
- `again_in_minutes`: only if nothing can be due before then, and that is later than the next interval. Leave it out \
where you are not sure. You are asked earlier if the file or the day changes."""

HEARTBEAT: ToolSchema = {
    "type": "function",
    "function": {
        "name": "heartbeat",
        "description": "Say whether a standing task has to be worked on now.",
        "parameters": {
            "type": "object",
            "properties": {
                "action": {"type": "string", "enum": ["skip", "run"]},
                "tasks": {"type": "string", "description": "What is to be done now; only with run."},
                "again_in_minutes": {
                    "type": "integer",
                    "minimum": 1,
                    "description": "Minutes until the next question, if it may be later than usual.",
                },
            },
            "required": ["action"],
        },
    },
}


@dataclass(frozen=True, slots=True)
class Decision:
    """The tasks to do now (empty for none), and when the model wants to be asked again."""

    tasks: str = ""
    again_in_s: float | None = None


def decision_prompt(
    tasks: Sequence[str], now: datetime, interval_s: float, runs: Sequence[tuple[str, str]] = ()
) -> list[ChatMessage]:
    """Build the request. `runs` are the last runs as (time, tasks)."""
    task_list = clip("\n".join(f"- {task}" for task in tasks), _MAX_TASK_CHARS)
    done = "\n".join(f"- {when}: {what}" for when, what in runs) or "(nothing yet)"
    text = (
        f"It is {now:%Y-%m-%d %H:%M (%A)} ({zone_name(now)}). You are asked every {interval_s / 60:g} minutes.\n\n"
        f"The open tasks of HEARTBEAT.md:\n\n{task_list}\n\nDone lately:\n\n{done}"
    )
    return [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": text}]


def parse_decision(response: LLMResponse, tasks: Sequence[str]) -> Decision:
    """Parse the response. Anything but a clear `run` is a skip, so that a malformed response starts nothing."""
    call = next((call for call in response.tool_calls if call.name == "heartbeat"), None)
    if call is None:
        return Decision()
    arguments = call.arguments
    if not isinstance(arguments.get("action"), str) or arguments["action"].strip().lower() != "run":
        return Decision(again_in_s=_seconds(arguments.get("again_in_minutes")))
    requested = arguments.get("tasks")
    text = requested if isinstance(requested, str) else json.dumps(requested, ensure_ascii=False) if requested else ""
    return Decision(text.strip() or "\n".join(tasks), _seconds(arguments.get("again_in_minutes")))


def is_heartbeat_ok(text: str) -> bool:
    """Whether the result of a run says that there is nothing to report."""
    bare = text.strip().strip("*`\"'.! \n")
    return not bare or bare == OK or (OK in text and len(text.replace(OK, "").strip()) < 40)


def _seconds(minutes: object) -> float | None:
    try:
        value = float(minutes)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return min(max(value, 1.0), _MAX_MINUTES) * 60 if value == value else None  # None for NaN
