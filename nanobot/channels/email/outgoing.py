"""Builds our mails: text and HTML, files, and headers for threading and against automatic replies."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from email import encoders, policy
from email.charset import BASE64, QP, Charset
from email.header import Header
from email.mime.base import MIMEBase
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from email.utils import format_datetime, parseaddr
from mimetypes import guess_type

from nanobot.channels.email.headers import LOOP_HEADER

NO_SUBJECT = "A message from nanobot"
_LONGEST_SUBJECT = 200
_LONGEST_REFERENCES = 900
"""Lines longer than 998 characters are refused (RFC 5322, 2.1.1)."""
_REPLY_PREFIXES = re.compile(
    r"(?:(?:re|aw|sv|vs|antw|odp|rif|res|r|回复|回覆|答复|答覆|ответ|返信)\s*(?:\[\d+\]|\(\d+\))?\s*[:：]\s*)+",
    re.IGNORECASE,
)
_FOLD = policy.compat32.clone(linesep="\r\n")


@dataclass(frozen=True, slots=True)
class MailAttachment:
    """An attached file."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class OutgoingMail:
    """A mail to send."""

    sender: str
    to: str
    subject: str
    message_id: str
    date: datetime
    text: str
    html: str | None = None
    files: tuple[MailAttachment, ...] = ()
    ancestors: tuple[str, ...] = ()
    """The mails before it in its thread, oldest first; it answers the last."""

    def to_bytes(self) -> bytes:
        """The mail as bytes for SMTP."""
        message = self._body()
        subject = Header(self.subject, None if self.subject.isascii() else "utf-8", header_name="Subject")
        message["Subject"] = subject  # type: ignore[assignment]  # a Header folds correctly
        own_address = parseaddr(self.sender)[1]
        lines = {
            "From": self.sender,
            "To": self.to,
            "Date": format_datetime(self.date),
            "Message-ID": f"<{self.message_id}>",
            # RFC 3834: no program is to answer this. Exchange has a line of its own for it.
            "Auto-Submitted": "auto-replied" if self.ancestors else "auto-generated",
            "X-Auto-Response-Suppress": "All",
            LOOP_HEADER: own_address,
        }
        if self.ancestors:
            lines["In-Reply-To"] = f"<{self.ancestors[-1]}>"
            lines["References"] = " ".join(f"<{ancestor}>" for ancestor in _fit_references(self.ancestors))
        for name, value in lines.items():
            message[name] = value
        return message.as_bytes(policy=_FOLD)

    def _body(self) -> MIMEBase:
        text: MIMEBase = _text(self.text, "plain")
        if self.html is not None:
            text = MIMEMultipart("alternative", _subparts=[text, _text(self.html, "html")])
        if not self.files:
            return text
        return MIMEMultipart("mixed", _subparts=[text, *(_part(file) for file in self.files)])


def reply_subject(subject: str, prefix: str) -> str:
    """The subject of an answer: the prefix once, instead of any prefixes in other languages."""
    subject = subject.strip()
    prefixes = _REPLY_PREFIXES.match(subject)
    bare = subject[prefixes.end() :] if prefixes else subject
    return f"{prefix}{bare}"[:_LONGEST_SUBJECT].strip() or NO_SUBJECT


def first_subject(text: str) -> str:
    """The subject of a new mail: its first words."""
    line = next((line.strip() for line in text.splitlines() if any(char.isalnum() for char in line)), "")
    words = " ".join(line.split())
    return words if 0 < len(words) <= 70 else f"{words[:67].rsplit(' ', 1)[0]}..." if words else NO_SUBJECT


def message_id(salt: str, name: str, sender: str) -> str:
    """The id of a mail: the same for the same name, also after a crash, and unpredictable without the salt."""
    digest = hashlib.sha256(f"{salt}\n{name}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
    domain = sender.rpartition("@")[2].rstrip(">")
    return f"nanobot-{digest}@{domain if domain.isascii() and domain else 'localhost'}"


def _fit_references(ancestors: Sequence[str]) -> list[str]:
    """The first ancestor, and as many of the last as fit on a line."""
    first, *rest = ancestors
    room = _LONGEST_REFERENCES - len(first)
    kept: list[str] = []
    for ancestor in reversed(rest):
        room -= len(ancestor) + 3
        if room < 0:
            break
        kept.insert(0, ancestor)
    return [first, *kept]


def _text(text: str, subtype: str) -> MIMEText:
    """A text part in quoted-printable if that is shorter: needless base64 looks like spam."""
    charset = Charset("utf-8")
    charset.body_encoding = QP if len(text.encode()) < 1.5 * len(text) else BASE64
    part = MIMEText("", subtype, "us-ascii")
    del part["Content-Transfer-Encoding"]
    part.set_payload(text, charset)
    return part


def _part(file: MailAttachment) -> MIMEBase:
    guessed, encoding = guess_type(file.name)
    main, _, sub = (guessed if guessed and not encoding else "application/octet-stream").partition("/")
    if main in ("message", "multipart"):
        main, sub = "application", "octet-stream"
    part = MIMEBase(main, sub)
    part.set_payload(file.data)
    encoders.encode_base64(part)
    name = "".join(char if char.isprintable() else "_" for char in file.name)
    part.add_header("Content-Disposition", "attachment", filename=name if name.isascii() else ("utf-8", "", name))
    return part
