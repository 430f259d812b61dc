"""Long pastes as one short word in the line being typed; whole again when the line is sent."""

import re

_LONG_LINES = 12
_LONG_CHARS = 2_000
_MARK = re.compile(r"\[pasted #(\d+), \d+ lines?\]")


class Pastes:
    """Remembers what was pasted."""

    def __init__(self) -> None:
        self._kept: list[str] = []

    def taken(self, data: str) -> str:
        """What to put into the line for a paste: itself, or a mark where it is long."""
        text = data.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n")
        lines = text.count("\n") + 1
        if lines <= _LONG_LINES and len(text) <= _LONG_CHARS:
            return text
        self._kept.append(text)
        return f"[pasted #{len(self._kept)}, {lines} line{'s' if lines > 1 else ''}]"

    def restored(self, line: str) -> str:
        """The line with its marks replaced by what they stand for."""
        return _MARK.sub(self._original, line)

    def _original(self, mark: re.Match[str]) -> str:
        number = int(mark[1])
        return self._kept[number - 1] if 1 <= number <= len(self._kept) else mark[0]
