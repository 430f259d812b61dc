"""A check shows whether a goal is reached: a command that succeeds, a file that exists, or a page that answers."""

import re
from dataclasses import dataclass
from enum import StrEnum

_ALWAYS_SUCCEED = frozenset({"true", ":", "echo", "printf", "pwd", "date"})
"""Commands that succeed whatever was done."""
_PASS_THROUGH = frozenset({"tail", "head", "cat", "tee", "less", "more", "wc", "sort", "uniq", "nl", "tr", "cut"})
"""Programs that succeed whatever their input: behind a pipe, without a text to expect, they prove nothing."""
_IDLE_COMMANDS = frozenset({"exit", "exit 0", "ls", "ls .", "cd", "cd .", "sleep 0", "test 1", "[ 1 ]", "sh -c true"})
_SEPARATOR = re.compile(r"[;\n]")
"""Between commands of which only the last one determines the exit code."""
_MAX_TARGET = 4_000
_MAX_EXPECTED = 2_000
_QUOTATION = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"")
_REDIRECTION = re.compile(r"\d*[<>]{1,2}&?\s*\S+")


class CheckKind(StrEnum):
    """What a check examines."""

    COMMAND = "command"
    """It exits with code 0."""
    FILE = "file"
    """It exists and is not empty."""
    PAGE = "page"
    """It answers with a status below 400."""


_KINDS = frozenset(kind.value for kind in CheckKind)


@dataclass(frozen=True, slots=True)
class GoalCheck:
    """Shows whether a goal is reached."""

    kind: CheckKind
    target: str
    expect: str = ""
    """A text that it must show."""

    def __str__(self) -> str:
        shows = f' showing "{self.expect}"' if self.expect else ""
        return f"{self.kind}: {self.target}{shows}"

    @classmethod
    def of(cls, text: str, expect: str = "") -> "GoalCheck":
        """Parse a text such as `command: pytest -q`. Raises ValueError, which says what would be right."""
        kind, colon, target = text.partition(":")
        kind, target = kind.strip().lower(), target.strip()
        if not colon or kind not in _KINDS or not target:
            raise ValueError(
                f"A check is written as `command: ...`, `file: PATH` or `page: URL`; {text[:80]!r} is none of these."
            )
        if len(target) > _MAX_TARGET or len(expect) > _MAX_EXPECTED:
            raise ValueError(
                f"A check has {_MAX_TARGET:,} characters at most, and {_MAX_EXPECTED:,} of a text to show. Put more "
                "into a script, and name that."
            )
        if kind == CheckKind.COMMAND and _proves_nothing(target, expect.strip()):
            raise ValueError(
                f"`{target}` succeeds whatever was done, so it proves nothing. Name a command that fails as long as "
                "the goal is not reached."
            )
        return cls(CheckKind(kind), target, expect.strip())


def _proves_nothing(command: str, expect: str) -> bool:
    """Return whether the command always succeeds, as far as can be seen."""
    unquoted = _QUOTATION.sub(lambda match: "$" if "$" in match[0] or "`" in match[0] else "quoted", command).strip()
    last = "".join([part for part in _SEPARATOR.split(unquoted) if part.strip(" &")][-1:])
    in_background = unquoted.endswith("&") and not unquoted.endswith("&&")
    return in_background or any(
        all(_is_idle(part, expect) for part in alternative.split("&&")) for alternative in last.split("||")
    )


def _is_idle(command: str, expect: str) -> bool:
    *before, last = [part.strip().strip("()").strip() for part in command.split("|")]
    words = _REDIRECTION.sub("", last).split()
    if not words or "$" in last or "`" in last:
        return not last
    program = words[0].rpartition("/")[2]
    if before and not expect and program in _PASS_THROUGH:
        return True
    return program in _ALWAYS_SUCCEED or " ".join(words) in _IDLE_COMMANDS
