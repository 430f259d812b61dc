"""A platform that lives in this process and can do everything: it holds the suite, and what all channels share, to it.

What a channel of one's own may look like: `BoardChannel` is all it takes where messages are posted and edited.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from nanobot.bus.events import Address
from nanobot.bus.queue import MessageBus
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.errors import (
    ChannelSetupError,
    NotConnectedError,
    RateLimitedError,
    SendError,
    UndeliverableError,
)
from nanobot.channels.incoming import Incoming
from nanobot.channels.media import Attachment, MediaKind, StoredAttachment, one_chunk
from nanobot.channels.outgoing import Outgoing
from nanobot.config.channels import ChannelConfig, GroupPolicy
from nanobot.markdown import Chunk
from nanobot.markdown.dialects import PLAIN
from nanobot.testing.platform import Platform, Shown

PING_S = 0.02


class BoardConfig(ChannelConfig):
    """The section `channels.board`."""

    token: str = ""
    group_policy: GroupPolicy = "mention"
    streaming: bool = True
    react_emoji: str = "👀"


@dataclass(frozen=True, slots=True)
class Note:
    """What a person pinned up."""

    id: str
    sender: str
    chat: str
    text: str
    thread: str | None = None
    mention: bool = False
    file: Path | None = None


@dataclass
class Line:
    """A connection to the board. `closed` says why it is one no more."""

    closed: asyncio.Event = field(default_factory=asyncio.Event)
    deaf: bool = False


class BoardChannel(ChatChannel):
    """The channel of the board."""

    name = "board"
    dialect = replace(PLAIN, limit=400)
    can_edit = True
    can_react = True

    def __init__(self, config: BoardConfig, bus: MessageBus, board: "BoardPlatform") -> None:
        super().__init__(config, bus)
        self._board = board

    async def start(self) -> None:
        """Read the notes from the first that was not acknowledged, and wait for more."""
        line = self._board.connect(self.config.token)
        self.mark_up()
        try:
            while True:
                note = await self._board.next_note(line)
                if note is not None:
                    await self._take(note)
                    self._board.acknowledge(note.id)
                self.status.touch()
        finally:
            self._board.hang_up(line)

    async def _take(self, note: Note) -> None:
        async def fetch() -> list[StoredAttachment]:
            if note.file is None:
                return []
            kind = MediaKind.IMAGE if note.file.suffix == ".png" else MediaKind.FILE
            data = note.file.read_bytes()
            return [await self.services.media.store(Attachment(kind, name=note.file.name), lambda: one_chunk(data))]

        is_private = note.chat != BoardPlatform.group
        await self.receive(
            Incoming(
                note.sender,
                note.chat,
                note.text,
                note.id,
                note.thread,
                is_private,
                is_mentioned=note.mention,
                fetch=fetch,
            )
        )

    async def post(self, to: Address, piece: Chunk, how: SendOptions) -> str:
        """Pin it up."""
        labels = [button.label for button in how.buttons]
        shown = Shown("", piece.text, reply_to=how.reply_to, thread_id=to.thread_id, buttons=labels)
        return self._board.pin(to.chat_id, shown, {button.label: button.value for button in how.buttons})

    async def edit(self, to: Address, platform_id: str, piece: Chunk) -> None:
        """Write over it."""
        self._board.rewrite(platform_id, piece.text)

    async def post_file(self, to: Address, file: Outgoing, how: SendOptions) -> str:
        """Pin up a file."""
        return self._board.pin(to.chat_id, Shown("", "", [file.name], how.reply_to, to.thread_id), {})

    async def show_typing(self, to: Address) -> None:
        """Knock."""
        self._board.typing.append(to.chat_id)

    async def react(self, to: Address, message_id: str, emoji: str) -> None:
        """Put a sign on a note."""
        self._board.signs.setdefault(message_id, []).append(emoji)


class BoardPlatform(Platform):
    """The board itself."""

    name = "board"
    person, private = "anna", "anna"
    stranger, stranger_chat = "zoe", "zoe"
    group = "hall"
    limit = 400
    edits = threads = files = quotes = queues_messages = buttons = reacts = types = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.typing: list[str] = []
        self.signs: dict[str, list[str]] = {}
        self._ids = count(1)
        self._notes: list[Note] = []
        self._waiting: list[Note] = []
        self._acknowledged: set[str] = set()
        self._came = asyncio.Event()
        self._lines: list[Line] = []
        self._shown: dict[str, list[Shown]] = {}
        self._values: dict[str, dict[str, str]] = {}
        self._token = "good"
        self._gone = False
        self._refusals: list[Exception] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator["BoardPlatform"]:
        yield self
        assert not self._lines, "a connection was left open"

    def channel(self, bus: MessageBus, **settings: Any) -> BoardChannel:
        usual = {"enabled": True, "token": "good", "allow_from": [self.person]}
        return BoardChannel(BoardConfig.model_validate(usual | settings), bus, self)

    # what people do and see

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
        note = Note(f"n{next(self._ids)}", sender or self.person, chat or self.private, text, thread, mention, file)
        self._notes.append(note)
        self._hand_out(note)
        return note.id

    async def press_button(self, message_id: str, label: str) -> None:
        await self.says(self._values[message_id][label])

    def shown(self, chat: str | None = None) -> list[Shown]:
        return self._shown.get(chat or self.private, [])

    def reactions_on(self, message_id: str) -> list[str]:
        return self.signs.get(message_id, [])

    def typed(self, chat: str | None = None) -> int:
        return self.typing.count(chat or self.private)

    # what goes wrong

    async def repeat_last(self) -> None:
        self._hand_out(self._notes[-1])

    def acknowledged(self, message_id: str) -> bool:
        return message_id in self._acknowledged

    def refuse(self, times: int, *, status: int = 500, retry_after_s: float | None = None) -> None:
        errors: dict[int, Exception] = {
            403: UndeliverableError("the bot was thrown out"),
            429: RateLimitedError("too fast", retry_after_s or 0),
        }
        self._refusals += [errors.get(status, SendError(f"status {status}"))] * times

    async def drop(self) -> None:
        for line in self._lines:
            line.closed.set()

    async def gone(self, *, gone: bool) -> None:
        self._gone = gone
        if gone:
            await self.drop()

    async def half_open(self) -> None:
        for line in self._lines:
            line.deaf = True

    async def revoke(self) -> None:
        self._token = "another"
        await self.drop()

    # what the channel does

    def connect(self, token: str) -> Line:
        """Begin to listen."""
        if self._gone:
            raise OSError("no route to the board")
        if token != self._token:
            raise ChannelSetupError("The board does not know channels.board.token any more. Ask for a new one.")
        self._lines.append(line := Line())
        self._waiting = [note for note in self._notes if note.id not in self._acknowledged]
        self._came.set()
        return line

    def hang_up(self, line: Line) -> None:
        """Listen no more."""
        self._lines.remove(line)

    async def next_note(self, line: Line) -> Note | None:
        """The next note, or None as a sign of life. Raises OSError once the line is cut."""
        if line.deaf:
            await line.closed.wait()
        if not self._waiting:
            self._came.clear()
            arrived = [asyncio.ensure_future(one.wait()) for one in (self._came, line.closed)]
            try:
                await asyncio.wait(arrived, timeout=PING_S, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in arrived:
                    one.cancel()
        if line.closed.is_set():
            raise OSError("the line was cut")
        return self._waiting.pop(0) if self._waiting and not line.deaf else None

    def acknowledge(self, note_id: str) -> None:
        """It arrived."""
        self._acknowledged.add(note_id)

    def pin(self, chat: str, shown: Shown, values: dict[str, str]) -> str:
        """Put a note of the bot up; its id."""
        self._answer()
        if len(shown.text) > self.limit:
            raise UndeliverableError("too long for the board")
        shown.id = f"b{next(self._ids)}"
        self._shown.setdefault(chat, []).append(shown)
        self._values[shown.id] = values
        return shown.id

    def rewrite(self, shown_id: str, text: str) -> None:
        """Write over a note of the bot."""
        self._answer()
        for shown in [one for chat in self._shown.values() for one in chat]:
            if shown.id == shown_id:
                shown.text, shown.edits = text, shown.edits + 1
                return
        raise UndeliverableError("it hangs no more")

    def _answer(self) -> None:
        if self._gone:
            raise NotConnectedError("no route to the board")
        if self._refusals:
            raise self._refusals.pop(0)

    def _hand_out(self, note: Note) -> None:
        if self._lines:
            self._waiting.append(note)
            self._came.set()
