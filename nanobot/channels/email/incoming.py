"""Parses the bytes of a mail: sender, subject, thread, text and files.

Nothing raises, whatever the bytes: unreadable parts are left out, the others kept.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.message import Message
from email.parser import BytesParser
from email.policy import Compat32
from typing import TYPE_CHECKING

from nanobot.channels.email.headers import Headers, decode_text, readable
from nanobot.channels.email.html_text import text_of_html

_DEEPEST = 20
_MOST_FILES = 20
_LONGEST_TEXT = 1_000_000
_LONGEST_SUBJECT = 500
_MOST_REFERENCES = 100
_MOST_DASHES = 20_000
"""Most lines that may begin a part: each costs the parser as much as a kilobyte of text."""
_MOST_LOOKS = 50_000_000
"""Most lines times boundaries: in nested parts the parser compares each line with each boundary."""
_LONGEST_HEADER = 20_000
_LONGEST_PARAMETERS = 4_000
"""Characters of a header whose parameters the parser splits, in quadratic time."""

if TYPE_CHECKING:
    _Part = Message[str, str]
    _Policy = Compat32[Message[str, str]]
else:
    _Policy = Compat32


@dataclass(frozen=True, slots=True)
class MailFile:
    """An attachment."""

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
    in_reply_to: tuple[str, ...]
    references: tuple[str, ...]
    """The mails of the thread, oldest first, as far as this one names them."""
    text: str
    files: tuple[MailFile, ...]

    @property
    def ancestors(self) -> tuple[str, ...]:
        """The mails it answers, oldest first."""
        return tuple(dict.fromkeys((*self.references, *self.in_reply_to)))

    @property
    def root(self) -> str:
        """The first known mail of its thread."""
        return next(iter(self.ancestors), self.message_id)


def read_mail(raw: bytes) -> Mail:
    """Parse a mail. Never raises."""
    message = _parse(raw)
    headers = Headers(message)
    sender, has_one_sender = headers.sender()
    content = _Content()
    try:
        _read(message, content, 0)
    except Exception:  # the standard library's parsers may raise anything for broken input
        content.texts.append("[the rest of this mail cannot be read]")
    ids = headers.ids("Message-ID")
    return Mail(
        headers,
        message.get_content_type(),
        sender,
        has_one_sender,
        headers.text("Subject")[:_LONGEST_SUBJECT],
        ids[0] if ids else f"{hashlib.sha256(raw).hexdigest()[:40]}@without-an-id",
        tuple(headers.ids("In-Reply-To")[:1]),
        tuple(headers.ids("References")[:_MOST_REFERENCES]),
        "\n\n".join(text.strip("\n") for text in content.texts if text.strip()).strip(),
        tuple(content.files[:_MOST_FILES]),
    )


class _Bounded(_Policy):
    """Limits the length of headers: a stranger's must not occupy the parser for minutes."""

    def header_source_parse(self, sourcelines: list[str]) -> tuple[str, str]:
        """A header's name and value."""
        name, value = super().header_source_parse(sourcelines)
        has_parameters = name.lower().startswith("content-")
        return name, value[: _LONGEST_PARAMETERS if has_parameters else _LONGEST_HEADER]


def _parse(raw: bytes) -> "_Part":
    """Parse the mail; only its head if it is made to exhaust the parser."""
    parser = BytesParser(policy=_Bounded())
    if raw.count(b"\n--") <= _MOST_DASHES and raw.count(b"\n") * raw.lower().count(b"boundary=") <= _MOST_LOOKS:
        try:
            return parser.parsebytes(raw)
        except RecursionError:  # nested too deep; if raised, the mail would be read again for ever
            pass
    head: _Part = parser.parsebytes(raw, headersonly=True)
    if head.get_content_maintype() in ("multipart", "message"):
        del head["Content-Type"]
    return head


@dataclass(slots=True)
class _Content:
    texts: list[str] = field(default_factory=list)
    files: list[MailFile] = field(default_factory=list)


def _read(part: "_Part", content: _Content, depth: int) -> None:
    """Collect the texts and files of a part and its children."""
    content_type = part.get_content_type()
    if content_type == "multipart/alternative" and depth < _DEEPEST:
        _read_best(part, content, depth)
    elif part.is_multipart() and content_type != "message/rfc822" and depth < _DEEPEST:
        for child in _children(part):
            _read(child, content, depth + 1)
    elif _is_text(part, content_type):
        content.texts.append(_text(part, content_type))
    elif data := _bytes(part):
        content.files.append(MailFile(_name(part), content_type, data))


def _read_best(part: "_Part", content: _Content, depth: int) -> None:
    """Collect one of several alternatives: the plain text if not blank, else the richest; files of all."""
    forms = []
    for child in _children(part):
        form = _Content()
        _read(child, form, depth + 1)
        content.files += form.files
        forms.append((child.get_content_type() == "text/plain", form.texts))
    non_blank = [form for form in forms if any(text.strip() for text in form[1])]
    plain = [texts for is_plain, texts in non_blank if is_plain]
    content.texts += plain[0] if plain else non_blank[-1][1] if non_blank else []


def _children(part: "_Part") -> "Iterator[_Part]":
    payload = part.get_payload() if part.is_multipart() else None
    if isinstance(payload, list):
        yield from (child for child in payload if isinstance(child, Message))


def _is_text(part: "_Part", content_type: str) -> bool:
    """Whether it is text of the mail, not an attachment."""
    if content_type not in ("text/plain", "text/html", "text/enriched", "text/x-amp-html", "text"):
        return False
    disposition = str(part.get("Content-Disposition", "")).strip().lower()
    return not disposition.startswith("attachment") and not (_name(part) and not disposition.startswith("inline"))


def _text(part: "_Part", content_type: str) -> str:
    try:
        charset = part.get_param("charset")
    except Exception:  # the standard library's parsers may raise anything for broken input
        charset = None
    data = _bytes(part)[: 2 * _LONGEST_TEXT]
    text = decode_text(data, readable(str(charset)) if isinstance(charset, str) else None)
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    if content_type == "text/html":
        text = text_of_html(text)
    elif str(_param(part, "format")).lower() == "flowed":
        text = _unwrap(text, joins=str(_param(part, "delsp")).lower() == "yes")
    return text.encode("utf-8", "replace").decode()[:_LONGEST_TEXT]


def _unwrap(text: str, *, joins: bool) -> str:
    """Join the lines of flowed text (RFC 3676)."""
    lines: list[str] = []
    depth_before, is_open = 0, False
    for line in text.split("\n"):
        bare = line.lstrip(">")
        depth = len(line) - len(bare)
        bare = bare.removeprefix(" ")
        flows = bare.endswith(" ") and bare != "-- "
        if is_open and depth == depth_before and bare != "-- ":
            lines[-1] = (lines[-1][:-1] if joins else lines[-1]) + bare
        else:
            lines.append(("> " * depth) + bare)
        depth_before, is_open = depth, flows
    return "\n".join(line if line == "-- " else line.rstrip(" ") for line in lines)


def _bytes(part: "_Part") -> bytes:
    """The decoded content of a part; raw if its encoding is broken."""
    try:
        if part.get_content_type() == "message/rfc822":
            return b"".join(child.as_bytes() for child in _children(part))
        data = part.get_payload(decode=True)
        return data if isinstance(data, bytes) else b""
    except Exception:  # as above
        return b""


def _name(part: "_Part") -> str | None:
    try:
        return readable(part.get_filename() or "") or None
    except Exception:  # as above
        return None


def _param(part: "_Part", name: str) -> object:
    try:
        return part.get_param(name) or ""
    except Exception:  # as above
        return ""
