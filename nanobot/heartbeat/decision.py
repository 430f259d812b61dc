"""The one question: is there something to do now? A small prompt without a history, answered by one tool call."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.providers.base import LLMResponse
from nanobot.utils.clock import zone_name
from nanobot.utils.text import clip

OK = "HEARTBEAT_OK"
"""What a model writes that has nothing to do or to say."""
_MOST_TASKS = 5_000
"""Characters of tasks that are shown: with all else, the prompt stays below 2,000 tokens."""
_MOST_MINUTES = 7 * 24 * 60

_SYSTEM = """\
You look after the standing tasks of a personal AI agent. You are asked from time to time, with no memory of the last \
time. Decide whether one of the tasks has to be worked on right now, and call `heartbeat` once; write nothing else.

- `skip`: nothing is due. `run`: something is; put into `tasks` what is to be done now, complete in itself.
- `again_in_minutes`: when to ask again although nothing in the file has changed, for tasks that depend on the time. \
Leave it out where nothing depends on it: then you are asked when the file or the day changes."""

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
                    "description": "When to ask again at the latest.",
                },
            },
            "required": ["action"],
        },
    },
}


@dataclass(frozen=True, slots=True)
class Decision:
    """What a model said: the tasks to do now, empty where there are none, and when it wants to be asked again."""

    tasks: str = ""
    again_in_s: float | None = None


def question(tasks: Sequence[str], now: datetime) -> list[ChatMessage]:
    """What a model is asked."""
    listed = clip("\n".join(f"- {task}" for task in tasks), _MOST_TASKS)
    text = f"It is {now:%Y-%m-%d %H:%M (%A)} ({zone_name(now)}).\n\nThe open tasks of HEARTBEAT.md:\n\n{listed}"
    return [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": text}]


def decision_of(response: LLMResponse, tasks: Sequence[str]) -> Decision:
    """What the answer means. One that is no clear `run` is a skip: a guess must not set anything going."""
    call = next((call for call in response.tool_calls if call.name == "heartbeat"), None)
    if call is None:
        return Decision()
    told = call.arguments
    if not isinstance(told.get("action"), str) or told["action"].strip().lower() != "run":
        return Decision(again_in_s=_seconds(told.get("again_in_minutes")))
    wanted = told.get("tasks")
    text = wanted if isinstance(wanted, str) else json.dumps(wanted, ensure_ascii=False) if wanted else ""
    return Decision(text.strip() or "\n".join(tasks), _seconds(told.get("again_in_minutes")))


def is_nothing(text: str) -> bool:
    """Whether the result of a run is a way to say that there is nothing to say."""
    bare = text.strip().strip("*`\"'.! \n")
    return not bare or bare == OK or (OK in text and len(text.replace(OK, "").strip()) < 40)


def _seconds(minutes: object) -> float | None:
    try:
        asked = float(minutes)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return min(max(asked, 1.0), _MOST_MINUTES) * 60 if asked == asked else None  # not a number is not a time
