"""`nanobot cron ...` as the call of the cron tool it means.

Old AGENTS.md files teach it, and are never overwritten. The words are those of `nanobot cron --help`.
"""

import re
from collections.abc import Sequence
from typing import Any

_VALUES = {
    "-m": "message", "--message": "message",
    "-n": "name", "--name": "name",
    "-e": "every_seconds", "--every": "every_seconds",
    "-c": "cron_expr", "--cron": "cron_expr",
    "--at": "at",
    "--tz": "tz",
    "--notify": "notify",
    "--channel": "", "--to": "",  # the chat that asks is the target
}  # fmt: skip
_FLAGS = {"-d": True, "--deliver": True, "--no-deliver": False}
_ACTIONS = {"add": "add", "list": "list", "ls": "list", "remove": "remove", "rm": "remove", "enable": "enable",
            "disable": "disable", "run": "run"}  # fmt: skip
_WITH_JOB = ("remove", "enable", "disable", "run")
_SILENT = ("-a", "--all", "-f", "--force", "--json", "--disable")


def cron_call(words: Sequence[str]) -> dict[str, Any] | None:
    """The arguments of the cron tool; None where these words are no such command."""
    rest = list(words)
    while rest and re.fullmatch(r"(?:.*/)?(?:python[\d.]*|uv|run|-m)", rest[0]):
        rest.pop(0)
    if len(rest) < 3 or rest[0].rpartition("/")[2] != "nanobot" or rest[1] != "cron":
        return None
    action = _ACTIONS.get(rest[2])
    if action is None:
        return None
    wanted: dict[str, Any] = {"action": action}
    rest = rest[3:]
    while rest:
        word, equals, value = rest.pop(0).partition("=")
        if word in _VALUES:
            if not equals:
                if not rest:
                    return None
                value = rest.pop(0)
            if name := _VALUES[word]:
                wanted[name] = _number(value) if name == "every_seconds" else value
        elif word in _FLAGS:
            wanted["deliver"] = _FLAGS[word]
        elif word in _SILENT:
            continue
        elif action in _WITH_JOB and not word.startswith("-") and "job_id" not in wanted:
            wanted["job_id"] = word
        else:
            return None
    if action == "enable" and "--disable" in words:
        wanted["action"] = "disable"
    return wanted


def _number(value: str) -> float | str:
    try:
        return float(value)
    except ValueError:
        return value  # the tool says what is wrong with it
