"""Finds risks in a skill that a person should look at: hidden text, packed commands, executables, addresses.

A scan finds what hides; it does not prove that the rest is harmless. Skills run in the sandbox anyway.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from nanobot.agent.skills.bundle import Bundle, BundledFile, is_unreadable

_PIPED = (
    r"\|\s*(?:sudo\s+)?(?:\S*/)?(?:env\s+)?(?:ba|z|da|k|c|fi)?sh\b"
    r"|\|\s*(?:sudo\s+)?(?:\S*/)?(?:python[\d.]*|perl|ruby|node|php|iex)\b"
)
_PATTERNS = tuple(
    (is_severe, re.compile(pattern, re.IGNORECASE), what)
    for is_severe, pattern, what in (
        (
            True,
            rf"(?:base64|openssl\s+(?:enc|base64)|xxd\s+-r|uudecode)\b[^\n]*(?:{_PIPED})",
            "decodes hidden text and runs it",
        ),
        (
            True,
            r"(?:eval|exec|iex|Invoke-Expression)\b[^\n]{0,80}(?:base64|b64decode|atob|FromBase64)",
            "decodes hidden text and runs it",
        ),
        (True, r"(?:-enc|-EncodedCommand)\s+[A-Za-z0-9+/=]{40,}", "runs an encoded command"),
        (
            False,
            r"(?<![A-Za-z0-9+/])(?=[A-Za-z+/]{0,99}[0-9])[A-Za-z0-9+/]{400,}={0,2}",
            "contains a long encoded text",
        ),
        (
            False,
            rf"(?:curl|wget|Invoke-WebRequest|iwr)\b[^\n|]*(?:{_PIPED})",
            "runs what it downloads without a check",
        ),
        (
            False,
            r"(?<![\w/])(?:~|\$HOME)/\.(?:ssh|aws|gnupg|netrc|kube|docker|nanobot/config)|id_rsa|id_ed25519",
            "names a file that holds keys",
        ),
        (
            False,
            r"xattr\s+-\w*[dc]|spctl\s+--master-disable|Set-ExecutionPolicy|chmod\s+(?:-R\s+)?777|--no-sandbox",
            "disables a protection of the system",
        ),
        (
            False,
            r"ignore (?:all |any )?(?:the )?(?:previous|prior|above) instructions|do not tell the (?:user|owner)",
            "tells the agent to hide something or ignore its rules",
        ),
    )
)
"""Whether the finding requires a look before installing; the pattern per line; the text."""
_JOINERS = frozenset("\u200d\ufe0f\ufe0e\u200c")
"""Invisible characters that are part of emoji and of some scripts."""
_ADDRESS = re.compile(r"https?://([A-Za-z0-9.-]+\.[A-Za-z]{2,}|\d+\.\d+\.\d+\.\d+|localhost)", re.IGNORECASE)
_EXAMPLE_HOST = re.compile(r"(?:^|\.)example(?:\.(?:com|org|net))?$|(?:^|\.)(?:test|invalid)$", re.IGNORECASE)
_MAX_WARNINGS = 50


@dataclass(frozen=True, slots=True)
class RiskWarning:
    path: str
    line: int
    """0 for the whole file."""
    text: str
    is_severe: bool
    """Whether nobody should install it without a look."""

    @property
    def summary(self) -> str:
        """The finding in one line."""
        location = f"{self.path}, line {self.line}" if self.line else self.path
        return f"{location}: {self.text}"


def find_risks(bundle: Bundle) -> list[RiskWarning]:
    """Return the findings, severe ones first."""
    warnings = [warning for file in bundle.files for warning in _scan_file(file)]
    return sorted(warnings, key=lambda warning: (not warning.is_severe, warning.path, warning.line))[:_MAX_WARNINGS]


def addresses_in(bundle: Bundle) -> list[str]:
    """Return the hosts named in its files."""
    texts = (file.data.decode("utf-8", "replace") for file in bundle.files if not _is_binary(file))
    hosts = {match[1].lower() for text in texts for match in _ADDRESS.finditer(text)}
    return sorted(host for host in hosts if not _EXAMPLE_HOST.search(host))


def _scan_file(file: BundledFile) -> Iterator[RiskWarning]:
    if is_unreadable(file.path, file.data[:8]):
        yield RiskWarning(file.path, 0, "is an executable that cannot be reviewed", is_severe=True)
    elif file.data[:4] in (b"PK\x03\x04", b"\x1f\x8b\x08\x00", b"7z\xbc\xaf", b"Rar!"):
        yield RiskWarning(file.path, 0, "is an archive; its content was not checked", is_severe=False)
    elif _is_binary(file) and file.is_program:
        yield RiskWarning(file.path, 0, "has the name of a program but is not text", is_severe=True)
    elif not _is_binary(file):
        yield from _scan_text(file.path, file.data.decode("utf-8", "replace"))


def _scan_text(path: str, text: str) -> Iterator[RiskWarning]:
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        if hidden := _find_hidden(line):
            yield RiskWarning(path, number, f"contains invisible text ({hidden})", is_severe=True)
        for is_severe, pattern, what in _PATTERNS:
            if pattern.search(line[:5_000]):
                yield RiskWarning(path, number, what, is_severe)


def _find_hidden(line: str) -> str:
    """Return the first character that is invisible or changes the text direction; empty if none."""
    if line.isascii():
        return ""
    for index, character in enumerate(line):
        if unicodedata.category(character) != "Cf" and not "\U000e0100" <= character <= "\U000e01ef":
            continue
        previous = line[index - 1 : index]
        is_joining = character in _JOINERS and previous and not previous.isascii() and previous not in "\u200c\u200d"
        if not is_joining and character != "\u00ad":
            return f"U+{ord(character):04X}"
    return ""


def _is_binary(file: BundledFile) -> bool:
    return b"\0" in file.data[:8192]
