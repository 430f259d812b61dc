"""The e-mail channel: receives by IMAP, sends by SMTP.

The chat_id is the sender's address; each mail thread is a thread with its own session. Answers go to the verified
address, never to a Reply-To. Only durable messages are sent, no progress.
"""

import asyncio
import hashlib
import json
import logging
import re
import secrets
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from nanobot.bus.events import OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.channels.base import BaseChannel, repeat_note
from nanobot.channels.email.message import Mail, MailFile, auto_reply_reason, is_address, read_mail
from nanobot.channels.email.quotes import split_quote, without_signature
from nanobot.channels.email.receive import FetchedMail, MailFolder, open_mailbox
from nanobot.channels.email.send import (
    MailAttachment,
    OutgoingMail,
    SmtpServer,
    first_subject,
    message_id,
    reply_subject,
)
from nanobot.channels.email.settings import MailSettings
from nanobot.channels.email.store import MailRecord, MailStore, open_store
from nanobot.channels.errors import ChannelSetupError, NotConnectedError, UndeliverableError
from nanobot.channels.incoming import Incoming
from nanobot.channels.media import Attachment, StoredAttachment, one_chunk
from nanobot.channels.media_kinds import MediaError, MediaKind
from nanobot.channels.outgoing import open_outgoing, prepare_outgoing
from nanobot.errors import StorageError
from nanobot.markdown import split_message
from nanobot.markdown.dialects import EMAIL
from nanobot.messages.types import Provenance
from nanobot.utils.aio import gather_or_raise
from nanobot.utils.text import clip, human_size

log = logging.getLogger(__name__)

