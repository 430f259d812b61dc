"""Mail on loopback: an account of the bot (tests/fakes/mail_server.py), and people whose own servers sign what they
write.

What a person writes without naming a thread goes on with the conversation they have: each is a reply to the first.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.message import EmailMessage
from itertools import count
from mimetypes import guess_type
from pathlib import Path
from typing import Any

from nanobot.bus.queue import MessageBus
from nanobot.channels.email import EmailChannel
from nanobot.config.channels import EmailConfig
from nanobot.testing.platform import Platform, Shown
from tests.fakes.mail_server import PASSWORD, USER, FakeMail

_REFUSALS = {500: "451 4.3.0 try again later", 403: "550 5.1.1 no such user here"}


def config(fake: FakeMail, **settings: Any) -> EmailConfig:
    """The section that names this account."""
    usual: dict[str, Any] = {
        "enabled": True,
        "consent_granted": True,
        "imap_host": "127.0.0.1",
        "imap_port": fake.imap_port,
        "imap_username": USER,
        "imap_password": PASSWORD,
        "imap_use_ssl": False,
        "authserv_id": "mx.bot.test",
        "smtp_host": "127.0.0.1",
        "smtp_port": fake.smtp_port,
        "smtp_username": USER,
        "smtp_password": PASSWORD,
        "smtp_use_tls": False,
        "poll_interval_seconds": 0.05,
        "allow_from": ["anna@friends.test"],
    }
    return EmailConfig(**(usual | settings))


def signed(sender: str) -> str:
    """What the bot's own server writes above a mail whose DMARC it has checked."""
    return f"mx.bot.test; dmarc=pass header.from={sender.rpartition('@')[2]}"


class EmailPlatform(Platform):
    name = "email"
    person = "anna@friends.test"
    stranger = "mallory@elsewhere.test"
    private = "anna@friends.test"
    stranger_chat = "mallory@elsewhere.test"
    limit = 0
    threads = True
    thread = "the-other-thread@friends.test"
    files = True
    quotes = True
    queues_messages = True
    shows_progress = False
    rate_limits = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fake = FakeMail()
        self._numbers = count(1)
        self._last = b""

    @asynccontextmanager
    async def open(self) -> AsyncIterator["EmailPlatform"]:
        async with self.fake.open():
            yield self

    def channel(self, bus: MessageBus, **settings: Any) -> EmailChannel:
        return EmailChannel(config(self.fake, **({"max_replies_per_hour": 1000} | settings)), bus)

    async def says(
        self,
        text: str,
        *,
        sender: str | None = None,
        chat: str | None = None,
        thread: str | None = None,
        mention: bool = False,
        file: Path | None = None,
        reply_to: str | None = None,
    ) -> str:
        who = sender or chat or self.person
        message_id = f"mail-{next(self._numbers)}@{who.rpartition('@')[2]}"
        mail = EmailMessage()
        mail["Authentication-Results"] = signed(who)
        mail["From"], mail["To"], mail["Message-ID"] = who, USER, f"<{message_id}>"
        root = thread or f"conversation-of-{who}"
        mail["References"] = f"<{root}>"
        mail["In-Reply-To"] = f"<{reply_to or root}>"
        mail.set_content(text)
        if file is not None:
            main, _, sub = (guess_type(file.name)[0] or "application/octet-stream").partition("/")
            mail.add_attachment(file.read_bytes(), main, sub, filename=file.name)
        self._last = mail.as_bytes(policy=mail.policy.clone(linesep="\r\n"))
        self.fake.deliver(self._last)
        return message_id

    def shown(self, chat: str | None = None) -> list[Shown]:
        return [
            Shown(
                mail.message["Message-ID"].strip("<>"),
                mail.text,
                [str(part.get_filename()) for part in mail.message.iter_attachments()],
                (mail.message["In-Reply-To"] or "").strip("<>") or None,
                (mail.message["References"] or "").split()[0].strip("<>") if mail.message["References"] else None,
            )
            for mail in self.fake.sent
            if mail.to == [chat or self.private]
        ]

    async def repeat_last(self) -> None:
        self.fake.deliver(self._last)

    def acknowledged(self, message_id: str) -> bool:
        return any("\\Seen" in mail.flags for mail in self.fake.mails if f"<{message_id}>".encode() in mail.raw)

    def refuse(self, times: int, *, status: int = 500, retry_after_s: float | None = None) -> None:
        self.fake.refusals = [_REFUSALS[status]] * times

    async def drop(self) -> None:
        self.fake.cut()
        await asyncio.sleep(0)

    async def gone(self, *, gone: bool) -> None:
        await (self.fake.vanish() if gone else self.fake.listen())

    async def half_open(self) -> None:
        for one in self.fake.connections:
            one.mute = True

    async def revoke(self) -> None:
        self.fake.password = "another"
        self.fake.cut()
