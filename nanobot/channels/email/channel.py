"""The channel: mails come in by IMAP, answers go out by SMTP.

chat_id is the address of the person; a mail thread is a thread, so each is a session of its own. Answers go to the
address that was proven, never to where a Reply-To points. Nothing but replies and notices is ever sent.
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
from nanobot.channels.email.auto_replies import auto_reply_reason
from nanobot.channels.email.headers import is_address
from nanobot.channels.email.imap import FetchedMail
from nanobot.channels.email.inbox import MailFolder
from nanobot.channels.email.incoming import Mail, MailFile, read_mail
from nanobot.channels.email.login import open_mailbox
from nanobot.channels.email.outgoing import MailAttachment, OutgoingMail, first_subject, message_id, reply_subject
from nanobot.channels.email.quotes import split_quote, without_signature
from nanobot.channels.email.settings import MailSettings
from nanobot.channels.email.store import MailRecord, MailStore, open_store
from nanobot.channels.errors import ChannelSetupError, NotConnectedError, UndeliverableError
from nanobot.channels.media import Attachment, StoredAttachment, one_chunk
from nanobot.channels.media_kinds import MediaError, MediaKind
from nanobot.channels.outgoing import open_outgoing, prepare_outgoing
from nanobot.errors import StorageError
from nanobot.markdown.chunks import split_message
from nanobot.markdown.dialects import EMAIL
from nanobot.messages.types import Provenance
from nanobot.utils.aio import gather_or_raise
from nanobot.utils.text import clip, human_size

log = logging.getLogger(__name__)

LARGEST_FILES = 20 * 1024 * 1024
"""In bytes, of all files of one mail; with what their encoding adds, most servers take no more."""
_UNPROVEN = "unproven:"
"""How the threads begin of people nobody vouches for: they never meet the threads of those they may pretend to be."""
_FORWARDED = re.compile(r"(?:fwd?|wg|tr|rv|vb|转发|轉寄)\s*[:：]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _MailSession:
    """What is at hand while there is a connection."""

    settings: MailSettings
    book: MailStore
    broken: "asyncio.Future[None]"
    """Holds what ended the sending, once it has."""


class EmailChannel(BaseChannel):
    """A mailbox."""

    name = "email"
    max_provenance: ClassVar[Provenance] = Provenance.MAIL
    stall_s = 50.0  # a line that died unseen, as while a laptop slept, is to be noticed within a minute

    def __init__(self, config: Any, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._desk: _MailSession | None = None
        self._book: MailStore | None = None
        self._kept = AsyncExitStack()

    async def start(self) -> None:
        """Read the mailbox until the connection ends. Raises ChannelSetupError for what only the owner can change."""
        settings = await asyncio.to_thread(MailSettings.of, self.config)
        if self._book is None:
            folder = self.services.state or Path(
                self._kept.enter_context(TemporaryDirectory(ignore_cleanup_errors=True))
            )
            self._book = await self._kept.enter_async_context(open_store(folder / "email.db"))
            if settings.believes_nobody:
                log.warning(
                    "email: no sender can be verified: which server checks mail for %s is not known. Set "
                    "channels.email.authservId to the name it writes into Authentication-Results; until then only "
                    'allowFrom ["*"] allows senders. See docs/guides/email.md.',
                    settings.config.imap_host,
                )
        desk = self._desk = _MailSession(settings, self._book, asyncio.get_running_loop().create_future())
        try:
            if settings.smtp is not None:
                await settings.smtp.check()
            await gather_or_raise([self._read(desk), _until(desk.broken)])
        finally:
            desk.broken.cancel()
            self._desk = None

    async def login(self, force: bool = False) -> bool:
        """Log in where mails come in and where they go out, and say so. Raises ChannelSetupError, or OSError."""
        settings = await asyncio.to_thread(MailSettings.of, self.config)
        async with open_mailbox(settings, only_look=True):
            pass
        if settings.smtp is not None:
            await settings.smtp.check()
        may = "can be read and written from" if settings.smtp is not None else "can be read"
        print(f"The mailbox of {settings.address} {may}.")  # noqa: T201 a person waits
        return True

    async def stop(self) -> None:
        """Close the book: it is open between two connections, for a mail that is on its way meanwhile."""
        self._book = None
        await self._kept.aclose()

    async def deliver(self, message: OutboundMessage) -> tuple[str, ...]:
        """Send what is meant to stay; how the work goes is nobody's mail."""
        return await self.send(message) if message.kind.is_durable else ()

    async def send(self, message: OutboundMessage) -> tuple[str, ...]:
        """Send it as one mail, its files with it; the id of the mail. The same message is the same mail, always.

        An answer is not sent where the owner wants none, and is undeliverable where its thread had too many.
        """
        desk = self._desk
        if desk is None:
            raise NotConnectedError("the mailbox is not open")
        is_answer = _answers_a_mail(message)
        config = desk.settings.config
        if is_answer and not config.auto_reply_enabled:
            log.info("email: an answer was not sent: channels.email.autoReplyEnabled is false")
            return ()
        if desk.settings.smtp is None:
            raise UndeliverableError("no mail can be sent; set channels.email.smtpHost")
        if not is_address(message.chat_id):
            raise UndeliverableError(f"{message.chat_id!r} is no mail address")
        letter = await self._write(message, desk)
        if message.may_repeat and await desk.book.find(message.chat_id, [letter.message_id]) is not None:
            return (letter.message_id,)  # the server took it, and the crash came before the journal heard of it
        now = self.services.clock.now().timestamp()
        if is_answer:
            before = await desk.book.replies(message.chat_id, message.thread_id, now, but=letter.message_id)
            if before >= config.max_replies_per_hour:
                raise UndeliverableError(
                    f"{message.chat_id} had {before} replies in this thread within an hour. That is the most, so that "
                    "two programs do not write to each other all night; channels.email.maxRepliesPerHour sets it"
                )
        raw = await asyncio.to_thread(letter.to_bytes)
        try:
            await desk.settings.smtp.send(raw, sender=desk.settings.address, to=message.chat_id)
        except (ChannelSetupError, NotConnectedError) as error:
            if not desk.broken.done():
                desk.broken.set_exception(error)
                desk.broken.exception()  # there may be nobody left to hear it
            raise NotConnectedError(str(error)) from error
        await _remember(desk.book, message, letter, now if is_answer else None)
        return (letter.message_id,)

    # -- mails in

    async def _read(self, desk: _MailSession) -> None:
        settings, config = desk.settings, desk.settings.config
        async with open_mailbox(settings, self.status.touch) as (imap, folder):
            name = f"{config.imap_username}@{config.imap_host}/{config.imap_mailbox}"
            inbox = MailFolder(imap, desk.book, self.services.clock, name, mark_seen=config.mark_seen)
            self.mark_up()
            place = await inbox.begin(folder, self._take)
            while True:
                place = await inbox.look(place, self._take)
                await inbox.wait(poll_s=config.poll_interval_seconds, longest_silence_s=self._silence_s)

    @property
    def _silence_s(self) -> float:
        """How long nothing is asked of the server: well below what counts as a stall."""
        return self.stall_s * 0.55 if self.stall_s else 50.0

    async def _take(self, fetched: FetchedMail) -> bool:
        """A mail has come. True where it was for us, so that it may be flagged as seen."""
        desk = self._desk
        if desk is None:
            raise NotConnectedError("the mailbox is not open")
        mail = await asyncio.to_thread(read_mail, fetched.raw)
        if reason := auto_reply_reason(mail.headers, mail.content_type, mail.sender, desk.settings.own):
            log.info("email: ignored a mail from %s: %s", json.dumps(mail.sender), reason)
            return False
        verdict = desk.settings.verify_sender(mail)
        if not verdict.is_verified:
            log.info("email: the sender of a mail from %s is not verified: %s", json.dumps(mail.sender), verdict.reason)
        known = await self._known(mail, desk.book) if verdict.is_verified else None
        thread_id = known.thread_id if known else mail.root if verdict.is_verified else f"{_UNPROVEN}{mail.root}"
        await desk.book.note(mail.sender, MailRecord(mail.message_id, thread_id, mail.subject, mail.ancestors))
        words = _words(mail, most=desk.settings.config.max_body_chars, goes_on=known is not None)
        if not fetched.is_whole:
            words = replace(
                words, text=f"{words.text}\n\n[the mail is {human_size(fetched.size)}; only its head was read]"
            )
        whole = mail.text if words.leaves_out else ""

        async def fetch() -> list[StoredAttachment]:
            return await self._keep(mail, whole, desk.settings)

        accepted = await self.receive(
            mail.sender,
            mail.sender,
            words.text,
            message_id=mail.message_id,
            thread_id=thread_id,
            is_verified=verdict.is_verified,
            fetch=fetch if mail.files or whole else None,
            metadata={"subject": mail.subject},
        )
        return accepted or (verdict.is_verified and self.is_allowed(mail.sender))

    async def _known(self, mail: Mail, book: MailStore) -> MailRecord | None:
        """The mail it answers, as far as we know it."""
        known = await book.find(mail.sender, mail.ancestors)
        return None if known is not None and (known.thread_id or "").startswith(_UNPROVEN) else known

    async def _keep(self, mail: Mail, whole: str, settings: MailSettings) -> list[StoredAttachment]:
        """What is attached, and the text where the model does not get all of it."""
        kept = []
        for number, file in enumerate(mail.files):
            if (
                number >= settings.config.max_attachments_per_email
                or len(file.data) > settings.config.max_attachment_size
            ):
                log.warning("email: an attachment is skipped: channels.email.maxAttachmentSize, maxAttachmentsPerEmail")
                kept.append(StoredAttachment(MediaKind.of_type(file.content_type), None))
            else:
                kept.append(await self._keep_file(file))
        if whole:
            kept.append(await self._keep_file(MailFile("mail.txt", "text/plain", whole.encode())))
        return kept

    async def _keep_file(self, file: MailFile) -> StoredAttachment:
        same = hashlib.sha256(file.data).hexdigest()
        attachment = Attachment(
            MediaKind.of_type(file.content_type), same, file.name, file.content_type, len(file.data)
        )
        return await self.services.media.store(attachment, lambda: one_chunk(file.data))

    # -- mails out

    async def _write(self, message: OutboundMessage, desk: _MailSession) -> OutgoingMail:
        """The mail that says it."""
        about = await _about(message, desk.book)
        choices = "".join(f"\n- {button.label}: answer `{button.value}`" for button in message.buttons)
        text = message.content + (f"\n{choices}" if choices else "") + repeat_note(message)
        files, notes = await _files(message.media)
        said = split_message("\n\n".join([text, *notes]), EMAIL)
        plain = "\n\n".join(piece.text for piece in said)
        given = str(message.metadata.get("subject") or "")
        prefix = desk.settings.config.subject_prefix
        subject = given or (reply_subject(about.subject, prefix) if about is not None else first_subject(plain))
        name = f"{message.journal_id or secrets.token_hex(16)} {message.chat_id} {message.thread_id} {message.content}"
        return OutgoingMail(
            desk.settings.sender,
            message.chat_id,
            " ".join(subject.split()),
            message_id(desk.book.salt, name, desk.settings.address),
            self.services.clock.now(),
            plain,
            said[0].html if len(said) == 1 else None,
            tuple(files),
            (*about.ancestors, about.message_id) if about is not None else (),
        )


