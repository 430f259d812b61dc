"""What a login of a channel shows, in a terminal and in the page; QR codes."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from io import StringIO


@dataclass(frozen=True, slots=True)
class LoginStep:
    """One thing to show. A QR code or a code replaces the one before it."""

    text: str
    qr: str = ""
    """The content of a QR code."""
    code: str = ""
    """To be typed elsewhere."""
    link: str = ""
    """To be opened."""


ShowStep = Callable[[LoginStep], None]
AskPerson = Callable[[str], Awaitable[str]]
"""Asks for one line of text."""


@dataclass(frozen=True, slots=True)
class SignedIn:
    """What the platform gave to whoever signed in there."""

    values: Mapping[str, object] = field(repr=False)
    """Settings by attribute name of the channel's section."""
    owner: str = ""
    """Who signed in; empty if unknown."""


def print_step(step: LoginStep) -> None:
    """Print it; codes and links on lines of their own, so that a terminal makes them clickable."""
    parts = (step.text, step.code and f"  {step.code}", step.qr and qr_code(step.qr), step.link)
    print("\n".join(filter(None, parts)))  # noqa: T201 a person waits


def qr_rows(text: str) -> list[str]:
    """The rows of a QR code: 1 for a dark square, 0 for a light one."""
    import segno  # only logins and links need it

    return ["".join(map(str, row)) for row in segno.make_qr(text, error="l").matrix]


def qr_code(text: str) -> str:
    """Draw a QR code with block characters; its light squares are filled, as on a dark terminal."""
    import segno  # as above

    drawing = StringIO()
    segno.make_qr(text, error="l").terminal(drawing, border=2, compact=True)
    return drawing.getvalue()
