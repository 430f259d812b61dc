"""Searches and reads the mailbox for the mail tool, over a read-only connection of its own.

No flag changes, and the position of the channel is not affected.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from imap_tools import AND

from nanobot.channels.email.message import Mail, read_mail, split_quote
from nanobot.channels.email.receive import FetchedMail, Mailbox, in_mailbox
from nanobot.channels.email.settings import MailSettings
from nanobot.channels.errors import ChannelSetupError
from nanobot.config.channels import EmailConfig
from nanobot.errors import NanobotError
from nanobot.utils.text import clip, clip_line, human_size

MAX_SEARCHED = 1000
"""Most mails whose headers are read for one search, the newest first."""
_AT_ONCE = 100
_LONGEST_LINE = 300
_ANSWER_S = 60.0


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
        return await self._in_mailbox(
            lambda settings, mailbox: self._search(settings, mailbox, unread, since, (sender, subject), limit)
        )

    async def read(self, mail_id: str) -> dict[str, Any]:
        """One mail by its id from `find`."""
        validity, _, uid = mail_id.strip().partition("-")
        if not (validity.isdecimal() and uid.isdecimal()):
            raise NoSuchMailError(f"{mail_id!r} is no id of a mail. `list` gives each mail one, such as 1-23.")

        def read(settings: MailSettings, mailbox: Mailbox) -> dict[str, Any]:
            if int(validity) != mailbox.validity:
                raise NoSuchMailError("The server has renumbered the mailbox since. List the mails again.")
            for fetched in mailbox.fetch([int(uid)]):
                return self._whole(settings, mailbox, fetched)
            raise NoSuchMailError(f"There is no mail {mail_id} any more. List the mails again.")

        return await self._in_mailbox(read)

    async def _in_mailbox(self, work: Callable[[MailSettings, Mailbox], dict[str, Any]]) -> dict[str, Any]:
        """Raises ChannelSetupError if the channel was switched off."""
        config = self._config()
        if not config.enabled:
            raise ChannelSetupError("channels.email is switched off.")
        async with asyncio.timeout(_ANSWER_S):
            settings = await asyncio.to_thread(MailSettings.of, config)
            return await in_mailbox(settings, lambda mailbox: work(settings, mailbox), read_only=True)

    def _search(
        self,
        settings: MailSettings,
        mailbox: Mailbox,
        unread: bool,
        since: datetime | None,
        words: tuple[str, str],
        limit: int,
    ) -> dict[str, Any]:
        after = since.timestamp() if since is not None else 0.0
        day = (since - timedelta(days=1)).date() if since is not None else None  # the server uses its own time zone
        uids = mailbox.search(AND(all=True, seen=False if unread else None, date_gte=day))[::-1]
        matches: list[dict[str, Any]] = []
        searched = 0
        while searched < min(len(uids), MAX_SEARCHED) and len(matches) < limit:
            batch = uids[searched : searched + _AT_ONCE]
            searched += len(batch)
            for head in sorted(mailbox.fetch(batch, headers_only=True), key=lambda head: -head.uid):
                mail = read_mail(head.raw)
                fields = (mail.headers.text("From"), mail.subject)
                fits = all(word.casefold() in text.casefold() for word, text in zip(words, fields, strict=True))
                is_recent = head.received_at is None or head.received_at >= after
                if fits and is_recent and len(matches) < limit:
                    matches.append(self._head(settings, mailbox, head, mail))
        result: dict[str, Any] = {"mails": matches}
        if len(matches) < limit and searched < len(uids):
            result["note"] = (
                f"Only the newest {searched} of {len(uids)} mails were looked at; ask with since or unread."
            )
        return result

    def _head(self, settings: MailSettings, mailbox: Mailbox, fetched: FetchedMail, mail: Mail) -> dict[str, Any]:
        received = ""
        if fetched.received_at is not None:
            received = f"{datetime.fromtimestamp(fetched.received_at, UTC).astimezone(self._zone):%Y-%m-%d %H:%M %z}"
        return {
            "mail": f"{mailbox.validity}-{fetched.uid}",
            "received": received,
            "from": _line(mail, "From"),
            "sender_proven": settings.verify_sender(mail).is_verified,
            "subject": clip_line(mail.subject, _LONGEST_LINE),
            "unread": not fetched.is_seen,
            "size": human_size(fetched.size),
        }

    def _whole(self, settings: MailSettings, mailbox: Mailbox, fetched: FetchedMail) -> dict[str, Any]:
        mail = read_mail(fetched.raw)
        new, quoted = split_quote(mail.text)
        most, note = settings.config.max_body_chars, "{left_out} characters left out"
        result = self._head(settings, mailbox, fetched, mail)
        result |= {name.lower(): line for name in ("To", "Cc") if (line := _line(mail, name))}
        result["text"] = clip(new.strip(), most, note)
        if quoted.strip():
            result["quoted"] = clip(quoted.strip(), most // 4, note)
        if mail.files:
            result["attachments"] = [
                f"{clip_line(file.name or 'without a name', _LONGEST_LINE)} "
                f"({file.content_type}, {human_size(len(file.data))})"
                for file in mail.files
            ]
        if not fetched.is_whole:
            result["note"] = f"The mail is {human_size(fetched.size)}; only its beginning was read."
        return result


def _line(mail: Mail, name: str) -> str:
    return clip_line(mail.headers.text(name), _LONGEST_LINE)
