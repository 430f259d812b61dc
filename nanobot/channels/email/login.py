"""Logs in to the mailbox, and converts failures to errors that say what the owner has to change."""

import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from nanobot import __version__
from nanobot.channels.email.imap import Folder, Imap, ImapRefusedError, NoTlsError, open_imap
from nanobot.channels.email.settings import MailSettings
from nanobot.channels.email.smtp import untrusted_text
from nanobot.channels.errors import ChannelSetupError

_TEMPORARY = re.compile(
    r"\[(?:UNAVAILABLE|INUSE|LIMIT|SERVERBUG|OVERQUOTA)\]|too many|try again|temporar", re.IGNORECASE
)


@asynccontextmanager
async def open_mailbox(
    settings: MailSettings, touch: Callable[[], None] = lambda: None, *, read_only: bool = False
) -> AsyncIterator[tuple[Imap, Folder]]:
    """Open the configured mailbox; `touch` is called whenever its server sends something.

    With `read_only` the server allows no changes. Raises ChannelSetupError if the owner has to act, ConnectionError and
    TimeoutError for temporary failures.
    """
    config = settings.config
    async with _logged_in(settings, touch) as imap:
        try:
            folder = await (imap.examine if read_only else imap.select)(config.imap_mailbox)
        except ImapRefusedError as error:
            raise ChannelSetupError(
                f"{config.imap_host} does not open the mailbox {config.imap_mailbox!r} ({error}). "
                "Check channels.email.imapMailbox."
            ) from error
        yield imap, folder


@asynccontextmanager
async def _logged_in(settings: MailSettings, touch: Callable[[], None]) -> AsyncIterator[Imap]:
    config, host = settings.config, settings.config.imap_host
    try:
        async with open_imap(settings.imap, touch) as imap:
            try:
                await imap.log_in(config.imap_username, config.imap_password)
            except ImapRefusedError as error:
                if _TEMPORARY.search(str(error)):
                    raise ConnectionError(f"{host} refuses logins at the moment ({error})") from error
                raise ChannelSetupError(
                    f"{host} rejected the user name or password ({error}). Check channels.email.imapUsername and "
                    "channels.email.imapPassword; many services require an app password."
                ) from error
            await imap.introduce("nanobot", __version__)
            yield imap
    except NoTlsError as error:
        raise ChannelSetupError(
            f"The mailbox cannot be read by TLS: {error}. Check channels.email.imapPort and imapUseSsl; 993 "
            "goes with true, 143 with false."
        ) from error
    except ssl.SSLCertVerificationError as error:
        raise ChannelSetupError(untrusted_text(host, "imapHost", error)) from error
    except ImapRefusedError as error:
        raise ConnectionError(f"{host} refused a command ({error})") from error
