"""Header lines as they come: encoded, folded, in charsets that do not exist, or broken. Nothing here ever raises."""

import base64
import codecs
import quopri
import re
from email.message import Message
from email.utils import getaddresses

LONGEST_ID = 250
_LONGEST_HEADER = 20_000
_CHARSETS = {
    "gb2312": "gb18030", "gbk": "gb18030", "x-gbk": "gb18030", "ks_c_5601-1987": "cp949", "ks_c_5601": "cp949",
    "euc-kr": "cp949", "shift_jis": "cp932", "x-sjis": "cp932", "iso-8859-1": "cp1252", "latin1": "cp1252",
    "us-ascii": "utf-8", "ascii": "utf-8", "iso-8859-8-i": "iso-8859-8", "utf8mb4": "utf-8", "windows-874": "cp874",
    "x-mac-roman": "mac-roman",
}  # fmt: skip
"""What charsets are called by, or mean in truth."""
_NO_CHARSETS = {"punycode", "idna", "unicode-escape", "raw-unicode-escape", "undefined", "mbcs", "oem"}
"""Codecs that no mail is written in; the time of one grows with the square of its text."""
_ENCODED_WORD = re.compile(r"=\?([^?\s]{1,60})\?([bBqQ])\?([^?]*)\?=")
_ENCODED_RUN = re.compile(r"=\?[^?\s]{1,60}\?[bBqQ]\?[^?]*\?=(?:\s*=\?[^?\s]{1,60}\?[bBqQ]\?[^?]*\?=)*")
_ID = re.compile(r"<([^<>\s]+)>")
_SOMETHING_LIKE_AN_ADDRESS = re.compile(r"[^\s<>\"',;()]{1,64}@[^\s<>\"',;()]{1,255}")


def decoded(data: bytes, charset: str | None) -> str:
    """Text in the charset that its sender names, or in whatever it is."""
    named = (charset or "utf-8").strip("\"' ").lower()
    return (
        _in_charset(data, _CHARSETS.get(named, named)) or _in_charset(data, "utf-8") or data.decode("cp1252", "replace")
    )


def _in_charset(data: bytes, charset: str) -> str | None:
    try:
        codec = codecs.lookup(charset)
        text: object = None if codec.name.replace("_", "-") in _NO_CHARSETS else codec.decode(data)[0]
    except Exception:  # somebody else's codec, by a name that a stranger chose
        return None
    return text if isinstance(text, str) else None  # zlib and its like are codecs, too


class Headers:
    """The header lines of a mail, from the top."""

    def __init__(self, message: "Message[str, str]") -> None:
        self.lines = [(str(name), str(value)[:_LONGEST_HEADER]) for name, value in message.raw_items()]

    def all(self, name: str) -> list[str]:
        """The values of all lines of that name, as they came."""
        return [value for found, value in self.lines if found.lower() == name.lower()]

    def has(self, name: str) -> bool:
        """Whether there is such a line."""
        return bool(self.all(name))

    def text(self, name: str) -> str:
        """The first of that name as people read it, on one line; empty where there is none."""
        return next((readable(value) for value in self.all(name)), "")

    def ids(self, name: str) -> list[str]:
        """The message ids in lines of that name, without their brackets."""
        return [one for value in self.all(name) for one in _ID.findall(readable(value)) if len(one) <= LONGEST_ID]

    def sender(self) -> tuple[str, bool]:
        """The address of who wrote it, in small letters (empty: none), and whether no other could be meant."""
        lines = self.all("From")
        try:
            found = [address.strip().lower() for _, address in getaddresses(lines) if address]
        except Exception:  # a parser of anything, of the standard library, may fail on anything
            found = []
        is_plain = len(lines) == 1 and len(found) == 1
        found = found or _SOMETHING_LIKE_AN_ADDRESS.findall(" ".join(map(readable, lines)).lower())
        address = next((one for one in found if is_address(one)), "")
        return address, is_plain and bool(address)


def readable(value: str) -> str:
    """A header's value as people read it: decoded (RFC 2047), and on one line."""
    words = _ENCODED_RUN.sub(_decoded_run, decoded(value.encode("utf-8", "surrogateescape"), None))
    return " ".join("".join(char if char.isprintable() else " " for char in words).split())


def _decoded_run(run: "re.Match[str]") -> str:
    """Encoded words that follow each other; a character may be cut in two between them."""
    parts: list[tuple[str, bytes]] = []
    for named, encoding, said in _ENCODED_WORD.findall(run.group()):
        try:
            data = (
                base64.b64decode(f"{said}===") if encoding in "bB" else quopri.decodestring(said.encode(), header=True)
            )
        except ValueError:
            data = said.encode()
        charset = named.partition("*")[0].lower()
        if parts and parts[-1][0] == charset:
            data = parts.pop()[1] + data
        parts.append((charset, data))
    return "".join(decoded(data, charset) for charset, data in parts)


def is_address(text: str) -> bool:
    """Whether a mail could be sent there."""
    local, at, domain = text.rpartition("@")
    is_sound = text.isprintable() and not any(char in text for char in ' <>()[],;:"\\') and len(text) <= 254
    return bool(at and local and domain) and is_sound and not domain.startswith((".", "-")) and ".." not in domain