async def _until(broken: "asyncio.Future[None]") -> None:
    await broken


@dataclass(frozen=True, slots=True)
class _Words:
    """What the model reads."""

    text: str
    leaves_out: bool


def _words(mail: Mail, *, most: int, goes_on: bool) -> _Words:
    """What is said. In a thread that goes on the session has what is quoted, and the subject."""
    new, quoted = split_quote(mail.text) if goes_on and not _FORWARDED.match(mail.subject) else (mail.text, "")
    command = without_signature(new).strip()
    if command.startswith("/") and "\n" not in command:
        return _Words(command, leaves_out=False)
    text = new.strip()
    if not goes_on and mail.subject:
        text = f"Subject: {mail.subject}\n\n{text}".strip()
    clipped = clip(text, most, "{left_out} characters left out; the whole mail is in the last file")
    if quoted.strip():
        clipped += "\n\n[quoted history left out; the whole mail is in the last file]"
    return _Words(clipped, leaves_out=bool(quoted.strip()) or clipped != text)


def _answers_a_mail(message: OutboundMessage) -> bool:
    """Whether it answers a mail, a stranger's among them; what a job or another chat sends does not."""
    if message.answers is not None:
        return message.answers.startswith(f"{EmailChannel.name}:")
    return message.reply_to is not None or (message.kind is OutboundKind.NOTICE and message.thread_id is not None)


