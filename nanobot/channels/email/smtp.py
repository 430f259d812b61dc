"""Sends mails by SMTP (RFC 5321), and converts its errors to ours.

One connection per mail: the agent sends few, and an idle connection may be lost.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiosmtplib

from nanobot.channels.errors import ChannelSetupError, NotConnectedError, SendError, UndeliverableError

ANSWER_S = 30.0
_LOGIN_REQUIRED = {530, 534, 535, 538}


@dataclass(frozen=True, slots=True)
class SmtpServer:
    """The outgoing mail server."""

    host: str
    port: int
    username: str
    password: str = field(repr=False)
    tls: ssl.SSLContext
    use_ssl: bool
    """TLS from the first byte."""
    use_starttls: bool

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
                raise UndeliverableError(f"{self.host} cannot send to an address such as {to}") from error
            except (aiosmtplib.SMTPException, OSError) as error:
                raise TimeoutError(f"{self.host} did not say whether it took the mail ({_reason(error)})") from error

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[aiosmtplib.SMTP]:
        smtp = aiosmtplib.SMTP(
            hostname=self.host,
            port=self.port,
            timeout=ANSWER_S,
            use_tls=self.use_ssl,
            start_tls=self.use_starttls and not self.use_ssl,
            tls_context=self.tls if self.use_ssl or self.use_starttls else None,
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
            if self.username:
                await smtp.login(self.username, self.password)
        except aiosmtplib.SMTPAuthenticationError as error:
            if error.code // 100 == 5:
                raise ChannelSetupError(
                    f"{self.host} rejected the user name or password ({_reason(error)}). Check channels.email."
                    "smtpUsername and channels.email.smtpPassword; many services require an app password."
                ) from error
            raise NotConnectedError(f"{self.host} refuses logins at the moment ({_reason(error)})") from error
        except ssl.SSLCertVerificationError as error:
            raise ChannelSetupError(untrusted_text(self.host, "smtpHost", error)) from error
        except aiosmtplib.SMTPNotSupported as error:
            raise ChannelSetupError(self._not_offered(error)) from error
        except (aiosmtplib.SMTPException, OSError) as error:
            if isinstance(error.__cause__, ssl.SSLCertVerificationError):
                raise ChannelSetupError(untrusted_text(self.host, "smtpHost", error.__cause__)) from error
            # No type of their own: STARTTLS is not offered, or TLS on a plain port.
            if "not supported" in str(error) or "WRONG_VERSION_NUMBER" in str(error):
                raise ChannelSetupError(self._not_offered(error)) from error
            raise NotConnectedError(f"{self.host}:{self.port} is out of reach ({_reason(error)})") from error

    def _not_offered(self, error: Exception) -> str:
        return (
            f"{self.host} does not offer what channels.email asks for ({_reason(error)}). Check smtpPort, smtpUseTls "
            "(port 587) and smtpUseSsl (port 465); leave smtpUsername empty where no login is wanted."
        )


def _raise_if_cancelled() -> None:
    """Raise a pending cancellation: Python 3.11's wait_for in aiosmtplib swallows one that arrives with an answer."""
    if (task := asyncio.current_task()) is not None and task.cancelling():
        raise asyncio.CancelledError


def untrusted_text(host: str, key: str, error: ssl.SSLCertVerificationError) -> str:
    """The error text for a certificate that cannot be verified."""
    return (
        f"The certificate of {host} is not trusted: {error.verify_message}. Check channels.email.{key}; for a "
        "server with a certificate authority of its own, set channels.email.caFile to its file."
    )


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
    return " ".join((str(getattr(error, "message", "")) or str(error) or type(error).__name__).split())[:200]
