"""The e-mail channel: receives by IMAP, sends by SMTP.

The chat_id is the sender's address; each mail thread is a thread with its own session. Answers go to the verified
address, never to a Reply-To. Only durable messages are sent, no progress. Each mail is read once: despite restarts,
other mail programs, and a server that renumbers.
"""

import asyncio
import hashlib
import json
import logging
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, ClassVar

from imap_tools import AND, OR, UidRange

from nanobot.bus.events import OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.channels.base import BaseChannel, repeat_note
from nanobot.channels.email.mailbox import FetchedMail, Mailbox, in_mailbox
from nanobot.channels.email.message import (
    Mail,
    MailFile,
    auto_reply_reason,
    is_address,
    read_mail,
    split_quote,
    without_signature,
)
from nanobot.channels.email.send import (
    OutgoingMail,
    content_type,
    first_subject,
    fit_references,
    message_id,
    open_smtp,
    reply_subject,
    send_mail,
)
from nanobot.channels.email.settings import MailSettings
from nanobot.channels.errors import NotConnectedError, UndeliverableError
from nanobot.channels.incoming import Incoming
from nanobot.channels.media import Attachment, MediaError, MediaKind, StoredAttachment, one_chunk
from nanobot.channels.outgoing import prepare_outgoing, read_outgoing
from nanobot.markdown import split_message
from nanobot.markdown.dialects import EMAIL
from nanobot.messages.types import Provenance
from nanobot.utils.bounded_dict import put_bounded
from nanobot.utils.text import clip, human_size

log = logging.getLogger(__name__)

LARGEST_FILES = 20 * 1024 * 1024
"""Most bytes of all files of one mail: encoded, they reach the limit of most servers."""
_UNPROVEN = "unproven:"
"""Prefix of the threads of unverified senders: they must not reach the threads of those they may impersonate."""
_FORWARDED = re.compile(r"(?:fwd?|wg|tr|rv|vb|转发|轉寄)\s*[:：]", re.IGNORECASE)
_HOUR_S = 3600.0
_DAY_S = 86400.0
_UNREAD_S = 7 * _DAY_S
"""How much older than the last check an unread mail may be: it may have been moved from another folder."""
_MOST_MAILS = 2000
"""Mails kept; of an older thread only its headers tell what it is."""


@dataclass(frozen=True, slots=True)
class MailRecord:
    """A received or sent mail."""

    message_id: str
    chat_id: str
    thread_id: str | None
    """None if we started the conversation: answers then belong to the chat itself."""
    subject: str
    ancestors: tuple[str, ...]
    answered_at: float = 0.0
    """When we sent it, if it is an answer."""


@dataclass(slots=True)
class MailState:
    """What is kept of one mailbox: the read position, and the mails of its threads."""

    bot: str
    """User, host and folder."""
    salt: str = field(default_factory=lambda: secrets.token_hex(16))
    """A secret: part of the hash in our message ids."""
    validity: int = 0
    """The position is meaningless once the server reports another one."""
    last_uid: int = 0
    checked_at: float = 0.0
    """When new mails were last looked for, by the wall clock; 0 if never."""
    mails: dict[str, MailRecord] = field(default_factory=dict)

    def record(self, mail: MailRecord) -> None:
        put_bounded(self.mails, f"{mail.message_id} {mail.chat_id.lower()}", mail, _MOST_MAILS)

    def find(self, chat_id: str, message_ids: Sequence[str]) -> MailRecord | None:
        """The last of these mails that was received from or sent to this person."""
        keys = (f"{message_id} {chat_id.lower()}" for message_id in reversed(message_ids))
        return next((self.mails[key] for key in keys if key in self.mails), None)

    def thread(self, chat_id: str, thread_id: str | None) -> list[MailRecord]:
        """The mails of a thread, the latest first."""
        chat = (chat_id.lower(), thread_id)
        return [mail for mail in reversed(self.mails.values()) if (mail.chat_id.lower(), mail.thread_id) == chat]


