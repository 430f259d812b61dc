"""Parses the open tasks of HEARTBEAT.md: list items and paragraphs that are not under a heading named Completed."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_HEADING = re.compile(r"\s{0,3}(?P<marks>#{1,6})\s+(?P<title>.*?)\s*#*\s*\Z")
_RULE = re.compile(r"\s{0,3}([-*_])(?:\s*\1){2,}\s*\Z")
_ITEM = re.compile(r"(?P<indent>\s*)(?:[-*+]|\d{1,9}[.)])(?:\s+|\Z)")
_BOX = re.compile(r"\[(?P<mark>[ xX]?)\](?:\s+|\Z)")


def parse_tasks(markdown: str) -> list[str]:
    """Return the open tasks in order, each with its continuation lines.

    Headings, comments, empty boxes and ticked items (`- [x]`) are no tasks. In a file with sections, neither is a
    paragraph directly under the title, which describes the file.
    """
    lines = _COMMENT.sub("", markdown).splitlines()
    sections = [match for line in lines if (match := _HEADING.match(line))]
    has_sections = any(len(heading["marks"]) > 1 and not _is_completed(heading["title"]) for heading in sections)
    return [text for block in _blocks(lines) if block.is_task(has_sections) and (text := block.text)]


@dataclass(slots=True)
class _Block:
    """A list item or a paragraph."""

    lines: list[str] = field(default_factory=list)
    is_item: bool = False
    is_ticked: bool = False
    is_completed: bool = False
    level: int = 0
    """Level of its heading; 0 before the first."""

    @property
    def text(self) -> str:
        return "\n".join(self.lines).strip()

    def is_task(self, has_sections: bool) -> bool:
        is_preface = has_sections and not self.is_item and self.level <= 1
        return not (self.is_ticked or self.is_completed or is_preface)


def _blocks(lines: list[str]) -> Iterator[_Block]:
    block: _Block | None = None
    level, completed_at = 0, 0
    for line in lines:
        heading, item = _HEADING.match(line), _ITEM.match(line)
        if heading or _RULE.match(line) or not line.strip():
            if block is not None:
                yield block
            block = None
            if heading:
                level = len(heading["marks"])
                if not completed_at or level <= completed_at:
                    completed_at = level if _is_completed(heading["title"]) else 0
        elif item and not (item["indent"] and block is not None and block.is_item):
            if block is not None:
                yield block
            box = _BOX.match(line, item.end())
            text = line[box.end() if box else item.end() :].strip()
            block = _Block([text], True, box is not None and box["mark"] in ("x", "X"), completed_at > 0, level)
        elif block is not None:
            block.lines.append(line.strip())
        else:
            block = _Block([line.strip()], is_completed=completed_at > 0, level=level)
    if block is not None:
        yield block


def _is_completed(title: str) -> bool:
    return title.strip().lower() == "completed"