async def _about(message: OutboundMessage, book: MailStore) -> MailRecord | None:
    """The mail it answers: the one it names, else the latest of its thread."""
    if message.reply_to is not None and (known := await book.find(message.chat_id, [message.reply_to])) is not None:
        return known
    if message.thread_id is None:
        return None
    known = await book.last_of(message.chat_id, message.thread_id)
    root = message.thread_id.removeprefix(_UNPROVEN)
    return known or (MailRecord(root, message.thread_id, "", ()) if "@" in root else None)


def _bytes_of(path: Path) -> bytes:
    with open_outgoing(path) as file:
        return file.read()


async def _files(named: list[str]) -> tuple[list[MailAttachment], list[str]]:
    """What goes along, and a word on what does not."""
    files: list[MailAttachment] = []
    notes: list[str] = []
    left = LARGEST_FILES
    for one in named:
        try:
            found = await prepare_outgoing(one, largest=left)
            if found.path is None:
                notes.append(f"{found.name}: {found.url}")
                continue
            data = await asyncio.to_thread(_bytes_of, found.path)
        except (MediaError, OSError) as error:
            notes.append(f"({error})")
            continue
        left -= len(data)
        files.append(MailAttachment(found.name, data))
    return files, notes


async def _remember(book: MailStore, message: OutboundMessage, letter: OutgoingMail, answered_at: float | None) -> None:
    """The mail is out. A disk that refuses now must not have it sent again."""
    try:
        await book.note(
            message.chat_id, MailRecord(letter.message_id, message.thread_id, letter.subject, letter.ancestors)
        )
        if answered_at is not None:
            await book.answered(message.chat_id, message.thread_id, letter.message_id, answered_at)
    except StorageError as error:
        log.warning("email: a mail was sent, but could not be recorded: %s", error)
