"""A check shows whether a goal is reached: a command that succeeds, a file that exists, or a page that answers."""

import re
from dataclasses import dataclass
from enum import StrEnum

from nanobot.errors import NanobotError

_MAX_TARGET = 4_000
_MAX_EXPECTED = 2_000
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_PROVES_NOTHING = re.compile(
    r"(?:.*(?:[;\n]|\|\|))?[\s(]*"  # the last command determines the exit code
    r"(?:(?:[\w/]*/)?(?:true|:|pwd|date|ls(?: \.)?|exit(?: 0)?)|(?:echo|printf)\b[^|;&\n]*)[\s)]*"
    r"|.*[^&]&\s*",  # in the background
    re.DOTALL,
)
_PIPED = re.compile(r".*\|\s*(?:tail|head|cat|tee|wc|sort|uniq|nl|tr|cut)\b[^|;&\n]*", re.DOTALL)
"""These succeed whatever their input, so without a text to expect they prove nothing either."""


class CheckKind(StrEnum):
    """What a check examines."""

    COMMAND = "command"
    """It exits with code 0."""
    FILE = "file"
    """It exists and is not empty."""
    PAGE = "page"
    """It answers with a status below 400."""


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
        """Parse a text such as `command: pytest -q`. Raises NanobotError, which says what would be right."""
        kind, colon, target = text.partition(":")
        kind, target = kind.strip().lower(), target.strip()
        if not colon or kind not in [*CheckKind] or not target:
            raise NanobotError(
                f"A check is written as `command: ...`, `file: PATH` or `page: URL`; {text[:80]!r} is none of these."
            )
        if len(target) > _MAX_TARGET or len(expect) > _MAX_EXPECTED:
            raise NanobotError(
                f"A check has {_MAX_TARGET:,} characters at most, and {_MAX_EXPECTED:,} of a text to show. Put more "
                "into a script, and name that."
            )
        if kind == CheckKind.COMMAND and _proves_nothing(target, expect.strip()):
            raise NanobotError(
                f"`{target}` succeeds whatever was done, so it proves nothing. Name a command that fails as long as "
                "the goal is not reached."
            )
        return cls(CheckKind(kind), target, expect.strip())


def _proves_nothing(command: str, expect: str) -> bool:
    """Return whether the command always succeeds, as far as can be seen."""
    unquoted = _QUOTED.sub("quoted", command).strip()
    return bool(_PROVES_NOTHING.fullmatch(unquoted) or (not expect and _PIPED.fullmatch(unquoted)))
