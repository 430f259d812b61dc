"""SKILL.md: its text, and the front matter it begins with. Whatever stands in it, nothing here raises.

The shapes are those of agentskills.io (https://agentskills.io/specification) and of OpenClaw
(https://docs.openclaw.ai/tools/skills): `metadata` is a table, or the same as JSON text.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SKILL_FILE = "SKILL.md"
MAX_BYTES = 256_000
"""A larger SKILL.md is no text for a prompt."""

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)\n*", re.DOTALL | re.MULTILINE)
_BARE_TEXT_WITH_COLON = re.compile(r"^([A-Za-z][\w-]*): +(?![\"'\[{|>&*!%@`#])(.*:.*)$", re.MULTILINE)
_BRACES_AT_THE_MARGIN = re.compile(r"^([A-Za-z][\w-]*):[ \t]*\n(?=[ \t]*[{\[])((?:(?![A-Za-z]).*\n?)+)", re.MULTILINE)
_NESTING = "[{-:?"
"""One of these stands at each level of YAML."""
_MOST_LEVELS = 200
OUR_METADATA = ("nanobot", "openclaw", "clawdbot", "clawdis")
"""Under which keys `metadata` speaks to agents like this one; the last two are OpenClaw's earlier names."""

Stamp = tuple[int, int, int]
Opens = Callable[[str, int], int]


@dataclass(frozen=True, slots=True)
class Manual:
    """What a SKILL.md says about itself, and what keeps it from being read."""

    front: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    mended: bool = False
    """Whether the front matter is no valid YAML, though it was understood."""

    @property
    def ours(self) -> dict[str, Any]:
        """The part of its `metadata` that speaks to agents like this one."""
        metadata = table(self.front.get("metadata"))
        return next((found for key in OUR_METADATA if (found := table(metadata.get(key)))), {})

    @property
    def always(self) -> bool:
        """Whether all of it is to be in every prompt."""
        return self.front.get("always") is True or self.ours.get("always") is True

    @property
    def description(self) -> str:
        """What it says it is for, in one line; empty where it says nothing."""
        return one_line(self.front.get("description"))


def read_text(path: Path, opener: Opens | None = None) -> tuple[str, str]:
    """The text of a SKILL.md with plain line ends, or why there is none."""
    try:
        with open(path, "rb", opener=opener) as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        return "", f"{SKILL_FILE} cannot be read: {error.strerror}"
    return decoded(data)


def decoded(data: bytes) -> tuple[str, str]:
    """The same of its bytes."""
    if len(data) > MAX_BYTES:
        return "", f"{SKILL_FILE} is larger than {MAX_BYTES // 1000} kB"
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return "", f"{SKILL_FILE} is not UTF-8 text"
    if "\0" in text:
        return "", f"{SKILL_FILE} is not text"
    return text.replace("\r\n", "\n"), ""


def read_manual(path: Path, opener: Opens | None = None) -> Manual:
    """What the SKILL.md at this path says about itself."""
    text, problem = read_text(path, opener)
    return Manual(problem=problem) if problem else manual_of(text)


def manual_of(text: str) -> Manual:
    """The same of a text. Without front matter, nothing but the folder's name is known."""
    front = front_matter(text)
    return Manual() if front is None else parsed(front)


def front_matter(text: str) -> str | None:
    """What stands between the first two lines of `---`; None where they are not there."""
    match = _FRONT_MATTER.match(text)
    return match[1] if match else None


def body(text: str) -> str:
    """What follows the front matter."""
    return _FRONT_MATTER.sub("", text, count=1).strip()


def parsed(front: str) -> Manual:
    """Front matter as a table, or what is wrong with it."""
    first = _loaded(front)
    if not first.problem:
        return first
    for mend in (_with_quotes, _with_margin, lambda text: _with_margin(_with_quotes(text))):
        mended = mend(front)
        if mended != front and not (found := _loaded(mended)).problem:
            return Manual(found.front, mended=True)
    return first


def _with_quotes(front: str) -> str:
    """Many skills in the world say `description: Use it when: ...`, which YAML takes for a table in a table."""
    return _BARE_TEXT_WITH_COLON.sub(lambda match: f"{match[1]}: {json.dumps(match[2])}", front)


def _with_margin(front: str) -> str:
    """Others write the braces of `metadata` at the very margin, or indent them by tabs. Lines stay where they are."""

    def indented(match: re.Match[str]) -> str:
        lines = match[2].expandtabs(2).splitlines(keepends=True)
        return f"{match[1]}:\n" + "".join(f"  {line}" for line in lines)

    return _BRACES_AT_THE_MARGIN.sub(indented, front)


def _loaded(text: str) -> Manual:
    import yaml  # 17 ms, paid where there is a skill to read

    # The loader in C takes a tenth of the time; nested deeply enough, a file of somebody's ends the process there.
    shallow = sum(map(text.count, _NESTING)) <= _MOST_LEVELS
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader) if shallow else yaml.SafeLoader
    try:
        front = yaml.load(text, loader)  # noqa: S506 - both are the safe ones
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 2}" if mark else ""
        return Manual(problem=f"front matter of {SKILL_FILE} is not valid YAML{where}")
    except (ValueError, RecursionError):  # a date that is none; brackets in brackets in brackets
        return Manual(problem=f"front matter of {SKILL_FILE} is not valid YAML")
    if front is None or isinstance(front, dict):
        return Manual(front or {})
    return Manual(problem=f"front matter of {SKILL_FILE} is not a list of `key: value` lines")


def table(value: object) -> dict[str, Any]:
    """A table, or JSON text that holds one (with a comma too many, as people write it); else an empty one."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            return _loaded(value).front
        return found if isinstance(found, dict) else {}
    return value if isinstance(value, dict) else {}


def names(value: object) -> list[str]:
    """A list of names, or one name alone."""
    return [name for name in (value if isinstance(value, list) else [value]) if isinstance(name, str) and name]


def words(value: object) -> list[str]:
    """A list of words, or the words of a text: how `allowed-tools` may be written. `Bash(git log:*)` is one word."""
    if isinstance(value, str):
        return list(_words_of(value))
    return names(value)


def _words_of(text: str) -> Iterator[str]:
    for match in re.finditer(r"[^\s,(]+(?:\([^)]*\))?", text):
        yield match[0]


def one_line(value: object) -> str:
    """A text or number in one line; empty for anything else."""
    return " ".join(str(value).split()) if isinstance(value, str | int | float) else ""
