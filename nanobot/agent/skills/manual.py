"""Parses SKILL.md: its text and its front matter. Never raises, whatever the file contains.

The format is that of agentskills.io (https://agentskills.io/specification) and of OpenClaw
(https://docs.openclaw.ai/tools/skills): `metadata` is a table, or the same as JSON text.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

SKILL_FILE = "SKILL.md"
MAX_BYTES = 256_000
"""Largest SKILL.md that is read."""

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)\n*", re.DOTALL | re.MULTILINE)
_BARE_TEXT_WITH_COLON = re.compile(r"^([A-Za-z][\w-]*): +(?![\"'\[{|>&*!%@`#])(.*:.*)$", re.MULTILINE)
_NESTING = "[{-:?"
"""Each YAML level has at least one of these characters."""
_MAX_LEVELS = 200
_SIMPLE_KEY = re.compile(r"[A-Za-z][\w-]*")
_SIMPLE_TEXT = re.compile(r"[A-Za-z](?:[^:#]|:(?=\S))*")
_JSON_TEXT = re.compile(r'"[^"\\]*"')
_JSON_MARKS = re.compile(r"[\[\]{}:, ]*")
_YAML_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "null", "true", "false"})
"""YAML reads them as something else than text."""
OUR_METADATA = ("nanobot", "openclaw", "clawdbot", "clawdis")
"""Keys of `metadata` for agents like this one; the last two are former names of OpenClaw."""

Opens = Callable[[str, int], int]


@dataclass(frozen=True, slots=True)
class Manual:
    """A parsed SKILL.md, or why it cannot be read."""

    front: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    problem_line: int = 1
    front_text: str = ""
    """The YAML of the front matter."""
    repaired: bool = False
    """Whether the front matter was accepted although it is not valid YAML."""

    @property
    def ours(self) -> dict[str, Any]:
        """The part of `metadata` for agents like this one."""
        metadata = table(self.front.get("metadata"))
        return next((result for key in OUR_METADATA if (result := table(metadata.get(key)))), {})

    @property
    def always(self) -> bool:
        """Whether its whole text belongs into every prompt."""
        return self.front.get("always") is True or self.ours.get("always") is True

    @property
    def description(self) -> str:
        """Its description in one line; may be empty."""
        return one_line(self.front.get("description"))


def read_text(path: Path, opener: Opens | None = None) -> tuple[str, str]:
    """Return the text of a SKILL.md with plain line ends, and a problem if it cannot be read."""
    try:
        with open(path, "rb", opener=opener) as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        return "", f"{SKILL_FILE} cannot be read: {error.strerror}"
    return decode_manual(data)


def decode_manual(data: bytes) -> tuple[str, str]:
    """Like `read_text`, for the file's bytes."""
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
    """Read and parse the SKILL.md at this path."""
    text, problem = read_text(path, opener)
    return Manual(problem=problem) if problem else parse_manual(text)


def parse_manual(text: str) -> Manual:
    """Parse a SKILL.md. Without front matter only the folder's name is known."""
    front = front_matter(text)
    return Manual() if front is None else parse_front_matter(front)


def front_matter(text: str) -> str | None:
    """Return the text between the first two `---` lines; None if there are none."""
    match = _FRONT_MATTER.match(text)
    return match[1] if match else None


def body(text: str) -> str:
    """Return the text after the front matter."""
    return _FRONT_MATTER.sub("", text, count=1).strip()


def parse_front_matter(front: str) -> Manual:
    """Parse front matter. Tabs and text with a colon, such as `description: Use it when: ...`, are accepted."""
    manual = _load_yaml(front)
    if manual.problem:
        repaired = _BARE_TEXT_WITH_COLON.sub(lambda match: f"{match[1]}: {json.dumps(match[2])}", front.expandtabs(2))
        result = _load_yaml(repaired)
        if not result.problem:
            return replace(result, repaired=True, problem_line=manual.problem_line)
    return manual


def _load_yaml(text: str) -> Manual:
    is_shallow = sum(map(text.count, _NESTING)) <= _MAX_LEVELS
    if is_shallow and (front := _load_simple(text)) is not None:
        return Manual(front, front_text=text)
    import yaml  # imported on first use: 17 ms and 2.5 MB

    # The C loader is ten times faster, but crashes the process on deeply nested input.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader) if is_shallow else yaml.SafeLoader
    try:
        front = yaml.load(text, loader)  # noqa: S506 - both are the safe ones
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = min(mark.line, text.count("\n")) + 2 if mark else 1
        return Manual(problem=f"front matter of {SKILL_FILE} is not valid YAML, line {line}", problem_line=line)
    except (ValueError, RecursionError):  # an invalid date; deep nesting
        return Manual(problem=f"front matter of {SKILL_FILE} is not valid YAML")
    if front is None or isinstance(front, dict):
        return Manual(front or {}, front_text=text)
    return Manual(problem=f"front matter of {SKILL_FILE} is not a list of `key: value` lines")


def _load_simple(text: str) -> dict[str, Any] | None:
    """Parse front matter as most skills have it without importing YAML: each line a key with words, `true`, `false`, or
    text, lists and tables as JSON writes them. None if there is anything else.
    """
    front: dict[str, Any] = {}
    for line in text.rstrip("\n").split("\n"):
        key, _, value = line.partition(": ")
        value = value.strip()
        if not (line.isprintable() and _SIMPLE_KEY.fullmatch(key)) or key.lower() in _YAML_WORDS:
            return None
        if value in ("true", "false"):
            front[key] = value == "true"
        elif _SIMPLE_TEXT.fullmatch(value) and value.lower() not in _YAML_WORDS:
            front[key] = value
        elif _JSON_MARKS.fullmatch(_JSON_TEXT.sub("", value)):
            try:
                front[key] = json.loads(value)
            except ValueError:
                return None
        else:
            return None
    return front


def table(value: object) -> dict[str, Any]:
    """Return a table, or parse JSON text that holds one (trailing commas allowed); else an empty one."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            result = json.loads(value)
        except (ValueError, RecursionError):
            return _load_yaml(value).front
        return result if isinstance(result, dict) else {}
    return value if isinstance(value, dict) else {}


def names(value: object) -> list[str]:
    """Return a list of names, also from a single name."""
    return [name for name in (value if isinstance(value, list) else [value]) if isinstance(name, str) and name]


def words(value: object) -> list[str]:
    """Return a list of words, also from a text such as `allowed-tools`. `Bash(git log:*)` is one word."""
    return re.findall(r"[^\s,(]+(?:\([^)]*\))?", value) if isinstance(value, str) else names(value)


def one_line(value: object) -> str:
    """Return a text or number in one line; empty for anything else."""
    return " ".join(str(value).split()) if isinstance(value, str | int | float) else ""
