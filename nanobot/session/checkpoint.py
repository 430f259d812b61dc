"""The checkpoint of a turn in progress: the messages it accepted, the calls it started, and streamed text.

The session file is the log of a turn; the checkpoint adds what it lacks: messages before they are rows, the text of the
current step, and which calls of the last row have started. It exists only while a turn runs, or after a crash.

A write reaches the operating system at once, so it survives the process. Only the start of calls that must not run
twice is synced, so that it also survives a power failure.

At the end: what release 0.2 of the original design keeps of work in progress, in session metadata. It is read once.
"""

import asyncio
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanobot.messages.repair import NO_RESULT, legalise
from nanobot.messages.types import ChatMessage
from nanobot.session.file_format import Row, encode, hashed_stem
from nanobot.utils.files import missing_newline, open_for_append, sync_data, write_whole
from nanobot.utils.storage_error import storage_errors
from nanobot.utils.text import json_objects

log = logging.getLogger(__name__)

PARTIAL_EVERY_S = 0.1
"""How often streamed text is written; at most that much is lost."""


@dataclass(frozen=True, slots=True)
class AcceptedMessage:
    """A message that a turn accepted, as received."""

    turn_id: str
    message: Row


@dataclass(frozen=True, slots=True)
class InterruptedTurns:
    """What a crash left of a session's turns, oldest first."""

    accepted: tuple[AcceptedMessage, ...] = ()
    text: str = ""
    """Streamed text of the last step that had any."""
    after: int = 0
    """Number of messages the session had then; with more messages now, the text is one of them."""
    started: frozenset[str] | None = None
    """Ids of the last step's calls that started; None if unknown, so each may have started."""

    def __bool__(self) -> bool:
        return bool(self.accepted or self.text.strip())

    @property
    def turn_id(self) -> str:
        """The interrupted turn; empty if unknown."""
        return self.accepted[-1].turn_id if self.accepted else ""

    @property
    def tries(self) -> int:
        """How often the interrupted turn was started."""
        return sum(1 for message in self.accepted if message.turn_id == self.turn_id)


class Checkpoint:
    """The checkpoint file of one session. Only the holder of the session may write it."""

    def __init__(self, folder: Path, key: str, *, every_s: float = PARTIAL_EVERY_S) -> None:
        """Streamed text is written every `every_s` seconds, for 0 at once."""
        self._every_s = every_s
        self._key = key
        self._path = folder / f"{hashed_stem(key)}.jsonl"
        self._descriptor: int | None = None
        self._closed = False
        self._has_failed = False
        self._has_started = False
        self._after = 0
        self._unwritten: list[str] = []
        self._written_at = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None

    def accept(self, turn_id: str, message: Row) -> None:
        """Record that a turn starts or resumes with this message. Never raises.

        If the disk fails there is no file, and after a crash each call counts as possibly started.
        """
        self._try_append({"turn": turn_id, "message": message})

    def partial(self, text: str) -> None:
        """Record streamed text of the current step. Never raises."""
        self._unwritten.append(text)
        due_s = self._written_at + self._every_s - time.monotonic()
        if due_s <= 0:
            self._write_partial()
        elif self._timer is None:
            with suppress(RuntimeError):  # without an event loop the next call writes it
                self._timer = asyncio.get_running_loop().call_later(due_s, self._write_partial)

    def set_message_count(self, messages: int) -> None:
        """Record the session's number of messages. Text streamed so far is among them, later text is not."""
        self._forget_partial()
        self._after = messages

    def start_step(self) -> None:
        """Record that all started calls have results, as the next step may reuse their ids.

        Never raises. If this is lost, a call that never ran may count as possibly started.
        """
        if self._has_started:
            self._has_started = False
            self._try_append({"step": True})

    async def calls_start(self, call_ids: Sequence[str], *, durable: bool) -> None:
        """Record that these calls start; synced to the disk if `durable`.

        Raises StorageError if an existing file could not be updated: then the calls must not run.
        """
        if self._has_failed and self._descriptor is None:
            return
        with storage_errors("The start of a tool call cannot be recorded"):
            self._append({"started": list(call_ids)})
            self._has_started = True
            if durable and self._descriptor is not None:
                await asyncio.to_thread(sync_data, self._descriptor)

    def load(self) -> InterruptedTurns:
        """Read what a crash left; an incomplete last line is ignored. Never raises."""
        accepted: list[AcceptedMessage] = []
        text, after = "", 0
        started: set[str] = set()
        for row in _read_rows(self._path):
            match row:
                case {"message": dict() as message}:
                    accepted.append(AcceptedMessage(str(row.get("turn", "")), message))
                case {"text": str() as part}:
                    text = text + part if row.get("after", 0) == after else part
                    after = row.get("after", 0)
                case {"step": True}:
                    started.clear()
                case {"started": list() as ids}:
                    started.update(map(str, ids))
        self._has_started = bool(started)
        return InterruptedTurns(tuple(accepted), text, after, frozenset(started) if accepted else None)

    def discard(self) -> None:
        """Delete the checkpoint at the end of the turn. Never raises."""
        self._forget_partial()
        self.close()
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("the checkpoint cannot be deleted: %s", error)

    def close(self) -> None:
        """Close the file and keep it for the next start. Nothing more is written."""
        if self._unwritten:
            self._write_partial()
        self._closed = True
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _write_partial(self) -> None:
        self._written_at = time.monotonic()
        self._try_append({"after": self._after, "text": "".join(self._unwritten)})
        self._forget_partial()

    def _forget_partial(self) -> None:
        self._unwritten.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _try_append(self, row: Row) -> None:
        try:
            self._append(row)
        except OSError as error:
            if not self._has_failed:
                log.warning("the checkpoint cannot be written: %s", error)
            self._has_failed = True

    def _append(self, row: Row) -> None:
        if self._closed:
            return
        if self._descriptor is None:
            self._descriptor = open_for_append(self._path)
            write_whole(self._descriptor, missing_newline(self._descriptor))
        write_whole(self._descriptor, encode({"key": self._key, **row}))


