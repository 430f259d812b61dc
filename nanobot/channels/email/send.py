"""Builds mails (text and HTML, files, headers for threading and against automatic replies) and sends them by SMTP."""

import asyncio
import hashlib
import re
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from email import encoders, policy
from email.charset import BASE64, QP, Charset
from email.header import Header
from email.mime.base import MIMEBase
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from email.utils import format_datetime, parseaddr
from mimetypes import guess_type

import aiosmtplib

from nanobot.channels.email.message import LOOP_HEADER
from nanobot.channels.email.settings import untrusted_text
from nanobot.channels.errors import ChannelSetupError, NotConnectedError, SendError, UndeliverableError
from nanobot.config.channels import EmailConfig
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


@dataclass(frozen=True, slots=True)
class SmtpServer:
    """The outgoing mail server. One connection per mail: the agent sends few, and an idle connection may be lost."""

    config: EmailConfig
    tls: ssl.SSLContext | None = field(repr=False)

    async def check(self) -> None:
        """Log in and out. Raises NotConnectedError; ChannelSetupError if the owner has to act."""
        async with self._open():
            pass

    async def send(self, mail: bytes, *, sender: str, to: str) -> None:
        """Send a mail; the server has it when this returns.

        Raises NotConnectedError and ChannelSetupError as `check` does, UndeliverableError for a permanent refusal,
        SendError for a temporary one, TimeoutError if it is unknown whether the server took the mail.
        """
        options = [] if (to + sender).isascii() else ["SMTPUTF8"]
        async with self._open() as smtp:
            try:
                await smtp.sendmail(sender, [to], mail, mail_options=options)
            except aiosmtplib.SMTPRecipientsRefused as error:
                refused = error.recipients[0]
                raise _error_of(refused.code, refused.message) from error
            except aiosmtplib.SMTPResponseException as error:
                raise _error_of(error.code, error.message) from error
            except aiosmtplib.SMTPNotSupported as error:
                raise UndeliverableError(f"{self.config.smtp_host} cannot send to an address such as {to}") from error
            except (aiosmtplib.SMTPException, OSError) as error:
                raise TimeoutError(
                    f"{self.config.smtp_host} did not say whether it took the mail ({_reason(error)})"
                ) from error

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[aiosmtplib.SMTP]:
        config = self.config
        smtp = aiosmtplib.SMTP(
            hostname=config.smtp_host,
            port=config.smtp_port,
            timeout=_TIMEOUT_S,
            use_tls=config.smtp_use_ssl,
            start_tls=config.smtp_use_tls and not config.smtp_use_ssl,
            tls_context=self.tls if config.smtp_use_ssl or config.smtp_use_tls else None,
            local_hostname="localhost.localdomain",  # do not reveal the name of this machine
        )
        try:
            await self._log_in(smtp)
            _raise_if_cancelled()
            yield smtp
            _raise_if_cancelled()
            try:
                await smtp.quit(timeout=2)
            except (aiosmtplib.SMTPException, OSError):
                return  # the mail is delivered; a clean end is optional
        finally:
            smtp.close()

    async def _log_in(self, smtp: aiosmtplib.SMTP) -> None:
        try:
            await smtp.connect()
            if self.config.smtp_username:
                await smtp.login(self.config.smtp_username, self.config.smtp_password)
        except aiosmtplib.SMTPAuthenticationError as error:
            if error.code // 100 == 5:
                raise ChannelSetupError(
                    f"{self.config.smtp_host} rejected the user name or password ({_reason(error)}). Check "
                    "channels.email.smtpUsername and channels.email.smtpPassword; many services "
                    "require an app password."
                ) from error
            raise NotConnectedError(
                f"{self.config.smtp_host} refuses logins at the moment ({_reason(error)})"
            ) from error
        except ssl.SSLCertVerificationError as error:
            raise ChannelSetupError(untrusted_text(self.config.smtp_host, "smtpHost", error)) from error
        except aiosmtplib.SMTPNotSupported as error:
            raise ChannelSetupError(self._not_offered(error)) from error
        except (aiosmtplib.SMTPException, OSError) as error:
            if isinstance(error.__cause__, ssl.SSLCertVerificationError):
                raise ChannelSetupError(untrusted_text(self.config.smtp_host, "smtpHost", error.__cause__)) from error
            # No type of their own: STARTTLS is not offered, or TLS on a plain port.
            if "not supported" in str(error) or "WRONG_VERSION_NUMBER" in str(error):
                raise ChannelSetupError(self._not_offered(error)) from error
            raise NotConnectedError(
                f"{self.config.smtp_host}:{self.config.smtp_port} is out of reach ({_reason(error)})"
            ) from error

    def _not_offered(self, error: Exception) -> str:
        return (
            f"{self.config.smtp_host} does not offer what channels.email asks for ({_reason(error)}). "
            "Check smtpPort, smtpUseTls (port 587) and smtpUseSsl (port 465); leave smtpUsername empty where no login "
            "is wanted."
        )


def _raise_if_cancelled() -> None:
    """Raise a pending cancellation: Python 3.11's wait_for in aiosmtplib swallows one that arrives with an answer."""
    if (task := asyncio.current_task()) is not None and task.cancelling():
        raise asyncio.CancelledError


def _error_of(code: int, words: str) -> Exception:
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
