"""The chat command `/cron`: lists, removes, enables, disables and runs jobs, by name or id."""

from nanobot.cron.tool_backend import CronToolBackend
from nanobot.errors import NanobotError

CHANGES = ("remove", "enable", "disable", "run")
"""What only an owner may do."""
_USAGE = "To change one: /cron remove, enable, disable or run, and its name."


async def run_command(jobs: CronToolBackend, argument: str, chat: str = "") -> str:
    """Run `/cron` on the jobs of a chat (empty: all jobs) and return the reply. Errors are returned as text."""
    word, _, name = argument.strip().partition(" ")
    word, name = word.lower(), name.strip()
    try:
        if word in ("", "list"):
            return f"{await jobs.list(chat)}\n\n{_USAGE}"
        if word not in CHANGES or not name:
            return _USAGE
        job_id = await jobs.find(name, chat)
        if word == "remove":
            return await jobs.remove(job_id, chat)
        if word == "run":
            return await jobs.run(job_id, chat)
        return await jobs.enable(job_id, word == "enable", chat)
    except NanobotError as error:
        return str(error)
