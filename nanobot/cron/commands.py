"""The chat command `/cron`, and what answers a delivered reminder: buttons, or a word."""

import re
from typing import TYPE_CHECKING

from nanobot.bus.events import Button
from nanobot.errors import NanobotError

if TYPE_CHECKING:
    from nanobot.cron.tool_backend import CronToolBackend

ANSWER_WORDS = "(Reply done, snooze, snooze 1h or tomorrow.)"
"""The last line of a reminder on a channel without buttons."""
_USAGE = "To answer a reminder: /cron done, snooze or tomorrow, and its job's ID."
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


async def run_command(jobs: "CronToolBackend", argument: str, chat: str = "") -> str:
    """Run `/cron` on the jobs of a chat (empty: all jobs) and return the reply. Errors are returned as text."""
    word, _, rest = argument.strip().partition(" ")
    name, _, when = rest.strip().partition(" ")
    try:
        if word.lower() == "done" and name:
            return await jobs.settle_reminder(name, None, chat)
        if word.lower() == "snooze" and name:
            return await jobs.settle_reminder(name, when.strip() or _SNOOZE, chat)
        if word.lower() == "tomorrow" and name:
            return await jobs.settle_reminder(name, "tomorrow", chat)
    except NanobotError as error:
        return str(error)
    return _USAGE
