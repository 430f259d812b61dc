"""Searches and reads the mailbox for the mail tool, over a read-only connection of its own.

No flag changes, and the position of the channel is not affected.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from typing import Any

from nanobot.channels.email.message import Headers, Mail, MailFile, read_mail
from nanobot.channels.email.quotes import split_quote
from nanobot.channels.email.receive import FetchedMail, Mailbox, imap_day, open_mailbox
from nanobot.channels.email.settings import MailSettings
from nanobot.channels.errors import ChannelSetupError
from nanobot.config.channels import EmailConfig
from nanobot.errors import NanobotError
from nanobot.utils.text import clip, clip_line, human_size

MAX_SEARCHED = 1000
"""Most mails whose headers are read for one search, the newest first."""
_AT_ONCE = 100
_LARGEST_MAIL = 8 * 1024 * 1024
"""In bytes; larger mails are read only in part."""
_LONGEST_HEAD = 16 * 1024
_LONGEST_LINE = 300
_ANSWER_S = 60.0
_DAY_S = 86400.0


class NoSuchMailError(NanobotError):
    """The requested mail does not exist."""


class MailReader:
    """Reads the configured mailbox. Both methods raise NanobotError or OSError."""

    def __init__(self, config: Callable[[], EmailConfig], zone: tzinfo | None = None) -> None:
        """`config` is called each time, since it may change. `zone` is the user's; None for the host's."""
        self._config = config
        self._zone = zone

    async def find(
        self, *, unread: bool, since: datetime | None, sender: str, subject: str, limit: int
    ) -> dict[str, Any]:
        """The newest mails that match all criteria, newest first, at most `limit`."""
        async with asyncio.timeout(_ANSWER_S):
            settings = await self._settings()
            async with open_mailbox(settings, read_only=True) as mailbox:
                return await self._search(settings, mailbox, unread, since, (sender, subject), limit)

    async def read(self, mail_id: str) -> dict[str, Any]:
        """One mail by its id from `find`."""
        validity, _, uid = mail_id.strip().partition("-")
        if not (validity.isdecimal() and uid.isdecimal()):
            raise NoSuchMailError(f"{mail_id!r} is no id of a mail. `list` gives each mail one, such as 1-23.")
        async with asyncio.timeout(_ANSWER_S):
            settings = await self._settings()
            async with open_mailbox(settings, read_only=True) as mailbox:
                if int(validity) != mailbox.validity:
                    raise NoSuchMailError("The server has renumbered the mailbox since. List the mails again.")
                fetched = await mailbox.fetch(int(uid), largest=_LARGEST_MAIL)
            if fetched is None:
                raise NoSuchMailError(f"There is no mail {mail_id} any more. List the mails again.")
            mail = await asyncio.to_thread(read_mail, fetched.raw)
            return self._whole(settings, mailbox, fetched, mail)

    async def _settings(self) -> MailSettings:
        """The current settings. Raises ChannelSetupError if the channel was switched off."""
        config = self._config()
        if not config.enabled:
            raise ChannelSetupError("channels.email is switched off.")
        return await asyncio.to_thread(MailSettings.of, config)

    async def _search(
        self,
        settings: MailSettings,
        mailbox: Mailbox,
        unread: bool,
        since: datetime | None,
        words: tuple[str, str],
        limit: int,
    ) -> dict[str, Any]:
        after = since.timestamp() if since is not None else 0.0
        days = [f"SINCE {imap_day(after - _DAY_S)}"] if since is not None else []  # the server uses its own time zone
        uids = (await mailbox.search(" ".join([*(["UNSEEN"] if unread else []), *days]) or "ALL"))[::-1]
        matches: list[dict[str, Any]] = []
        searched = 0
        while searched < min(len(uids), MAX_SEARCHED) and len(matches) < limit:
            batch = uids[searched : searched + _AT_ONCE]
            searched += len(batch)
            for head in await mailbox.heads(
                batch, ("FROM", "SUBJECT", "AUTHENTICATION-RESULTS"), longest=_LONGEST_HEAD
            ):
                mail = read_mail(head.raw)
                fields = (mail.headers.text("From"), mail.subject)
                fits = all(word.casefold() in text.casefold() for word, text in zip(words, fields, strict=True))
                if fits and head.received_at >= after and len(matches) < limit:
                    matches.append(self._head(settings, mailbox, head, mail))
        result: dict[str, Any] = {"mails": matches}
        if len(matches) < limit and searched < len(uids):
            result["note"] = (
                f"Only the newest {searched} of {len(uids)} mails were looked at; ask with since or unread."
            )
        return result

    def _head(self, settings: MailSettings, mailbox: Mailbox, fetched: FetchedMail, mail: Mail) -> dict[str, Any]:
        return {
            "mail": f"{mailbox.validity}-{fetched.uid}",
            "received": self._time(fetched),
            "from": _line(mail.headers, "From"),
            "sender_proven": settings.verify_sender(mail).is_verified,
            "subject": clip_line(mail.subject, _LONGEST_LINE),
            "unread": not fetched.is_seen,
            "size": human_size(fetched.size),
        }

    def _whole(self, settings: MailSettings, mailbox: Mailbox, fetched: FetchedMail, mail: Mail) -> dict[str, Any]:
        new, quoted = split_quote(mail.text)
        result = self._head(settings, mailbox, fetched, mail)
        result |= {name.lower(): line for name in ("To", "Cc") if (line := _line(mail.headers, name))}
        result["text"] = clip(new.strip(), settings.config.max_body_chars, "{left_out} characters left out")
        if quoted.strip():
            result["quoted"] = clip(
                quoted.strip(), settings.config.max_body_chars // 4, "{left_out} characters left out"
            )
        if mail.files:
            result["attachments"] = [_describe_file(file) for file in mail.files]
        if not fetched.is_whole:
            result["note"] = f"The mail is {human_size(fetched.size)}; only its beginning was read."
        return result

    def _time(self, fetched: FetchedMail) -> str:
        """When it arrived, in the user's time zone; as the server wrote it if that cannot be parsed."""
        try:
            moment = datetime.fromtimestamp(fetched.received_at, UTC)
        except (OverflowError, ValueError, OSError):
            return fetched.received[:40]
        return f"{moment.astimezone(self._zone):%Y-%m-%d %H:%M %z}"


def _describe_file(file: MailFile) -> str:
    name = clip_line(file.name or "without a name", _LONGEST_LINE)
    return f"{name} ({file.content_type}, {human_size(len(file.data))})"


def _line(headers: Headers, name: str) -> str:
    return clip_line(headers.text(name), _LONGEST_LINE)