def interrupted_keys(folder: Path) -> Iterator[str]:
    """Yield the keys of sessions with a checkpoint: of interrupted turns, and of those in progress in any process."""
    for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else ():
        key = next((row.get("key") for row in _read_rows(path)), None)
        if isinstance(key, str):
            yield key


def _read_rows(path: Path) -> Iterator[Row]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("the checkpoint cannot be read: %s", error)
        return
    yield from json_objects(data)


# --- what the original keeps


ORIGINAL_KEYS = ("runtime_checkpoint", "pending_user_turn", "goal_state")
"""Metadata of the original: the last step of the interrupted turn, whose messages are not in the session yet; whether
the session ends with a message that was not answered; and `{status, objective, ...}` of a goal, or that as JSON text.
"""
_ORIGINAL_FIELDS = ("content", "tool_calls", "reasoning_content", "thinking_blocks", "timestamp")


def rows_of_original(metadata: Mapping[str, Any], history: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the checkpoint's messages that are not in the session yet: the assistant's message and finished results.

    Calls without a result stay open, as after a crash of ours. Returns nothing if the checkpoint is invalid or does not
    fit the end of the history.
    """
    checkpoint = metadata.get("runtime_checkpoint")
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("assistant_message"), dict):
        return []
    message = {name: value for name, value in checkpoint["assistant_message"].items() if name in _ORIGINAL_FIELDS}
    results = checkpoint.get("completed_tool_results")
    results = results if isinstance(results, list) else []
    tool_rows = [{**row, "role": "tool"} for row in results if isinstance(row, dict)]
    rows = legalise([{"role": "user", "content": "?"}, {**message, "role": "assistant"}, *tool_rows])[1:]
    if not rows:
        return []
    step, *finished = [row for row in rows if row["content"] != NO_RESULT]
    at = len(history)
    while at and history[at - 1]["role"] == "tool":
        at -= 1
    last = history[at - 1] if at else None
    if last is None or last["role"] != "assistant":
        return [step, *finished]
    stored = {row.get("tool_call_id") for row in history[at:]}
    call_ids = [call["id"] for call in step.get("tool_calls", ())]
    if call_ids and [call.get("id") for call in last.get("tool_calls", ())] == call_ids:
        return [row for row in finished if row.get("tool_call_id") not in stored]
    if not call_ids and last.get("content") == step["content"]:
        return []
    return [step, *finished]


def goal_of_original(metadata: Mapping[str, Any]) -> str:
    """Return the objective of an unfinished goal; empty if there is none."""
    state = metadata.get("goal_state")
    if isinstance(state, str):
        with suppress(ValueError, RecursionError):
            state = json.loads(state)
    if not isinstance(state, dict) or state.get("status") != "active":
        return ""
    objective = state.get("objective")
    return objective.strip() if isinstance(objective, str) else ""
