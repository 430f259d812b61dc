"""What a terminal can show: which characters, which colours, how wide. Nothing here knows turns."""

import os
import re
from typing import TextIO

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_BEYOND_JSON = re.compile("[\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def mended(text: str) -> str:
    """The text with what is no character (lone surrogates, as broken argv bytes become) replaced, so it can be sent."""
    if not _SURROGATE.search(text):
        return text
    return text.encode("utf-8", "surrogateescape" if _only_escapes(text) else "replace").decode("utf-8", "replace")


def _only_escapes(text: str) -> bool:
    return all("\udc80" <= found <= "\udcff" for found in _SURROGATE.findall(text))


def visible(text: str) -> str:
    """The text without what would steer the terminal: a model or a tool may not move the cursor or set a title."""
    return _CONTROL.sub("", mended(text).replace("\r\n", "\n").replace("\r", "\n"))


def harmless_json(text: str) -> str:
    """JSON, in which what may steer a terminal and JSON leaves as it is (DEL, C1) is escaped as well."""
    return _BEYOND_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", mended(text))


def say(stream: TextIO, text: str) -> None:
    """Write and flush; what the stream's encoding lacks becomes a question mark. Raises OSError when nobody reads."""
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "utf-8"
        stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()


def is_screen(stream: TextIO | None) -> bool:
    """Whether a person looks at this stream."""
    return stream is not None and not stream.closed and stream.isatty()


def wants_colour(stream: TextIO | None) -> bool:
    """Whether colours may be used: on a screen that knows them, unless NO_COLOR says no."""
    return is_screen(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def can_redraw(stream: TextIO | None) -> bool:
    """Whether lines that were written can be drawn anew."""
    return is_screen(stream) and os.environ.get("TERM") not in ("dumb", "unknown") and (os.name == "nt" or _has_term())


def _has_term() -> bool:
    return bool(os.environ.get("TERM"))


class Paint:
    """Colours as SGR sequences; without colour, the text as it is."""

    def __init__(self, colour: bool) -> None:
        self.colour = colour

    def _wrap(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text else text

    def dim(self, text: str) -> str:
        """For what stands beside the answer."""
        return self._wrap("2", text)

    def bold(self, text: str) -> str:
        """For what a person typed."""
        return self._wrap("1", text)

    def red(self, text: str) -> str:
        """For what failed."""
        return self._wrap("31", text)

    def green(self, text: str) -> str:
        """For lines that a change added."""
        return self._wrap("32", text)
