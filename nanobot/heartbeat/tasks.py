"""Parses the open tasks of HEARTBEAT.md: list items and paragraphs that are not under a heading named Completed."""

import re

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_HEADING = re.compile(r"\s{0,3}(?P<marks>#{1,6})\s+(?P<title>.*?)\s*#*\s*\Z")
_RULE = re.compile(r"\s{0,3}([-*_])(?:\s*\1){2,}\s*\Z")
_ITEM = re.compile(r"(?P<indent>\s*)(?:[-*+]|\d{1,9}[.)])(?:\s+|\Z)(?:\[(?P<mark>[ xX]?)\](?:\s+|\Z))?")


def parse_tasks(markdown: str) -> list[str]:
    """Return the open tasks in order, each with its continuation lines.

    Headings, comments, empty boxes and ticked items (`- [x]`) are no tasks. In a file with sections, neither is a
    paragraph directly under the title, which describes the file.
    """
    lines = _COMMENT.sub("", markdown).splitlines()
    headings = [match for line in lines if (match := _HEADING.match(line))]
    has_sections = any(len(heading["marks"]) > 1 and not _is_completed(heading) for heading in headings)
    tasks: list[list[str]] = []
    block: list[str] | None = None  # the lines of the item or paragraph, whether it is a task or not
    in_item, level, completed_at = False, 0, 0
    for line in lines:
        item = _ITEM.match(line)
        if heading := _HEADING.match(line):
            block, level = None, len(heading["marks"])
            if not completed_at or level <= completed_at:
                completed_at = level if _is_completed(heading) else 0
        elif not line.strip() or _RULE.match(line):
            block = None
        elif item and not (item["indent"] and block is not None and in_item):
            block, in_item = [line[item.end() :].strip()], True
            if not completed_at and item["mark"] not in ("x", "X"):
                tasks.append(block)
        elif block is not None:
            block.append(line.strip())
        else:
            block, in_item = [line.strip()], False
            if not completed_at and not (has_sections and level <= 1):
                tasks.append(block)
    return [text for block in tasks if (text := "\n".join(block).strip())]


def _is_completed(heading: re.Match[str]) -> bool:
    return heading["title"].strip().lower() == "completed"
