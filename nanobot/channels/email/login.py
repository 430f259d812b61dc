"""The way into a mailbox: who is asked, and what an owner has to change where they are not let in."""

import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from nanobot import __version__
from nanobot.channels.email.imap import Folder, Imap, ImapRefusedError, NoTlsError, open_imap
from nanobot.channels.email.settings import MailSettings
from nanobot.channels.email.smtp import untrusted
from nanobot.channels.errors import ChannelSetupError

_NOT_NOW = re.compile(r"\[(?:UNAVAILABLE|INUSE|LIMIT|SERVERBUG|OVERQUOTA)\]|too many|try again|temporar", re.IGNORECASE)


@asynccontextmanager
async def open_mailbox(
    settings: MailSettings, sign: Callable[[], None] = lambda: None, *, only_look: bool = False
) -> AsyncIterator[tuple[Imap, Folder]]:
    """The mailbox of the settings, opened; `sign` is called whenever its server says something.

    Who only looks can change nothing in it, by the server's own word. Raises ChannelSetupError where its owner has to
    help, ConnectionError and TimeoutError where it may be better later.
    """
    config = settings.config
    async with _logged_in(settings, sign) as imap:
        try:
            folder = await (imap.examine if only_look else imap.select)(config.imap_mailbox)
        except ImapRefusedError as error:
            raise ChannelSetupError(
                f"{config.imap_host} does not open the mailbox {config.imap_mailbox!r} ({error}). "
                "Check channels.email.imapMailbox."
            ) from error
        yield imap, folder


@asynccontextmanager
async def _logged_in(settings: MailSettings, sign: Callable[[], None]) -> AsyncIterator[Imap]:
    config, host = settings.config, settings.config.imap_host
    try:
        async with open_imap(settings.imap, sign) as imap:
            try:
                await imap.log_in(config.imap_username, config.imap_password)
            except ImapRefusedError as error:
                if _NOT_NOW.search(str(error)):
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
        raise ChannelSetupError(untrusted(host, "imapHost", error)) from error
    except ImapRefusedError as error:
        raise ConnectionError(f"{host} refused a command ({error})") from error
