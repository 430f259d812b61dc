"""Formats tables as aligned text."""

import unicodedata
from collections.abc import Sequence
from itertools import zip_longest

MAX_WIDTH = 100
"""Maximum width of a line in columns; phones wrap longer ones."""
_GAP = " | "


def width(text: str) -> int:
    """Width in monospace columns: CJK characters and emoji take two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(_columns(char) for char in text)


def _columns(char: str) -> int:
    if unicodedata.category(char) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def align_rows(rows: Sequence[Sequence[str]], aligns: Sequence[str]) -> str | None:
    """Align the rows, with a rule below the first. None if they are too wide. `aligns`: left, right or center."""
    columns = [[cell.replace("\n", " ") for cell in column] for column in zip_longest(*rows, fillvalue="")]
    widths = [max(map(width, column)) for column in columns]
    if sum(widths) + len(_GAP) * (len(widths) - 1) > MAX_WIDTH:
        return None
    padded = [
        [_pad(cell, column_width, align) for cell in column]
        for column, column_width, align in zip_longest(columns, widths, aligns[: len(columns)], fillvalue="left")
        if isinstance(column, list) and isinstance(column_width, int)
    ]
    lines = [_GAP.join(cells).rstrip() for cells in zip(*padded, strict=True)]
    lines.insert(1, "-+-".join("-" * column_width for column_width in widths))
    return "\n".join(lines)


def _pad(cell: str, column_width: int, align: str) -> str:
    missing = column_width - width(cell)
    before = {"right": missing, "center": missing // 2}.get(align, 0)
    return " " * before + cell + " " * (missing - before)
