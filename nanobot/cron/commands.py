"""The chat command `/cron`: changes jobs by name or id, and answers a delivered reminder; its buttons and words."""

import re
from typing import TYPE_CHECKING

from nanobot.bus.events import Button
from nanobot.errors import NanobotError

if TYPE_CHECKING:
    from nanobot.cron.tool_backend import CronToolBackend

ANSWER_WORDS = "(Reply done, snooze, snooze 1h or tomorrow.)"
"""The last line of a reminder on a channel without buttons."""
CHANGES = ("remove", "enable", "disable", "run")
"""What only an owner may do."""
ANSWERS = ("done", "snooze", "tomorrow")
"""What answers a reminder, with the id of its job."""
_USAGE = "Ask for a new one in your own words. To change one: /cron remove, enable, disable or run, and its name."
_SNOOZE = "10m"
_WORD = re.compile(
    r"(done|tomorrow|snooze)(?: (\d{1,4} ?(?:m|min|minutes?|h|hours?|d|days?)?|\d{1,2}:\d{2}))?[.!]?", re.IGNORECASE
)


def reminder_buttons(job_id: str) -> tuple[Button, ...]:
    return (
        Button("Done", f"/cron done {job_id}"),
        Button("Snooze 10 min", f"/cron snooze {job_id} {_SNOOZE}"),
        Button("Tomorrow", f"/cron tomorrow {job_id}"),
    )


def parse_answer(text: str) -> tuple[str, str] | None:
    """The command word and the time in an answer to a reminder, as in `snooze 1h`; None for any other text."""
    match = _WORD.fullmatch(text.strip())
    if match is None or (match[2] and match[1].lower() != "snooze"):
        return None
    return match[1].lower(), match[2] or ""


def run_command(jobs: "CronToolBackend", argument: str, chat: str = "") -> str:
    """Run `/cron` on the jobs of a chat (empty: all jobs) and return the reply. Blocks; errors are returned as text."""
    word, _, name = argument.strip().partition(" ")
    word, name = word.lower(), name.strip()
    try:
        if word in ("", "list"):
            return f"{jobs.list(chat)}\n\n{_USAGE}"
        if word in ANSWERS and name:
            job_id, _, when = name.partition(" ")
            snooze = {"done": None, "tomorrow": "tomorrow"}.get(word, when.strip() or _SNOOZE)
            return jobs.settle_reminder(job_id, snooze, chat)
        return jobs.change(word, name, chat) if word in CHANGES and name else _USAGE
    except NanobotError as error:
        return str(error)
