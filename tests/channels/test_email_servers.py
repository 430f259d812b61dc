"""Dovecot and Postfix in earnest: TLS, IDLE, a wrong password, forged senders, a mailbox that writes to itself."""

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from email import message_from_bytes
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from nanobot.bus.queue import MessageBus
from nanobot.channels.email import EmailChannel
from nanobot.channels.email.mailbox import in_mailbox
from nanobot.channels.email.message import read_mail
from nanobot.channels.email.settings import MailSettings
from nanobot.channels.status import ChannelState
from nanobot.config.channels import EmailConfig
from nanobot.testing.live_channel import LiveChannel, live
from tests.fakes.platform_email import EmailPlatform
from tests.support.eventually import eventually
from tests.support.mail_servers import PASSWORD, MailServers, mail_servers, missing

BOT, ANNA = "bot@bot.test", "anna@friends.test"

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing() or "they are here"),
    pytest.mark.xdist_group("mail servers"),
]


@pytest.fixture(scope="module")
def servers() -> Iterator[MailServers]:
    with mail_servers() as found:
        yield found


class RealMail(EmailPlatform):
    """The channel with the servers as its own."""

    def __init__(self, folder: Path, servers: MailServers) -> None:
        super().__init__(folder)
        self.servers = servers

    def channel(self, bus: MessageBus, **settings: Any) -> EmailChannel:
        usual: dict[str, Any] = {
            "consent_granted": True,
            "imap_host": "localhost",
            "imap_port": self.servers.imaps_port,
            "imap_username": BOT,
            "imap_password": PASSWORD,
            "smtp_host": "localhost",
            "smtp_port": self.servers.smtp_port,
            "smtp_username": BOT,
            "smtp_password": PASSWORD,
            "ca_file": str(self.servers.ca_file),
            "authserv_id": "mx.bot.test",
            "poll_interval_seconds": 600,
            "allow_from": [ANNA],
        }
        return EmailChannel(EmailConfig(**(usual | settings)), bus)


@pytest.fixture
def mail(servers: MailServers, tmp_path: Path) -> RealMail:
    servers.sweep()
    return RealMail(tmp_path, servers)


def letter(text: str, *, sender: str = ANNA, **lines: str) -> bytes:
    message = EmailMessage()
    lines = {"From": sender, "To": BOT, "Message-ID": f"<{os.urandom(6).hex()}@friends.test>"} | lines
    for name, value in lines.items():
        message[name] = value
    message.set_content(text)
    return message.as_bytes()


async def submit(mail: RealMail, raw: bytes, *, sender: str = ANNA, host: str = "mail.friends.test") -> None:
    await asyncio.to_thread(mail.servers.submit, raw, sender=sender, to=BOT, host=host)


def answers(mail: RealMail, about: str) -> list[bytes]:
    """What Anna got that says this."""
    return [one for one in mail.servers.mails(ANNA) if about in read_mail(one).text]


async def settled(life: LiveChannel, mail: RealMail, word: str) -> list[str]:
    """What was heard before a last word, which was delivered behind all else."""
    await submit(mail, letter(word))
    await life.hears(word)
    return [one.content for one in life.heard if word not in one.content]


async def test_a_mail_is_heard_as_it_comes_and_answered_in_its_thread(mail, tmp_path):
    async with live(mail, tmp_path) as life:
        await life.is_up()
        await asyncio.sleep(0.1)  # it waits in IDLE by now, and would ask by itself in ten minutes
        await submit(mail, letter("hello there", Subject="Grüße"))
        message = await life.hears("hello there")
        (raw,) = await eventually(lambda: answers(mail, "You said"))

    answer = message_from_bytes(raw)
    assert message.session_key == f"email:{ANNA}:{message.message_id}"
    assert answer["In-Reply-To"] == f"<{message.message_id}>"
    assert answer["Auto-Submitted"] == "auto-replied"
    assert b"with ESMTPSA" in raw  # by TLS, and logged in


async def test_a_server_with_a_certificate_of_nobody_is_not_told_the_password(mail, tmp_path):
    async with live(mail, tmp_path, ca_file="") as life:
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)

        assert "channels.email.caFile" in life.channel.status.last_error


async def test_a_forged_sender_meets_silence_whatever_they_write_above_their_mail(mail, tmp_path):
    lie = {"Authentication-Results": "mx.bot.test; dmarc=pass header.from=friends.test"}
    async with live(mail, tmp_path) as life:
        await submit(mail, letter("I am Anna", **lie), host="evil.test")
        await submit(mail, letter("I am Anna too", **lie), sender="eve@evil.test", host="evil.test")

        assert await settled(life, mail, "the true Anna") == []
    assert answers(mail, "I am Anna") == []


async def test_a_connection_may_begin_plain_and_be_hidden_from_then_on(mail):
    config = mail.channel(MessageBus(), imap_port=mail.servers.imap_port, imap_use_ssl=False).config
    settings = MailSettings.of(config)
    assert not settings.imap_has_tls  # on this machine
    encrypted = replace(settings, imap_has_tls=True)  # the server takes no login before
    assert await in_mailbox(encrypted, lambda mailbox: mailbox.validity)


async def test_what_came_while_it_was_down_is_heard_once_and_flagged(mail, tmp_path):
    async with live(mail, tmp_path) as life:
        await settled(life, mail, "before")
    await submit(mail, letter("meanwhile"))
    for _ in range(2):
        async with live(mail, tmp_path) as life:
            await eventually(lambda: answers(mail, "You said: meanwhile"))
            heard = await settled(life, mail, f"after-{os.urandom(3).hex()}")  # and the answer before is recorded

    assert heard == []
    assert len(answers(mail, "You said: meanwhile")) == 1
    assert list((mail.servers.folder / "mails" / BOT / "cur").glob("*S*"))
