"""Builds mails (text and HTML, files, headers for threading and against automatic replies) and sends them by SMTP."""

import asyncio
import hashlib
import re
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from email import policy
from email.message import EmailMessage
from email.utils import format_datetime
from mimetypes import guess_type

import aiosmtplib

from nanobot.channels.email.message import LOOP_HEADER, MailFile
from nanobot.channels.email.settings import MailSettings, untrusted_text
from nanobot.channels.errors import ChannelSetupError, NotConnectedError, SendError, UndeliverableError
from nanobot.channels.outgoing import SLOWEST_UPLOAD
from nanobot.utils.storage_error import os_reason

NO_SUBJECT = "A message from nanobot"
_LONGEST_SUBJECT = 200
_LONGEST_REFERENCES = 900
"""Lines longer than 998 characters are refused (RFC 5322, 2.1.1)."""
_REPLY_PREFIXES = re.compile(
    r"(?:(?:re|aw|sv|vs|antw|odp|rif|res|r|回复|回覆|答复|答覆|ответ|返信)\s*(?:\[\d+\]|\(\d+\))?\s*[:：]\s*)+",
    re.IGNORECASE,
)
_TIMEOUT_S = 30.0
_LOGIN_REQUIRED = {530, 534, 535, 538}
_POLICY = policy.SMTP.clone(cte_type="7bit")


@dataclass(frozen=True, slots=True)
class OutgoingMail:
    sender: str
    to: str
    subject: str
    message_id: str
    date: datetime
    text: str
    html: str | None = None
    files: tuple[MailFile, ...] = ()
    ancestors: tuple[str, ...] = ()
    """The mails before it in its thread, oldest first; it answers the last."""

    @property
    def needs_utf8(self) -> bool:
        """Whether only a server with SMTPUTF8 (RFC 6531) can send it."""
        return not (self.to + self.sender).isascii()

    def to_bytes(self) -> bytes:
        mail = EmailMessage(_POLICY.clone(utf8=self.needs_utf8))
        mail["From"], mail["To"], mail["Subject"] = self.sender, self.to, self.subject
        mail["Date"], mail["Message-ID"] = format_datetime(self.date), f"<{self.message_id}>"
        # RFC 3834: no program is to answer this. Exchange has a line of its own for it.
        mail["Auto-Submitted"] = "auto-replied" if self.ancestors else "auto-generated"
        mail["X-Auto-Response-Suppress"] = "All"
        mail[LOOP_HEADER] = mail["From"].addresses[0].addr_spec
        mail.set_content(self.text)
        if self.html is not None:
            mail.add_alternative(self.html, subtype="html")
        for file in self.files:
            main, _, sub = file.content_type.partition("/")
            mail.add_attachment(file.data, main, sub, filename=file.name)
        raw = mail.as_bytes()
        if self.ancestors:  # not by `email`, which breaks long ids in two
            references = " ".join(f"<{ancestor}>" for ancestor in self.ancestors)
            raw = f"In-Reply-To: <{self.ancestors[-1]}>\r\nReferences: {references}\r\n".encode() + raw
        return raw


def content_type(name: str) -> str:
    """The type of a file to attach, by its name."""
    guessed, encoding = guess_type(name)
    is_plain = guessed and not encoding and not guessed.startswith(("message/", "multipart/"))
    return guessed if guessed and is_plain else "application/octet-stream"


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


def fit_references(ancestors: Sequence[str]) -> tuple[str, ...]:
    """The first ancestor, and as many of the last as fit on a line."""
    first, *rest = ancestors or ("",)
    room = _LONGEST_REFERENCES - len(first)
    kept: list[str] = []
    for ancestor in reversed(rest):
        room -= len(ancestor) + 3
        if room < 0:
            break
        kept.insert(0, ancestor)
    return (first, *kept) if ancestors else ()


