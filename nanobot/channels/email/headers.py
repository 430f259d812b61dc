"""Reads header lines, which may be encoded, folded or broken, and finds mails that get no answer. Nothing raises."""

import base64
import codecs
import quopri
import re
from collections.abc import Collection
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
"""Other names of charsets, and supersets that are used under their names."""
_NO_CHARSETS = {"punycode", "idna", "unicode-escape", "raw-unicode-escape", "undefined", "mbcs", "oem"}
"""Codecs of no mail; the time of one grows with the square of its text."""
_ENCODED_WORD = re.compile(r"=\?([^?\s]{1,60})\?([bBqQ])\?([^?]*)\?=")
_ENCODED_RUN = re.compile(r"=\?[^?\s]{1,60}\?[bBqQ]\?[^?]*\?=(?:\s*=\?[^?\s]{1,60}\?[bBqQ]\?[^?]*\?=)*")
_ID = re.compile(r"<([^<>\s]+)>")
_LIKE_AN_ADDRESS = re.compile(r"[^\s<>\"',;()]{1,64}@[^\s<>\"',;()]{1,255}")

LOOP_HEADER = "X-Loop"
_MACHINE_NAMES = re.compile(
    r"mailer-daemon|postmaster|majordomo|listserv|daemon|(?:do[-_.]?)?not?[-_.]?reply(?:[-_.+].*)?|bounces?(?:[-_.+].*)?|"
    r"owner-.*|.*-(?:request|bounces)"
)
_LIST_HEADERS = ("List-Id", "List-Post", "List-Unsubscribe", "Mailing-List", "X-Mailman-Version", "X-BeenThere")
_ROBOT_HEADERS = (
    *("X-Autoreply", "X-Autorespond", "X-Auto-Reply-From", "X-Failed-Recipients"),
    "X-MS-Exchange-Inbox-Rules-Loop",
)
_BULK = ("bulk", "list", "junk", "auto_reply")


def decode_text(data: bytes, charset: str | None) -> str:
    """Decode text in the charset that the sender names, else as UTF-8 or CP1252."""
    name = (charset or "utf-8").strip("\"' ").lower()
    return (
        _in_charset(data, _CHARSETS.get(name, name)) or _in_charset(data, "utf-8") or data.decode("cp1252", "replace")
    )


def _in_charset(data: bytes, charset: str) -> str | None:
    try:
        codec = codecs.lookup(charset)
        text: object = None if codec.name.replace("_", "-") in _NO_CHARSETS else codec.decode(data)[0]
    except Exception:  # a stranger chose the name: any codec may run, and raise anything
        return None
    return text if isinstance(text, str) else None  # zlib and its like are codecs, too


class Headers:
    """The header lines of a mail, top first."""

    def __init__(self, message: "Message[str, str]") -> None:
        self.lines = [(str(name), str(value)[:_LONGEST_HEADER]) for name, value in message.raw_items()]

    def all(self, name: str) -> list[str]:
        """The raw values of all lines of this name."""
        return [value for line_name, value in self.lines if line_name.lower() == name.lower()]

    def has(self, name: str) -> bool:
        """Whether there is such a line."""
        return bool(self.all(name))

    def text(self, name: str) -> str:
        """The first line of this name, readable; empty if there is none."""
        return next((readable(value) for value in self.all(name)), "")

    def ids(self, name: str) -> list[str]:
        """The message ids in lines of this name, without brackets."""
        ids = [message_id for value in self.all(name) for message_id in _ID.findall(readable(value))]
        return [message_id for message_id in ids if len(message_id) <= LONGEST_ID]

    def sender(self) -> tuple[str, bool]:
        """The author's address in lower case (empty if there is none), and whether it is unambiguous."""
        lines = self.all("From")
        try:
            addresses = [address.strip().lower() for _, address in getaddresses(lines) if address]
        except Exception:  # the standard library's parsers may raise anything for broken input
            addresses = []
        is_plain = len(lines) == 1 and len(addresses) == 1
        addresses = addresses or _LIKE_AN_ADDRESS.findall(" ".join(map(readable, lines)).lower())
        address = next((candidate for candidate in addresses if is_address(candidate)), "")
        return address, is_plain and bool(address)


def readable(value: str) -> str:
    """A header's value decoded (RFC 2047), on one line."""
    words = _ENCODED_RUN.sub(_decode_run, decode_text(value.encode("utf-8", "surrogateescape"), None))
    return " ".join("".join(char if char.isprintable() else " " for char in words).split())


def _decode_run(run: "re.Match[str]") -> str:
    """Decode consecutive encoded words; a character may be split between them."""
    parts: list[tuple[str, bytes]] = []
    for name, encoding, content in _ENCODED_WORD.findall(run.group()):
        try:
            if encoding in "bB":
                data = base64.b64decode(f"{content}===")
            else:
                data = quopri.decodestring(content.encode(), header=True)
        except ValueError:
            data = content.encode()
        charset = name.partition("*")[0].lower()
        if parts and parts[-1][0] == charset:
            data = parts.pop()[1] + data
        parts.append((charset, data))
    return "".join(decode_text(data, charset) for charset, data in parts)


def is_address(text: str) -> bool:
    """Whether it is a valid mail address."""
    local, at, domain = text.rpartition("@")
    is_valid = text.isprintable() and not any(char in text for char in ' <>()[],;:"\\') and len(text) <= 254
    return bool(at and local and domain) and is_valid and not domain.startswith((".", "-")) and ".." not in domain


def auto_reply_reason(headers: Headers, content_type: str, sender: str, own: Collection[str]) -> str:
    """Why this mail gets no answer (RFC 3834 and common practice); empty if it may get one.

    `own` are the addresses of this mailbox. Two programs that answer each other would never stop.
    """
    if not sender:
        return "it has no sender who could be answered"
    if sender in own:
        return "it comes from this mailbox itself"
    if any(address.strip().lower() in own for address in headers.all(LOOP_HEADER)):
        return "it is one of ours that came back"
    submitted = headers.text("Auto-Submitted").partition(";")[0].strip().lower()
    if submitted not in ("", "no"):
        return f"a program sent it (Auto-Submitted: {submitted[:40]})"
    if (precedence := headers.text("Precedence").lower()) in _BULK:
        return f"it went to many (Precedence: {precedence})"
    for name in (*_LIST_HEADERS, *_ROBOT_HEADERS):
        if headers.has(name):
            return f"it went to a list, or a program sent it ({name})"
    if content_type == "multipart/report" or any(path.strip() == "<>" for path in headers.all("Return-Path")):
        return "it reports about another mail"
    if _MACHINE_NAMES.fullmatch(sender.partition("@")[0]):
        return "nobody reads answers there"
    return ""
