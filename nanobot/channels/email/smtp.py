"""Handing a mail to the server that sends it (RFC 5321), and what its refusals mean.

A connection a mail: the agent writes few, and a connection that lay idle is one more thing that may be gone.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiosmtplib

from nanobot.channels.errors import ChannelSetupError, NotConnectedError, SendError, UndeliverableError

ANSWER_S = 30.0
_NOT_LET_IN = {530, 534, 535, 538}


@dataclass(frozen=True, slots=True)
class SmtpServer:
    """Where mails go out."""

    host: str
    port: int
    username: str
    password: str = field(repr=False)
    tls: ssl.SSLContext
    use_ssl: bool
    """TLS from the first byte."""
    use_starttls: bool

    async def check(self) -> None:
        """Log in and out. Raises NotConnectedError, or ChannelSetupError where only the owner can help."""
        async with self._open():
            pass

    async def send(self, mail: bytes, *, sender: str, to: str) -> None:
        """Hand over a mail; the server has it when this returns.

        Raises NotConnectedError and ChannelSetupError as `check`, UndeliverableError where it will never be taken,
        SendError where it may be later, TimeoutError where nobody knows whether it was.
        """
        options = [] if (to + sender).isascii() else ["SMTPUTF8"]
        async with self._open() as smtp:
            try:
                await smtp.sendmail(sender, [to], mail, mail_options=options)
            except aiosmtplib.SMTPRecipientsRefused as error:
                refused = error.recipients[0]
                raise _refusal(refused.code, refused.message) from error
            except aiosmtplib.SMTPResponseException as error:
                raise _refusal(error.code, error.message) from error
            except aiosmtplib.SMTPNotSupported as error:
                raise UndeliverableError(f"{self.host} cannot send to an address such as {to}") from error
            except (aiosmtplib.SMTPException, OSError) as error:
                raise TimeoutError(f"{self.host} did not say whether it took the mail ({_words(error)})") from error

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[aiosmtplib.SMTP]:
        smtp = aiosmtplib.SMTP(
            hostname=self.host,
            port=self.port,
            timeout=ANSWER_S,
            use_tls=self.use_ssl,
            start_tls=self.use_starttls and not self.use_ssl,
            tls_context=self.tls if self.use_ssl or self.use_starttls else None,
            local_hostname="localhost.localdomain",  # the name of this machine is nobody's business
        )
        try:
            await self._log_in(smtp)
            _heed_a_cancel()
            yield smtp
            _heed_a_cancel()
            try:
                await smtp.quit(timeout=2)
            except (aiosmtplib.SMTPException, OSError):
                return  # the mail is there; a goodbye is a courtesy
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
                    f"{self.host} rejected the user name or password ({_words(error)}). Check channels.email."
                    "smtpUsername and channels.email.smtpPassword; many services require an app password."
                ) from error
            raise NotConnectedError(f"{self.host} refuses logins at the moment ({_words(error)})") from error
        except ssl.SSLCertVerificationError as error:
            raise ChannelSetupError(untrusted(self.host, "smtpHost", error)) from error
        except aiosmtplib.SMTPNotSupported as error:
            raise ChannelSetupError(self._not_offered(error)) from error
        except (aiosmtplib.SMTPException, OSError) as error:
            if isinstance(error.__cause__, ssl.SSLCertVerificationError):
                raise ChannelSetupError(untrusted(self.host, "smtpHost", error.__cause__)) from error
            # What has no type of its own: STARTTLS is not offered, or TLS meets a port that begins plain.
            if "not supported" in str(error) or "WRONG_VERSION_NUMBER" in str(error):
                raise ChannelSetupError(self._not_offered(error)) from error
            raise NotConnectedError(f"{self.host}:{self.port} is out of reach ({_words(error)})") from error

    def _not_offered(self, error: Exception) -> str:
        return (
            f"{self.host} does not offer what channels.email asks for ({_words(error)}). Check smtpPort, smtpUseTls "
            "(port 587) and smtpUseSsl (port 465); leave smtpUsername empty where no login is wanted."
        )


def _heed_a_cancel() -> None:
    """Python 3.11's wait_for, by which aiosmtplib waits, swallows a cancel that comes together with the answer."""
    if (task := asyncio.current_task()) is not None and task.cancelling():
        raise asyncio.CancelledError


def untrusted(host: str, key: str, error: ssl.SSLCertVerificationError) -> str:
    """What is wrong with a certificate, and what its owner may do."""
    return (
        f"The certificate of {host} is not to be trusted: {error.verify_message}. Check channels.email.{key}; for a "
        "server with a certificate authority of its own, set channels.email.caFile to its file."
    )


def _refusal(code: int, words: str) -> Exception:
    said = f"the mail server said {code} {' '.join(words.split())[:200]}"
    if code in _NOT_LET_IN:
        return ChannelSetupError(
            f"{said}. Check channels.email.smtpUsername and channels.email.smtpPassword; without them nobody logs in."
        )
    if code == 421:
        return NotConnectedError(said)
    return UndeliverableError(said) if code // 100 == 5 else SendError(said)


def _words(error: Exception) -> str:
    return " ".join((str(getattr(error, "message", "")) or str(error) or type(error).__name__).split())[:200]
