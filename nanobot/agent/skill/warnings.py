"""What to look at before one trusts a skill of somebody's: hidden text, packed commands, executables, addresses.

A scan finds what hides; it cannot tell that the rest is harmless. What runs, runs in the sandbox all the same.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from nanobot.agent.skill.bundle import Bundle, BundledFile
from nanobot.agent.skill.programs import is_unreadable

_PIPED = (
    r"\|\s*(?:sudo\s+)?(?:\S*/)?(?:env\s+)?(?:ba|z|da|k|c|fi)?sh\b"
    r"|\|\s*(?:sudo\s+)?(?:\S*/)?(?:python[\d.]*|perl|ruby|node|php|iex)\b"
)
_PATTERNS = tuple(
    (grave, re.compile(pattern, re.IGNORECASE), what)
    for grave, pattern, what in (
        (
            True,
            rf"(?:base64|openssl\s+(?:enc|base64)|xxd\s+-r|uudecode)\b[^\n]*(?:{_PIPED})",
            "unpacks hidden text and runs it",
        ),
        (
            True,
            r"(?:eval|exec|iex|Invoke-Expression)\b[^\n]{0,80}(?:base64|b64decode|atob|FromBase64)",
            "unpacks hidden text and runs it",
        ),
        (True, r"(?:-enc|-EncodedCommand)\s+[A-Za-z0-9+/=]{40,}", "runs a command that is hidden"),
        (
            False,
            r"(?<![A-Za-z0-9+/])(?=[A-Za-z+/]{0,99}[0-9])[A-Za-z0-9+/]{400,}={0,2}",
            "holds a long piece that nobody can read",
        ),
        (
            False,
            rf"(?:curl|wget|Invoke-WebRequest|iwr)\b[^\n|]*(?:{_PIPED})",
            "runs what it downloads, unseen",
        ),
        (
            False,
            r"(?<![\w/])(?:~|\$HOME)/\.(?:ssh|aws|gnupg|netrc|kube|docker|nanobot/config)|id_rsa|id_ed25519",
            "names a place where keys are kept",
        ),
        (
            False,
            r"xattr\s+-\w*[dc]|spctl\s+--master-disable|Set-ExecutionPolicy|chmod\s+(?:-R\s+)?777|--no-sandbox",
            "switches a guard of the system off",
        ),
        (
            False,
            r"ignore (?:all |any )?(?:the )?(?:previous|prior|above) instructions|do not tell the (?:user|owner)",
            "tells the agent to hide something or to forget its rules",
        ),
    )
)
"""Whether it is reason enough not to install without a look; what is looked for in a line; what it does."""
_FINE_INVISIBLE = frozenset("\u200d\ufe0f\ufe0e\u200c")
"""Invisible, and a part of emoji and of some scripts where they stand between letters."""
_ADDRESS = re.compile(r"https?://([A-Za-z0-9.-]+\.[A-Za-z]{2,}|\d+\.\d+\.\d+\.\d+|localhost)", re.IGNORECASE)
_MADE_UP = re.compile(r"(?:^|\.)example(?:\.(?:com|org|net))?$|(?:^|\.)(?:test|invalid)$", re.IGNORECASE)
_MOST = 50


@dataclass(frozen=True, slots=True)
class Warned:
    """Something to look at."""

    path: str
    line: int
    """0 for the whole file."""
    text: str
    grave: bool
    """Whether nobody should install it without having looked."""

    @property
    def told(self) -> str:
        """In one line."""
        place = f"{self.path}, line {self.line}" if self.line else self.path
        return f"{place}: {self.text}"


def warnings_of(bundle: Bundle) -> list[Warned]:
    """What stands out, the grave first."""
    found = [one for file in bundle.files for one in _of_file(file)]
    return sorted(found, key=lambda one: (not one.grave, one.path, one.line))[:_MOST]


def addresses_in(bundle: Bundle) -> list[str]:
    """The hosts that its files name."""
    texts = (file.data.decode("utf-8", "replace") for file in bundle.files if not _is_binary(file))
    hosts = {match[1].lower() for text in texts for match in _ADDRESS.finditer(text)}
    return sorted(host for host in hosts if not _MADE_UP.search(host))


def _of_file(file: BundledFile) -> Iterator[Warned]:
    if is_unreadable(file.path, file.data[:8]):
        yield Warned(file.path, 0, "is an executable: nobody can read what it does", grave=True)
    elif file.data[:4] in (b"PK\x03\x04", b"\x1f\x8b\x08\x00", b"7z\xbc\xaf", b"Rar!"):
        yield Warned(file.path, 0, "is packed: what is in it was not looked at", grave=False)
    elif _is_binary(file) and file.is_program:
        yield Warned(file.path, 0, "is called a program and is no text", grave=True)
    elif not _is_binary(file):
        yield from _of_text(file.path, file.data.decode("utf-8", "replace"))


def _of_text(path: str, text: str) -> Iterator[Warned]:
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        if hidden := _hidden_in(line):
            yield Warned(path, number, f"holds text that cannot be seen ({hidden})", grave=True)
        for grave, pattern, what in _PATTERNS:
            if pattern.search(line[:5_000]):
                yield Warned(path, number, what, grave)


def _hidden_in(line: str) -> str:
    """The first letter that shows nothing, or turns the direction of what is shown; empty where there is none."""
    if line.isascii():
        return ""
    for index, letter in enumerate(line):
        if unicodedata.category(letter) != "Cf" and not "\U000e0100" <= letter <= "\U000e01ef":
            continue
        before = line[index - 1 : index]
        is_joining = letter in _FINE_INVISIBLE and before and not before.isascii() and before not in "\u200c\u200d"
        if not is_joining and letter != "\u00ad":
            return f"U+{ord(letter):04X}"
    return ""


def _is_binary(file: BundledFile) -> bool:
    return b"\0" in file.data[:8192]