async def send_mail(settings: MailSettings, mail: OutgoingMail) -> None:
    """Send a mail; the server has it when this returns.

    Raises NotConnectedError and ChannelSetupError as `open_smtp` does, UndeliverableError for a permanent refusal,
    SendError for a temporary one, TimeoutError if it is unknown whether the server took the mail.
    """
    host, raw = settings.config.smtp_host, await asyncio.to_thread(mail.to_bytes)
    options = ["SMTPUTF8"] if mail.needs_utf8 else []
    async with open_smtp(settings) as smtp:
        try:
            # aiosmtplib counts sending the mail as waiting for the answer to it
            timeout_s = _TIMEOUT_S + len(raw) / SLOWEST_UPLOAD
            await smtp.sendmail(settings.address, [mail.to], raw, mail_options=options, timeout=timeout_s)
        except aiosmtplib.SMTPRecipientsRefused as error:
            raise _refusal(error.recipients[0].code, error.recipients[0].message) from error
        except aiosmtplib.SMTPResponseException as error:
            raise _refusal(error.code, error.message) from error
        except aiosmtplib.SMTPNotSupported as error:
            raise UndeliverableError(f"{host} cannot send to an address such as {mail.to}") from error
        except (aiosmtplib.SMTPException, OSError) as error:
            raise TimeoutError(f"{host} did not say whether it took the mail ({_reason(error)})") from error


@asynccontextmanager
async def open_smtp(settings: MailSettings) -> AsyncIterator[aiosmtplib.SMTP]:
    """A connection for one mail: the agent sends few, and an idle connection may be lost.

    Raises NotConnectedError; ChannelSetupError if the owner has to act.
    """
    config = settings.config
    has_tls = config.smtp_use_ssl or config.smtp_use_tls
    smtp = aiosmtplib.SMTP(
        hostname=config.smtp_host,
        port=config.smtp_port,
        username=config.smtp_username or None,
        password=config.smtp_password,
        timeout=_TIMEOUT_S,
        use_tls=config.smtp_use_ssl,
        start_tls=config.smtp_use_tls and not config.smtp_use_ssl,
        tls_context=settings.tls if has_tls else None,
        local_hostname="localhost.localdomain",  # do not reveal the name of this machine
    )
    try:
        try:
            await smtp.connect()
        except (aiosmtplib.SMTPException, OSError) as error:
            raise _connect_error(settings, error) from error
        yield smtp
        try:
            await smtp.quit(timeout=2)
        except (aiosmtplib.SMTPException, OSError):
            return  # the mail is delivered; a clean end is optional
    finally:
        smtp.close()


def _connect_error(settings: MailSettings, error: Exception) -> Exception:
    host, reason = settings.config.smtp_host, _reason(error)
    if isinstance(error, aiosmtplib.SMTPAuthenticationError):
        if error.code // 100 != 5:
            return NotConnectedError(f"{host} refuses logins at the moment ({reason})")
        return ChannelSetupError(
            f"{host} rejected the user name or password ({reason}). Check channels.email.smtpUsername and "
            "channels.email.smtpPassword; many services require an app password."
        )
    for cause in (error, error.__cause__):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return ChannelSetupError(untrusted_text(host, "smtpHost", cause))
    # No type of their own: STARTTLS is not offered, or TLS on a plain port.
    is_wrong = "not supported" in str(error) or "WRONG_VERSION_NUMBER" in str(error)
    if is_wrong or isinstance(error, aiosmtplib.SMTPNotSupported):
        return ChannelSetupError(
            f"{host} does not offer what channels.email asks for ({reason}). Check smtpPort, smtpUseTls (port 587) and "
            "smtpUseSsl (port 465); leave smtpUsername empty where no login is wanted."
        )
    return NotConnectedError(f"{host}:{settings.config.smtp_port} is out of reach ({reason})")


def _refusal(code: int, words: str) -> Exception:
    text = f"the mail server said {code} {' '.join(words.split())[:200]}"
    if code in _LOGIN_REQUIRED:
        return ChannelSetupError(
            f"{text}. Check channels.email.smtpUsername and channels.email.smtpPassword; without them nobody logs in."
        )
    if code == 421:
        return NotConnectedError(text)
    return UndeliverableError(text) if code // 100 == 5 else SendError(text)


def _reason(error: Exception) -> str:
    if isinstance(cause := error.__cause__ or error, OSError):
        return os_reason(cause)
    return " ".join((str(getattr(error, "message", "")) or str(error) or type(error).__name__).split())[:200]
