"""Converts a `nanobot cron ...` command into a call of the cron tool.

Old AGENTS.md files teach the command, and are never overwritten. The options are those of `nanobot cron --help`.
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
_NEEDS_JOB = ("remove", "enable", "disable", "run")
_IGNORED = ("-a", "--all", "-f", "--force", "--json", "--disable")


def cron_call(words: Sequence[str]) -> dict[str, Any] | None:
    """Return the arguments of the cron tool; None if these words are no such command."""
    rest = list(words)
    while rest and re.fullmatch(r"(?:.*/)?(?:python[\d.]*|uv|run|-m)", rest[0]):
        rest.pop(0)
    if len(rest) < 3 or rest[0].rpartition("/")[2] != "nanobot" or rest[1] != "cron":
        return None
    action = _ACTIONS.get(rest[2])
    if action is None:
        return None
    arguments: dict[str, Any] = {"action": action}
    rest = rest[3:]
    while rest:
        word, equals, value = rest.pop(0).partition("=")
        if word in _VALUES:
            if not equals:
                if not rest:
                    return None
                value = rest.pop(0)
            if name := _VALUES[word]:
                arguments[name] = _number(value) if name == "every_seconds" else value
        elif word in _FLAGS:
            arguments["deliver"] = _FLAGS[word]
        elif word in _IGNORED:
            continue
        elif action in _NEEDS_JOB and not word.startswith("-") and "job_id" not in arguments:
            arguments["job_id"] = word
        else:
            return None
    if action == "enable" and "--disable" in words:
        arguments["action"] = "disable"
    return arguments


def _number(value: str) -> float | str:
    try:
        return float(value)
    except ValueError:
        return value  # the tool says what is wrong with it
