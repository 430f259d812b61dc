"""Our mails as bytes: plain words and HTML, files, and header lines that keep a thread together and robots apart."""

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

from nanobot.channels.email.auto_replies import LOOP_HEADER

NO_SUBJECT = "A message from nanobot"
_LONGEST_SUBJECT = 200
_LONGEST_REFERENCES = 900
"""Lines longer than 998 characters are refused (RFC 5322, 2.1.1)."""
_ANSWERS = re.compile(
    r"(?:(?:re|aw|sv|vs|antw|odp|rif|res|r|回复|回覆|答复|答覆|ответ|返信)\s*(?:\[\d+\]|\(\d+\))?\s*[:：]\s*)+",
    re.IGNORECASE,
)
_FOLD = policy.compat32.clone(linesep="\r\n")


@dataclass(frozen=True, slots=True)
class MailAttachment:
    """A file that goes along."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class OutgoingMail:
    """A mail of ours."""

    sender: str
    to: str
    subject: str
    message_id: str
    date: datetime
    text: str
    html: str | None = None
    files: tuple[MailAttachment, ...] = ()
    ancestors: tuple[str, ...] = ()
    """The mails it answers, oldest first; the last is the one it is in reply to."""

    def to_bytes(self) -> bytes:
        """As SMTP takes it."""
        message = self._body()
        subject = Header(self.subject, None if self.subject.isascii() else "utf-8", header_name="Subject")
        message["Subject"] = subject  # type: ignore[assignment]  # a Header folds where it may
        own = parseaddr(self.sender)[1]
        lines = {
            "From": self.sender,
            "To": self.to,
            "Date": format_datetime(self.date),
            "Message-ID": f"<{self.message_id}>",
            # RFC 3834: no program is to answer this. Exchange has a line of its own for it.
            "Auto-Submitted": "auto-replied" if self.ancestors else "auto-generated",
            "X-Auto-Response-Suppress": "All",
            LOOP_HEADER: own,
        }
        if self.ancestors:
            lines["In-Reply-To"] = f"<{self.ancestors[-1]}>"
            lines["References"] = " ".join(f"<{one}>" for one in _fitting(self.ancestors))
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
    """The subject of an answer: the prefix once, whatever prefixes of whatever language are there."""
    bare = _ANSWERS.sub("", subject.strip(), count=1) if _ANSWERS.match(subject.strip()) else subject.strip()
    return f"{prefix}{bare}"[:_LONGEST_SUBJECT].strip() or NO_SUBJECT


def first_subject(text: str) -> str:
    """The subject of a mail that answers none: how it begins."""
    line = next((line.strip() for line in text.splitlines() if any(char.isalnum() for char in line)), "")
    words = " ".join(line.split())
    return words if 0 < len(words) <= 70 else f"{words[:67].rsplit(' ', 1)[0]}..." if words else NO_SUBJECT


def message_id(salt: str, name: str, sender: str) -> str:
    """The id of a mail: the same for the same name, also after a crash; nobody without the salt can tell it."""
    digest = hashlib.sha256(f"{salt}\n{name}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
    domain = sender.rpartition("@")[2].rstrip(">")
    return f"nanobot-{digest}@{domain if domain.isascii() and domain else 'localhost'}"


def _fitting(ancestors: Sequence[str]) -> list[str]:
    """The first, and as many of the last as a line takes."""
    first, *rest = ancestors
    room = _LONGEST_REFERENCES - len(first)
    kept: list[str] = []
    for one in reversed(rest):
        room -= len(one) + 3
        if room < 0:
            break
        kept.insert(0, one)
    return [first, *kept]


def _text(text: str, subtype: str) -> MIMEText:
    """Words, in the encoding that leaves most of them as they are: base64 looks like spam where it is not needed."""
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