LARGEST_FILES = 20 * 1024 * 1024
"""Most bytes of all files of one mail: encoded, they reach the limit of most servers."""
_UNPROVEN = "unproven:"
"""Prefix of the threads of unverified senders: they must not reach the threads of those they may impersonate."""
_FORWARDED = re.compile(r"(?:fwd?|wg|tr|rv|vb|转发|轉寄)\s*[:：]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _MailSession:
    """What exists while the channel is connected."""

    settings: MailSettings
    smtp: SmtpServer | None
    """None without an SMTP server."""
    store: MailStore
    broken: "asyncio.Future[None]"
    """Gets the error that ends the connection if sending fails."""


class EmailChannel(BaseChannel):
    """A mailbox."""

    name = "email"
    max_provenance: ClassVar[Provenance] = Provenance.MAIL
    stall_s = 50.0  # a dead connection, such as after a laptop slept, is noticed within a minute

    def __init__(self, config: Any, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._session: _MailSession | None = None
        self._store: MailStore | None = None
        self._resources = AsyncExitStack()

    async def start(self) -> None:
        """Read the mailbox until the connection ends. Raises ChannelSetupError if the owner has to act."""
        settings = await asyncio.to_thread(MailSettings.of, self.config)
        if self._store is None:
            folder = self.services.state or Path(
                self._resources.enter_context(TemporaryDirectory(ignore_cleanup_errors=True))
            )
            self._store = await self._resources.enter_async_context(open_store(folder / "email.db"))
            if settings.cannot_verify:
                log.warning(
                    "email: no sender can be verified: which server checks mail for %s is not known. Set "
                    "channels.email.authservId to the name it writes into Authentication-Results; until then only "
                    'allowFrom ["*"] allows senders. See docs/guides/email.md.',
                    settings.config.imap_host,
                )
        session = self._session = _MailSession(
            settings, _smtp_server(settings), self._store, asyncio.get_running_loop().create_future()
        )
        try:
            if session.smtp is not None:
                await session.smtp.check()
            await gather_or_raise([self._read(session), _raise_when_broken(session.broken)])
        finally:
            session.broken.cancel()
            self._session = None

    async def login(self, force: bool = False) -> bool:
        """Log in to both servers and print the result. Raises ChannelSetupError, or OSError."""
        settings = await asyncio.to_thread(MailSettings.of, self.config)
        async with open_mailbox(settings, read_only=True):
            pass
        if (smtp := _smtp_server(settings)) is not None:
            await smtp.check()
        may = "can be read and written from" if smtp is not None else "can be read"
        print(f"The mailbox of {settings.address} {may}.")  # noqa: T201 a person waits
        return True

    async def stop(self) -> None:
        """Close the store, which stays open across reconnects for a mail being sent meanwhile."""
        self._store = None
        await self._resources.aclose()

    async def deliver(self, message: OutboundMessage) -> tuple[str, ...]:
        """Send a durable message; progress is not mailed."""
        return await self.send(message) if message.kind.is_durable else ()

    async def send(self, message: OutboundMessage) -> tuple[str, ...]:
        """Send a message as one mail with its files. Return the mail's id, which is the same for each attempt.

        Sends no answer if `autoReplyEnabled` is false. Raises UndeliverableError if the thread had too many replies.
        """
        session = self._session
        if session is None:
            raise NotConnectedError("the mailbox is not open")
        is_answer = _answers_a_mail(message)
        config = session.settings.config
        if is_answer and not config.auto_reply_enabled:
            log.info("email: an answer was not sent: channels.email.autoReplyEnabled is false")
            return ()
        if session.smtp is None:
            raise UndeliverableError("no mail can be sent; set channels.email.smtpHost")
        if not is_address(message.chat_id):
            raise UndeliverableError(f"{message.chat_id!r} is no mail address")
        mail = await self._build_mail(message, session)
        if message.may_repeat and await session.store.find(message.chat_id, [mail.message_id]) is not None:
            return (mail.message_id,)  # sent before a crash, which came before the journal recorded it
        now = self.services.clock.now().timestamp()
        if is_answer:
            replies = await session.store.replies(message.chat_id, message.thread_id, now, excluding=mail.message_id)
            if replies >= config.max_replies_per_hour:
                raise UndeliverableError(
                    f"{message.chat_id} had {replies} replies in this thread within an hour. That is the most, so that "
                    "two programs do not write to each other all night; channels.email.maxRepliesPerHour sets it"
                )
        raw = await asyncio.to_thread(mail.to_bytes)
        try:
            await session.smtp.send(raw, sender=session.settings.address, to=message.chat_id)
        except (ChannelSetupError, NotConnectedError) as error:
            if not session.broken.done():
                session.broken.set_exception(error)
                session.broken.exception()  # mark it as retrieved
            raise NotConnectedError(str(error)) from error
        await _record(session.store, message, mail, now if is_answer else None)
        return (mail.message_id,)

    # -- mails in

    async def _read(self, session: _MailSession) -> None:
        settings, config = session.settings, session.settings.config
        async with open_mailbox(settings, self.status.touch) as mailbox:
            name = f"{config.imap_username}@{config.imap_host}/{config.imap_mailbox}"
            folder = MailFolder(mailbox, session.store, self.services.clock, name, mark_seen=config.mark_seen)
            self.mark_up()
            position = await folder.begin(self._process)
            while True:
                position = await folder.look(position, self._process)
                await folder.wait(poll_s=config.poll_interval_seconds, longest_silence_s=self._silence_s)

    @property
    def _silence_s(self) -> float:
        """Longest time without a request to the server: well below `stall_s`."""
        return self.stall_s * 0.55 if self.stall_s else 50.0

    async def _process(self, fetched: FetchedMail) -> bool:
        """Process a mail. Return True if it was for us and may be flagged as seen."""
        session = self._session
        if session is None:
            raise NotConnectedError("the mailbox is not open")
        mail = await asyncio.to_thread(read_mail, fetched.raw)
        if reason := auto_reply_reason(mail, session.settings.own):
            log.info("email: ignored a mail from %s: %s", json.dumps(mail.sender), reason)
            return False
        verdict = session.settings.verify_sender(mail)
        if not verdict.is_verified:
            log.info("email: the sender of a mail from %s is not verified: %s", json.dumps(mail.sender), verdict.reason)
        previous = await self._find_answered(mail, session.store) if verdict.is_verified else None
        new_thread_id = mail.root if verdict.is_verified else f"{_UNPROVEN}{mail.root}"
        thread_id = previous.thread_id if previous else new_thread_id
        await session.store.record(mail.sender, MailRecord(mail.message_id, thread_id, mail.subject, mail.ancestors))
        max_chars = session.settings.config.max_body_chars
        prompt = _text_for_model(mail, max_chars=max_chars, is_known_thread=previous is not None)
        if not fetched.is_whole:
            prompt = replace(
                prompt, text=f"{prompt.text}\n\n[the mail is {human_size(fetched.size)}; only its head was read]"
            )
        whole = mail.text if prompt.leaves_out else ""

        async def fetch() -> list[StoredAttachment]:
            return await self._store_files(mail, whole, session.settings)

        incoming = Incoming(
            mail.sender,
            mail.sender,
            prompt.text,
            mail.message_id,
            thread_id,
            is_verified=verdict.is_verified,
            fetch=fetch if mail.files or whole else None,
            metadata={"subject": mail.subject},
        )
        accepted = await self.receive(incoming)
        return accepted or (verdict.is_verified and self.is_allowed(mail.sender))

    async def _find_answered(self, mail: Mail, store: MailStore) -> MailRecord | None:
        """The recorded mail that it answers, if any."""
        previous = await store.find(mail.sender, mail.ancestors)
        is_unverified = previous is not None and (previous.thread_id or "").startswith(_UNPROVEN)
        return None if is_unverified else previous

    async def _store_files(self, mail: Mail, whole: str, settings: MailSettings) -> list[StoredAttachment]:
        """Store the attachments, and the whole text if the model gets only part of it."""
        stored = []
        for number, file in enumerate(mail.files):
            if (
                number >= settings.config.max_attachments_per_email
                or len(file.data) > settings.config.max_attachment_size
            ):
                log.warning("email: an attachment is skipped: channels.email.maxAttachmentSize, maxAttachmentsPerEmail")
                stored.append(StoredAttachment(MediaKind.of_type(file.content_type), None))
            else:
                stored.append(await self._store_file(file))
        if whole:
            stored.append(await self._store_file(MailFile("mail.txt", "text/plain", whole.encode())))
        return stored

    async def _store_file(self, file: MailFile) -> StoredAttachment:
        digest = hashlib.sha256(file.data).hexdigest()
        attachment = Attachment(
            MediaKind.of_type(file.content_type), digest, file.name, file.content_type, len(file.data)
        )
        return await self.services.media.store(attachment, lambda: one_chunk(file.data))

    # -- mails out

    async def _build_mail(self, message: OutboundMessage, session: _MailSession) -> OutgoingMail:
        """Build the mail for a message."""
        previous = await _answered_mail(message, session.store)
        choices = "".join(f"\n- {button.label}: answer `{button.value}`" for button in message.buttons)
        text = message.content + (f"\n{choices}" if choices else "") + repeat_note(message)
        files, notes = await _files(message.media)
        chunks = split_message("\n\n".join([text, *notes]), EMAIL)
        plain = "\n\n".join(chunk.text for chunk in chunks)
        given = str(message.metadata.get("subject") or "")
        prefix = session.settings.config.subject_prefix
        subject = given or (reply_subject(previous.subject, prefix) if previous is not None else first_subject(plain))
        name = f"{message.journal_id or secrets.token_hex(16)} {message.chat_id} {message.thread_id} {message.content}"
        return OutgoingMail(
            session.settings.sender,
            message.chat_id,
            " ".join(subject.split()),
            message_id(session.store.salt, name, session.settings.address),
            self.services.clock.now(),
            plain,
            chunks[0].html if len(chunks) == 1 else None,
            tuple(files),
            (*previous.ancestors, previous.message_id) if previous is not None else (),
        )


def _smtp_server(settings: MailSettings) -> SmtpServer | None:
    return SmtpServer(settings.config, settings.tls) if settings.config.smtp_host else None


async def _raise_when_broken(broken: "asyncio.Future[None]") -> None:
    await broken


@dataclass(frozen=True, slots=True)
class _ModelText:
    """The text for the model, and whether part of the mail is left out."""

    text: str
    leaves_out: bool


def _text_for_model(mail: Mail, *, max_chars: int, is_known_thread: bool) -> _ModelText:
    """The text for the model. In a known thread without quotes and subject, which the session has already."""
    new, quoted = split_quote(mail.text) if is_known_thread and not _FORWARDED.match(mail.subject) else (mail.text, "")
    command = without_signature(new).strip()
    if command.startswith("/") and "\n" not in command:
        return _ModelText(command, leaves_out=False)
    text = new.strip()
    if not is_known_thread and mail.subject:
        text = f"Subject: {mail.subject}\n\n{text}".strip()
    clipped = clip(text, max_chars, "{left_out} characters left out; the whole mail is in the last file")
    if quoted.strip():
        clipped += "\n\n[quoted history left out; the whole mail is in the last file]"
    return _ModelText(clipped, leaves_out=bool(quoted.strip()) or clipped != text)


def _answers_a_mail(message: OutboundMessage) -> bool:
    """Whether it answers a mail, as opposed to a message from a job or another chat."""
    if message.answers is not None:
        return message.answers.startswith(f"{EmailChannel.name}:")
    return message.reply_to is not None or (message.kind is OutboundKind.NOTICE and message.thread_id is not None)


async def _answered_mail(message: OutboundMessage, store: MailStore) -> MailRecord | None:
    """The mail that a message answers: the one it names, else the latest of its thread."""
    if message.reply_to is not None and (previous := await store.find(message.chat_id, [message.reply_to])) is not None:
        return previous
    if message.thread_id is None:
        return None
    previous = await store.last_in_thread(message.chat_id, message.thread_id)
    root = message.thread_id.removeprefix(_UNPROVEN)
    return previous or (MailRecord(root, message.thread_id, "", ()) if "@" in root else None)


def _bytes_of(path: Path) -> bytes:
    with open_outgoing(path) as file:
        return file.read()


async def _files(sources: list[str]) -> tuple[list[MailAttachment], list[str]]:
    """The attachments, and a note for each file that cannot be attached."""
    files: list[MailAttachment] = []
    notes: list[str] = []
    left = LARGEST_FILES
    for source in sources:
        try:
            file = await prepare_outgoing(source, largest=left)
            if file.path is None:
                notes.append(f"{file.name}: {file.url}")
                continue
            data = await asyncio.to_thread(_bytes_of, file.path)
        except (MediaError, OSError) as error:
            notes.append(f"({error})")
            continue
        left -= len(data)
        files.append(MailAttachment(file.name, data))
    return files, notes


async def _record(store: MailStore, message: OutboundMessage, mail: OutgoingMail, answered_at: float | None) -> None:
    """Record a sent mail. Never raises: a disk error must not make it be sent again."""
    try:
        await store.record(
            message.chat_id, MailRecord(mail.message_id, message.thread_id, mail.subject, mail.ancestors)
        )
        if answered_at is not None:
            await store.record_reply(message.chat_id, message.thread_id, mail.message_id, answered_at)
    except StorageError as error:
        log.warning("email: a mail was sent, but could not be recorded: %s", error)