class EmailChannel(BaseChannel):
    name = "email"
    max_provenance: ClassVar[Provenance] = Provenance.MAIL
    stall_s = 50.0  # a dead connection, such as after a laptop slept, is noticed within a minute

    def __init__(self, config: Any, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._settings: MailSettings | None = None
        """None while disconnected."""
        self._state = MailState("")

    async def start(self) -> None:
        """Read the mailbox until the connection ends. Raises ChannelSetupError if the owner has to act."""
        settings = await asyncio.to_thread(MailSettings.of, self.config)
        if self._state.bot != settings.folder:
            self._state = await self.load_state(MailState(settings.folder))
            if not settings.checker.names and not settings.config.server_checks_senders:
                log.warning(
                    "email: no sender can be verified: which server checks mail for %s is not known. Set "
                    "channels.email.authservId to the name it writes into Authentication-Results; until then only "
                    'allowFrom ["*"] allows senders. See docs/guides/email.md.',
                    settings.config.imap_host,
                )
        self._settings = settings
        loop = asyncio.get_running_loop()

        def read(mailbox: Mailbox) -> None:
            loop.call_soon_threadsafe(self.mark_up)
            start_reading(mailbox, self._state)
            while True:
                self._receive(mailbox, settings)
                # a request to the server well before `stall_s`
                mailbox.wait(poll_s=settings.config.poll_interval_seconds, longest_silence_s=self.stall_s * 0.55)

        try:
            if settings.config.smtp_host:
                async with open_smtp(settings):
                    pass
            await in_mailbox(settings, read, self.status.touch)
        finally:
            self._settings = None

    async def check_login(self) -> str:
        settings = await asyncio.to_thread(MailSettings.of, self.config)
        await in_mailbox(settings, lambda _: None, read_only=True)
        if settings.config.smtp_host:
            async with open_smtp(settings):
                pass
        may = "can be read and written from" if settings.config.smtp_host else "can be read"
        return f"The mailbox of {settings.address} {may}."

    async def deliver(self, message: OutboundMessage) -> tuple[str, ...]:
        """Send a durable message; progress is not mailed."""
        return await self.send(message) if message.kind.is_durable else ()

    async def send(self, message: OutboundMessage) -> tuple[str, ...]:
        """Send a message as one mail with its files. Return the mail's id, which is the same for each attempt.

        Sends no answer if `autoReplyEnabled` is false. Raises UndeliverableError if the thread had too many replies.
        """
        settings, state = self._settings, self._state
        if settings is None:
            raise NotConnectedError("the mailbox is not open")
        is_answer = _answers_a_mail(message)
        if is_answer and not settings.config.auto_reply_enabled:
            log.info("email: an answer was not sent: channels.email.autoReplyEnabled is false")
            return ()
        if not settings.config.smtp_host:
            raise UndeliverableError("no mail can be sent; set channels.email.smtpHost")
        if not is_address(message.chat_id):
            raise UndeliverableError(f"{message.chat_id!r} is no mail address")
        mail = await self._build_mail(message, settings)
        if message.may_repeat and state.find(message.chat_id, [mail.message_id]) is not None:
            return (mail.message_id,)  # sent before a crash, which came before the journal recorded it
        now = self.services.clock.now().timestamp()
        if is_answer:
            thread = state.thread(message.chat_id, message.thread_id)
            replies = sum(sent.answered_at > now - _HOUR_S for sent in thread)
            if replies >= settings.config.max_replies_per_hour:
                raise UndeliverableError(
                    f"{message.chat_id} had {replies} replies in this thread within an hour. That is the most, so "
                    "that two programs do not write to each other all night; channels.email.maxRepliesPerHour sets it"
                )
        await send_mail(settings, mail)
        answered_at = now if is_answer else 0.0
        state.record(
            MailRecord(mail.message_id, message.chat_id, message.thread_id, mail.subject, mail.ancestors, answered_at)
        )
        await self.state_file.save(state)
        return (mail.message_id,)

    # -- mails in

    def _receive(self, mailbox: Mailbox, settings: MailSettings) -> None:
        """Process new mails. Called in the thread of the mailbox."""
        before = self._state.checked_at
        for mail in new_mails(mailbox, self._state, self.services.clock.now().timestamp()):
            if mailbox.ask(self._process(mail)) and settings.config.mark_seen and not mail.is_seen:
                mailbox.mark_seen(mail.uid)
        if self._state.checked_at != before:
            mailbox.ask(self.state_file.save(self._state))

    async def _process(self, fetched: FetchedMail) -> bool:
        """Process a mail. Return True if it was for us and may be flagged as seen."""
        settings, state = self._settings, self._state
        if settings is None:
            raise NotConnectedError("the mailbox is not open")
        mail = await asyncio.to_thread(read_mail, fetched.raw)
        if reason := auto_reply_reason(mail, settings.own):
            log.info("email: ignored a mail from %s: %s", json.dumps(mail.sender), reason)
            return False
        verdict = settings.verify_sender(mail)
        if not verdict.is_verified:
            log.info("email: the sender of a mail from %s is not verified: %s", json.dumps(mail.sender), verdict.reason)
        previous = state.find(mail.sender, mail.ancestors) if verdict.is_verified else None
        if previous is not None and (previous.thread_id or "").startswith(_UNPROVEN):
            previous = None
        new_thread_id = mail.root if verdict.is_verified else f"{_UNPROVEN}{mail.root}"
        thread_id = previous.thread_id if previous else new_thread_id
        if verdict.is_verified or self.is_allowed(mail.sender):  # nobody else is answered
            state.record(
                MailRecord(mail.message_id, mail.sender, thread_id, mail.subject, fit_references(mail.ancestors))
            )
            await self.state_file.save(state)
        text, leaves_out = _text_for_model(mail, settings.config.max_body_chars, is_known_thread=previous is not None)
        if not fetched.is_whole:
            text = f"{text}\n\n[the mail is {human_size(fetched.size)}; only its head was read]"
        whole = [MailFile("mail.txt", "text/plain", mail.text.encode())] if leaves_out else []

        async def fetch() -> list[StoredAttachment]:
            return [*await self._store_files(mail, settings), *[await self._store_file(file) for file in whole]]

        incoming = Incoming(
            mail.sender,
            mail.sender,
            text,
            mail.message_id,
            thread_id,
            is_verified=verdict.is_verified,
            fetch=fetch if mail.files or whole else None,
            metadata={"subject": mail.subject},
        )
        accepted = await self.receive(incoming)
        return accepted or (verdict.is_verified and self.is_allowed(mail.sender))

    async def _store_files(self, mail: Mail, settings: MailSettings) -> list[StoredAttachment]:
        config, stored = settings.config, []
        for number, file in enumerate(mail.files):
            if number < config.max_attachments_per_email and len(file.data) <= config.max_attachment_size:
                stored.append(await self._store_file(file))
            else:
                log.warning("email: an attachment is skipped: channels.email.maxAttachmentSize, maxAttachmentsPerEmail")
                stored.append(StoredAttachment(MediaKind.of_type(file.content_type), None))
        return stored

    async def _store_file(self, file: MailFile) -> StoredAttachment:
        digest = hashlib.sha256(file.data).hexdigest()
        attachment = Attachment(
            MediaKind.of_type(file.content_type), digest, file.name, file.content_type, len(file.data)
        )
        return await self.services.media.store(attachment, lambda: one_chunk(file.data))

    # -- mails out

    async def _build_mail(self, message: OutboundMessage, settings: MailSettings) -> OutgoingMail:
        previous = self._answered_mail(message)
        choices = "".join(f"\n- {button.label}: answer `{button.value}`" for button in message.buttons)
        text = message.content + (f"\n{choices}" if choices else "") + repeat_note(message)
        files, notes = await _files(message.media)
        chunks = split_message("\n\n".join([text, *notes]), EMAIL)
        plain = "\n\n".join(chunk.text for chunk in chunks)
        prefix = settings.config.subject_prefix
        subject = reply_subject(previous.subject, prefix) if previous is not None else first_subject(plain)
        subject = str(message.metadata.get("subject") or "") or subject
        name = f"{message.journal_id or secrets.token_hex(16)} {message.chat_id} {message.thread_id} {message.content}"
        return OutgoingMail(
            settings.sender,
            message.chat_id,
            " ".join(subject.split()),
            message_id(self._state.salt, name, settings.address),
            self.services.clock.now(),
            plain,
            chunks[0].html if len(chunks) == 1 else None,
            tuple(files),
            fit_references((*previous.ancestors, previous.message_id)) if previous is not None else (),
        )

    def _answered_mail(self, message: OutboundMessage) -> MailRecord | None:
        """The mail that a message answers: the one it names, else the latest of its thread."""
        chat_id, thread_id = message.chat_id, message.thread_id
        previous = self._state.find(chat_id, [message.reply_to]) if message.reply_to is not None else None
        if previous is not None or thread_id is None:
            return previous
        root = thread_id.removeprefix(_UNPROVEN)
        named = [MailRecord(root, chat_id, thread_id, "", ())] if "@" in root else []
        return next(iter([*self._state.thread(chat_id, thread_id), *named]), None)


def _text_for_model(mail: Mail, max_chars: int, *, is_known_thread: bool) -> tuple[str, bool]:
    """The text for the model, and whether part of the mail is left out.

    In a known thread it has no quotes and no subject: the session has them already.
    """
    new, quoted = split_quote(mail.text) if is_known_thread and not _FORWARDED.match(mail.subject) else (mail.text, "")
    command = without_signature(new).strip()
    if command.startswith("/") and "\n" not in command:
        return command, False
    text = new.strip()
    if not is_known_thread and mail.subject:
        text = f"Subject: {mail.subject}\n\n{text}".strip()
    clipped = clip(text, max_chars, "{left_out} characters left out; the whole mail is in the last file")
    if quoted.strip():
        clipped += "\n\n[quoted history left out; the whole mail is in the last file]"
    return clipped, clipped != text


def _answers_a_mail(message: OutboundMessage) -> bool:
    """Whether it answers a mail, as opposed to a message from a job or another chat."""
    if message.answers is not None:
        return message.answers.startswith(f"{EmailChannel.name}:")
    return message.reply_to is not None or (message.kind is OutboundKind.NOTICE and message.thread_id is not None)


async def _files(sources: list[str]) -> tuple[list[MailFile], list[str]]:
    """The attachments, and a note for each file that cannot be attached."""
    files: list[MailFile] = []
    notes: list[str] = []
    left = LARGEST_FILES
    for source in sources:
        try:
            file = await prepare_outgoing(source, largest=left)
            if file.path is None:
                notes.append(f"{file.name}: {file.url}")
                continue
            data = await read_outgoing(file)
        except (MediaError, UndeliverableError) as error:
            notes.append(f"({error})")
            continue
        left -= len(data)
        files.append(MailFile(file.name, content_type(file.name), data))
    return files, notes


def start_reading(mailbox: Mailbox, state: MailState) -> None:
    """Begin at the first mail of a folder that is new to us, was renumbered, or restored with lower numbers.

    Which of its mails are read then depends on their age; the journal drops duplicates.
    """
    if state.validity != mailbox.validity or 0 < mailbox.next_uid <= state.last_uid:
        log.info("email: the mailbox is new, or was renumbered; looking through its recent mails")
        state.validity, state.last_uid = mailbox.validity, 0


def new_mails(mailbox: Mailbox, state: MailState, now: float) -> Iterator[FetchedMail]:
    """The mails after the position, which moves behind each once the next is asked for.

    Those that are too old are passed over: at the first check all but the unread ones since yesterday, later those
    that neither arrived nor were written since the last check (the server's clock may be wrong).
    """
    new = [uid for uid in mailbox.search(f"UID {state.last_uid + 1}:*") if uid > state.last_uid]  # `*`: at least one
    if not new and now - state.checked_at < _HOUR_S:
        return
    is_recent = AND(date_gte=_day(now - _DAY_S), seen=False)
    if state.checked_at:
        since, unread = (_day(state.checked_at - age_s) for age_s in (_DAY_S, _UNREAD_S))
        is_recent = AND(OR(OR(date_gte=since, sent_date_gte=since), AND(date_gte=unread, seen=False)))
    recent = {*mailbox.search(AND(is_recent, uid=UidRange(str(state.last_uid + 1), "*")))} if new else set()
    if not state.checked_at and mailbox.next_uid:  # what came since the folder was opened is not old
        recent.update(uid for uid in new if uid >= mailbox.next_uid)
    for uid in new:
        if uid in recent:
            yield from mailbox.fetch([uid])
        state.last_uid = uid
    if state.checked_at and (old := [uid for uid in new if uid not in recent]):
        text = "email: %d mails are older than the last check, and are not answered. To get an answer, send them again."
        log.warning(text, len(old))
    state.checked_at = now


def _day(at: float) -> date:
    return (datetime.fromtimestamp(0, UTC) + timedelta(seconds=max(at, 0))).date()
