"""Parses the bytes of a mail: sender, subject, thread, text and files; and finds mails that get no answer.

Nothing raises, whatever the bytes: unreadable parts are left out, the others kept. New text is separated from the
quoted mail and the signature below it, for which mail programs have only conventions: in unclear cases nothing is cut,
so answers written into a quotation stay.
"""

import codecs
import hashlib
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.errors import HeaderParseError
from email.header import decode_header
from email.message import EmailMessage, Message
from email.parser import BytesParser
from email.policy import EmailPolicy
from email.utils import getaddresses
from typing import cast

from nanobot.utils.html import visible_markdown

_DEEPEST = 20
_MOST_FILES = 20
_LONGEST_TEXT = 1_000_000
_LONGEST_SUBJECT = 500
_LONGEST_ID = 250
_MOST_REFERENCES = 100
_MOST_DASHES = 20_000
"""Most lines that may begin a part: each costs the parser as much as a kilobyte of text."""
_MOST_LOOKS = 50_000_000
"""Most lines times boundaries: in nested parts the parser compares each line with each boundary."""
_LONGEST_HEADER = 20_000
_LONGEST_PARAMETERS = 4_000
"""Characters of a header whose parameters the parser splits, in quadratic time."""
_CHARSETS = {
    "gb2312": "gb18030", "gbk": "gb18030", "x-gbk": "gb18030", "ks_c_5601-1987": "cp949", "ks_c_5601": "cp949",
    "euc-kr": "cp949", "shift_jis": "cp932", "x-sjis": "cp932", "iso-8859-1": "cp1252", "latin1": "cp1252",
    "us-ascii": "utf-8", "ascii": "utf-8", "iso-8859-8-i": "iso-8859-8", "utf8mb4": "utf-8", "windows-874": "cp874",
    "x-mac-roman": "mac-roman",
}  # fmt: skip
"""Other names of charsets, and supersets that are used under their names."""
_NO_CHARSETS = {"punycode", "idna", "unicode-escape", "raw-unicode-escape", "undefined", "mbcs", "oem"}
"""Codecs of no mail; the time of one grows with the square of its text."""
_TEXTS = ("text/plain", "text/html", "text/enriched", "text/x-amp-html", "text")
_SOFT_BREAK = re.compile(r"(?<!^--) \n(?![>\n]|-- \n)", re.MULTILINE)
_ID = re.compile(r"<([^<>\s]+)>")
_LIKE_AN_ADDRESS = re.compile(r"[^\s<>\"',;()]{1,64}@[^\s<>\"',;()]{1,255}")

LOOP_HEADER = "X-Loop"
_MACHINE_NAMES = re.compile(
    r"mailer-daemon|postmaster|majordomo|listserv|daemon|(?:do[-_.]?)?not?[-_.]?reply(?:[-_.+].*)?|bounces?(?:[-_.+].*)?|"
    r"owner-.*|.*-(?:request|bounces)"
)
_MACHINE_HEADERS = (
    *("List-Id", "List-Post", "List-Unsubscribe", "Mailing-List", "X-Mailman-Version", "X-BeenThere"),
    *("X-Autoreply", "X-Autorespond", "X-Auto-Reply-From", "X-Failed-Recipients"),
    "X-MS-Exchange-Inbox-Rules-Loop",
)
_BULK = ("bulk", "list", "junk", "auto_reply")
_RULE = re.compile(r"^\s*(?:_{10,}|-{3,}[^-]{3,60}-{3,})\s*$")
"""Such as `-----Original Message-----`, in any language."""
_HEADING = re.compile(r"(?i)^\s*\*?(?:from|von|de|da|van|fra|från|od|от|发件人|寄件者|差出人)\s?\*?[:：]\s?.+$")
_OTHER_HEADING = re.compile(
    r"(?i)^\s*\*?(?:sent|date|to|cc|subject|gesendet|datum|an|betreff|envoy[ée]|[àa]|objet|enviado|para|asunto|inviato"
    r"|a|oggetto|verzonden|aan|onderwerp|发送时间|收件人|主题|日期|抄送)\s?\*?[:：]"
)
_SIGNATURE = "-- "


class Headers:
    """The header lines of a mail, top first."""

    def __init__(self, message: "Message[str, str]") -> None:
        self.lines = [(str(name), str(value)[:_LONGEST_HEADER]) for name, value in message.raw_items()]

    def all(self, name: str) -> list[str]:
        """The raw values of all lines of this name."""
        return [value for line_name, value in self.lines if line_name.lower() == name.lower()]

    def text(self, name: str) -> str:
        """The first line of this name, readable; empty if there is none."""
        return next((readable(value) for value in self.all(name)), "")

    def ids(self, name: str) -> list[str]:
        """The message ids in lines of this name, without brackets."""
        return [id_ for value in self.all(name) for id_ in _ID.findall(readable(value)) if len(id_) <= _LONGEST_ID]

    def sender(self) -> tuple[str, bool]:
        """The author's address in lower case (empty if there is none), and whether it is unambiguous."""
        lines = self.all("From")
        try:
            addresses = [address.strip().lower() for _, address in getaddresses(lines) if address]
        except Exception:  # the standard library's parsers may raise anything for broken input
            addresses = []
        is_plain = len(lines) == 1 and len(addresses) == 1
        addresses = addresses or _LIKE_AN_ADDRESS.findall(" ".join(map(readable, lines)).lower())
        address = next(filter(is_address, addresses), "")
        return address, is_plain and bool(address)


