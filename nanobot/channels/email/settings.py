"""Checks the config of a mailbox and prepares it for use. Errors name the key."""

import ssl
from dataclasses import dataclass, field, replace
from email.utils import formataddr, parseaddr
from pathlib import Path

from nanobot.channels.email.message import Mail, is_address
from nanobot.channels.email.sender_auth import AuthServer, SenderVerdict, auth_server, public_suffixes, verify_sender
from nanobot.channels.errors import ChannelSetupError, require_settings
from nanobot.config.channels import EmailConfig
from nanobot.net.http import is_loopback, verifying_context


@dataclass(frozen=True, slots=True)
class MailSettings:
    config: EmailConfig
    tls: ssl.SSLContext | None
    """None if no connection is encrypted."""
    imap_has_tls: bool
    """False only for a server on this machine."""
    address: str
    """Our address in lower case."""
    sender: str
    """Our address as in the From header."""
    own: frozenset[str]
    """All addresses of this mailbox."""
    checker: AuthServer = field(repr=False)

    @classmethod
    def of(cls, config: EmailConfig) -> "MailSettings":
        """Check a section. Blocking: reads certificates and the public suffix list. Raises ChannelSetupError."""
        if not config.consent_granted:
            raise ChannelSetupError(
                "channels.email.consentGranted is false. nanobot would read this mailbox, hand its mails to your model "
                "and answer them; set it to true if that is what you want."
            )
        user, password = config.imap_username, config.imap_password
        smtp = {"smtpHost": config.smtp_host} if config.auto_reply_enabled else {}
        require_settings("email", imapHost=config.imap_host, imapUsername=user, imapPassword=password, **smtp)
        if any(char in user + password for char in "\r\n\0"):
            raise ChannelSetupError("channels.email.imapUsername and imapPassword may not have a line break in them.")
        users = [name.lower() for name in (config.imap_username, config.smtp_username) if "@" in name]
        addresses = map(parseaddr, (config.from_address, config.smtp_username, config.imap_username))
        name, address = next(filter(lambda parts: is_address(parts[1]), addresses), ("", ""))
        if not address:
            raise ChannelSetupError(
                "nanobot does not know its own mail address. Set channels.email.fromAddress, such as bot@example.org."
            )
        imap_has_tls = config.imap_use_ssl or not is_loopback(config.imap_host)
        has_tls = imap_has_tls or config.smtp_use_ssl or config.smtp_use_tls or config.ca_file
        public_suffixes()
        return cls(
            config,
            _tls(config.ca_file) if has_tls else None,
            imap_has_tls,
            address.lower(),
            formataddr((name, address)) if name else address,
            frozenset({address.lower(), *users}),
            auth_server(config.imap_host, config.authserv_id or ""),
        )

    @property
    def folder(self) -> str:
        """User, host and folder."""
        return f"{self.config.imap_username}@{self.config.imap_host}/{self.config.imap_mailbox}"

    def verify_sender(self, mail: Mail) -> SenderVerdict:
        if not mail.has_one_sender:
            return SenderVerdict(False, "its From line names several people, or nobody plainly")
        if self.config.server_checks_senders:
            return SenderVerdict(True)
        verdict = verify_sender(mail.headers.lines, mail.sender.rpartition("@")[2], self.checker)
        if verdict.is_verified or mail.headers.all("Authentication-Results"):
            return verdict
        return replace(
            verdict,
            reason=f"{verdict.reason}; if it refuses forged mail itself, set channels.email.serverChecksSenders",
        )


def _tls(ca_file: str | None) -> ssl.SSLContext:
    """A TLS context that trusts the usual certificate authorities, and the owner's own."""
    context = verifying_context()
    if ca_file:
        try:
            context.load_verify_locations(Path(ca_file).expanduser())
        except OSError as error:  # ssl.SSLError is one, too
            raise ChannelSetupError(
                f"channels.email.caFile: {ca_file} holds no certificates that can be read ({error.strerror or error})."
            ) from error
    return context


def untrusted_text(host: str, key: str, error: ssl.SSLCertVerificationError) -> str:
    """The error text for a certificate that cannot be verified."""
    return (
        f"The certificate of {host} is not trusted: {error.verify_message}. Check channels.email.{key}; for a "
        "server with a certificate authority of its own, set channels.email.caFile to its file."
    )