@dataclass(frozen=True, slots=True)
class MailFile:
    name: str | None
    content_type: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Mail:
    """A parsed mail. None of it is trusted."""

    headers: Headers
    content_type: str
    sender: str
    """The address in lower case; empty if there is none."""
    has_one_sender: bool
    """Whether the sender is unambiguous."""
    subject: str
    message_id: str
    """Its id without brackets; a hash of its bytes if it has none."""
    ancestors: tuple[str, ...]
    """The mails of its thread that it names, oldest first; it answers the last."""
    text: str
    files: tuple[MailFile, ...]

    @property
    def root(self) -> str:
        """The first known mail of its thread."""
        return next(iter(self.ancestors), self.message_id)


def read_mail(raw: bytes) -> Mail:
    message = _parse(raw)
    headers = Headers(message)
    files: list[MailFile] = []
    text = _read(message, files, 0)
    ids = headers.ids("Message-ID")
    return Mail(
        headers,
        message.get_content_type(),
        *headers.sender(),
        headers.text("Subject")[:_LONGEST_SUBJECT],
        ids[0] if ids else f"{hashlib.sha256(raw).hexdigest()[:40]}@without-an-id",
        tuple(dict.fromkeys([*headers.ids("References")[:_MOST_REFERENCES], *headers.ids("In-Reply-To")[:1]])),
        text.strip(),
        tuple(files[:_MOST_FILES]),
    )


class _BoundedPolicy(EmailPolicy):
    """Limits the length of headers: a stranger's must not occupy the parser for minutes."""

    def header_source_parse(self, sourcelines: list[str]) -> tuple[str, str]:
        name, value = super().header_source_parse(sourcelines)
        return name, value[: _LONGEST_PARAMETERS if name.lower().startswith("content-") else _LONGEST_HEADER]


def _parse(raw: bytes) -> EmailMessage:
    """Parse the mail; only its head if it breaks the parser, or is made to exhaust it."""
    parser = BytesParser(EmailMessage, policy=_BoundedPolicy())
    if raw.count(b"\n--") <= _MOST_DASHES and raw.count(b"\n") * raw.lower().count(b"boundary=") <= _MOST_LOOKS:
        with suppress(Exception):  # such as a RecursionError; if raised, the mail would be read again for ever
            message = cast(EmailMessage, parser.parsebytes(raw))
            message.get_content_type()
            return message
    head = cast(EmailMessage, parser.parsebytes(raw, headersonly=True))
    del head["Content-Type"]
    return head


def _read(part: EmailMessage, files: list[MailFile], depth: int) -> str:
    """The text of a part and its children. Adds what is attached to `files`."""
    try:
        content_type = part.get_content_type()
        children = cast("list[EmailMessage]", part.get_payload()) if part.is_multipart() else []
        if content_type == "message/rfc822":
            data = b"".join(child.as_bytes() for child in children)
        elif children and depth < _DEEPEST:
            texts = [(child.get_content_type(), _read(child, files, depth + 1).strip("\n")) for child in children]
            texts = [(kind, text) for kind, text in texts if text.strip()]
            if content_type == "multipart/alternative" and texts:
                return next((text for kind, text in texts if kind == "text/plain"), texts[-1][1])  # else the richest
            return "\n\n".join(text for _, text in texts)
        else:
            payload = part.get_payload(decode=True)
            data = payload if isinstance(payload, bytes) else b""
        disposition, name = part.get_content_disposition(), part.get_filename()
        if content_type in _TEXTS and disposition != "attachment" and (disposition == "inline" or not name):
            return _text(part, data, content_type)
        if data:
            files.append(MailFile(readable(name or "") or None, content_type, data))
    except Exception:  # the standard library's parsers may raise anything for broken input
        return "[a part of this mail cannot be read]"
    return ""


def _text(part: EmailMessage, data: bytes, content_type: str) -> str:
    text = _decode(data[: 2 * _LONGEST_TEXT], part.get_content_charset())
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    if content_type == "text/html":
        text = visible_markdown(text)
    elif str(part.get_param("format")).lower() == "flowed":  # RFC 3676, without quotations
        joint = "" if str(part.get_param("delsp")).lower() == "yes" else " "
        text = _SOFT_BREAK.sub(joint, text)
    return text.encode("utf-8", "replace").decode()[:_LONGEST_TEXT]


def readable(value: str) -> str:
    """A header's value decoded (RFC 2047), on one line."""
    value = _decode(value.encode("utf-8", "surrogateescape"), None)
    try:
        words = [(word, charset) for word, charset in decode_header(value)]
        value = "".join(word if isinstance(word, str) else _decode(word, charset) for word, charset in words)
    except HeaderParseError:  # broken base64
        pass
    return " ".join("".join(char if char.isprintable() else " " for char in value).split())


def _decode(data: bytes, charset: str | None) -> str:
    """Decode text in the charset that the sender names, else as UTF-8 or CP1252."""
    name = (charset or "utf-8").partition("*")[0].strip("\"' ").lower()
    text: object
    for candidate in (_CHARSETS.get(name, name), "utf-8"):
        try:
            codec = codecs.lookup(candidate)
            text = None if codec.name.replace("_", "-") in _NO_CHARSETS else codec.decode(data)[0]
        except Exception:  # a stranger chose the name: any codec may run, and raise anything
            text = None
        if isinstance(text, str):  # zlib and its like are codecs, too
            return text
    return data.decode("cp1252", "replace")


def is_address(text: str) -> bool:
    local, at, domain = text.rpartition("@")
    is_valid = text.isprintable() and not any(char in text for char in ' <>()[],;:"\\') and len(text) <= 254
    return bool(at and local and domain) and is_valid and not domain.startswith((".", "-")) and ".." not in domain


def auto_reply_reason(mail: Mail, own: Collection[str]) -> str:
    """Why this mail gets no answer (RFC 3834 and common practice); empty if it may get one.

    `own` are the addresses of this mailbox. Two programs that answer each other would never stop.
    """
    headers = mail.headers
    if not mail.sender:
        return "it has no sender who could be answered"
    if mail.sender in own:
        return "it comes from this mailbox itself"
    if any(address.strip().lower() in own for address in headers.all(LOOP_HEADER)):
        return "it is one of ours that came back"
    submitted = headers.text("Auto-Submitted").partition(";")[0].strip().lower()
    if submitted not in ("", "no"):
        return f"a program sent it (Auto-Submitted: {submitted[:40]})"
    if (precedence := headers.text("Precedence").lower()) in _BULK:
        return f"it went to many (Precedence: {precedence})"
    for name in _MACHINE_HEADERS:
        if headers.all(name):
            return f"it went to a list, or a program sent it ({name})"
    if mail.content_type == "multipart/report" or any(path.strip() == "<>" for path in headers.all("Return-Path")):
        return "it reports about another mail"
    if _MACHINE_NAMES.fullmatch(mail.sender.partition("@")[0]):
        return "nobody reads answers there"
    return ""


def split_quote(text: str) -> tuple[str, str]:
    """Split a text into the new part and the quotation below it (empty if there is none). Joined they are the text."""
    lines = text.splitlines(keepends=True)
    headings = (number for number in range(len(lines)) if _is_heading(lines, number))
    start = min(next(headings, len(lines)), _marked_quote(lines, len(without_signature(text).splitlines())))
    new = "".join(lines[:start])
    return (new, "".join(lines[start:])) if new.strip() else (text, "")


def without_signature(text: str) -> str:
    """The text above the signature (RFC 3676, 4.3)."""
    lines = text.splitlines(keepends=True)
    for number in range(len(lines) - 1, max(len(lines) - 12, -1), -1):
        if lines[number].rstrip("\r\n") in (_SIGNATURE, _SIGNATURE.rstrip()):
            return "".join(lines[:number])
    return text


def _is_heading(lines: Sequence[str], number: int) -> bool:
    """Whether a block such as From:, Sent:, To:, Subject: starts here, as in Outlook's quotations, or its rule."""
    if _RULE.match(lines[number]):
        return any(_HEADING.match(line) for line in lines[number + 1 : number + 2])
    others = [line for line in lines[number + 1 : number + 6] if _OTHER_HEADING.match(line)]
    return _HEADING.match(lines[number]) is not None and len(others) >= 2


def _marked_quote(lines: Sequence[str], end: int) -> int:
    """Where the lines with `>` begin that end the text before `end`, or the line above that says whose they are."""
    above = end
    while above and (lines[above - 1].startswith(">") or not lines[above - 1].strip()):
        above -= 1
    start = next((number for number in range(above, end) if lines[number].startswith(">")), len(lines))
    if start < len(lines) and above and lines[above - 1].rstrip().endswith((":", "：")):
        start = above - 1
        if start and re.search(r"\d", lines[start - 1]) and not re.search(r"\d", lines[start]):
            start -= 1  # "On 2 November, somebody with a long name" is wrapped
    return start
