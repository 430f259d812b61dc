"""What a cut off turn left: messages that are no rows yet, an answer that nobody was given."""

import logging
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanobot.agent.run.cut import is_broken_off, parts_of_answer
from nanobot.bus.events import InboundMessage
from nanobot.errors import NanobotError
from nanobot.messages.types import INTERRUPTED, ChatMessage, is_our_word, text_of
from nanobot.session.checkpoint import Checkpoint, HalfDone, keys_left
from nanobot.session.manager import SessionManager

log = logging.getLogger(__name__)

MOST_TRIES = 4
"""How often a turn is begun that is cut off each time; then it may be what kills us."""


class TurnKeepsDyingError(NanobotError):
    """A turn was cut off each time it was taken up."""

    def __init__(self, tries: int) -> None:
        super().__init__(
            f"This turn was cut off {tries} times, each time before it could end, so it is not tried again. What it "
            "did is in the session. Send the message again if you want it."
        )


@dataclass(frozen=True, slots=True)
class LeftOver:
    """A turn that was cut off, or that another process is running: who holds its session knows which."""

    turn_id: str
    message: InboundMessage


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of an accepted message: the turn that took it on, and how that turn ended; no words if it did not."""

    turn_id: str
    answer: str


def left_over_turns(folder: Path) -> dict[str, LeftOver]:
    """By session, the turns that have not ended. Blocks on the disk, never raises."""
    found: dict[str, LeftOver] = {}
    for key in keys_left(folder):
        left = Checkpoint(folder, key).load()
        message = message_of(left.accepted[-1].message) if left.accepted else None
        if message is not None and message.session_key == key:
            found[key] = LeftOver(left.turn_id, message)
    return found


def is_answer(row: ChatMessage) -> bool:
    """Whether a turn may end with this row."""
    return row["role"] == "assistant" and not row.get("tool_calls")


def words_of(rows: Sequence[ChatMessage]) -> str:
    """What the person is told where a turn ended with these rows: all of the answer, or why there is none."""
    last = rows[-1]
    if last.get("error") not in (None, INTERRUPTED):
        return last.get("told") or text_of(last["content"])
    return "".join(parts_of_answer(rows, last.get("turn_id", ""))).strip()


def answer_of(history: Sequence[ChatMessage], turn_id: str) -> ChatMessage | None:
    """The row that ended this turn; None where it has not ended."""
    last = history[-1] if history else None
    if last is None or last.get("turn_id") != turn_id or not is_answer(last) or is_broken_off(last):
        return None
    return last


def fates_of(history: Sequence[ChatMessage], journal_keys: Container[str]) -> dict[str, Fate]:
    """By journal key, what became of messages that were accepted.

    One that is not among them no turn took on: it is as if it had come just now.
    """
    turns = {row["inbound"]: row.get("turn_id", "") for row in history if row.get("inbound", "") in journal_keys}
    wanted = {*turns.values()}
    answers = {
        row["turn_id"]: at
        for at, row in enumerate(history)
        if row.get("turn_id") in wanted and is_answer(row)  # one that broke off too: nothing may have come after it
    }
    words = {turn_id: words_of(history[: at + 1]) for turn_id, at in answers.items()}
    return {key: Fate(turn_id, words.get(turn_id, "")) for key, turn_id in turns.items()}


def is_taken_on(folder: Path, sessions: SessionManager, session_key: str, journal_key: str) -> bool:
    """Whether a turn has taken this message on, whatever became of it. Blocks on the disk.

    Raises StorageError where the session cannot be read.
    """
    if any(one.message.journal_key == journal_key for one in left_over_turns(folder).values()):
        return True
    return journal_key in fates_of(sessions.get_or_create(session_key).since(0), {journal_key})


def missing_messages(history: Sequence[ChatMessage], left: HalfDone) -> list[tuple[str, InboundMessage]]:
    """Messages that turns accepted but that are no rows yet, with the id of their turn: the crash came between."""
    there = {row.get("turn_id") for row in history if row["role"] == "user" and not is_our_word(row)}
    missing: list[tuple[str, InboundMessage]] = []
    for one in left.accepted:
        if one.turn_id not in there:
            there.add(one.turn_id)
            message = message_of(one.message)
            missing += [(one.turn_id, message)] if message is not None else []
    return missing


def message_of(told: Mapping[str, Any]) -> InboundMessage | None:
    """The message a checkpoint holds; None where it cannot be read."""
    try:
        return InboundMessage.from_json(told)
    except (ValueError, TypeError, KeyError) as error:
        log.warning("a message that a crash left cannot be read: %r", error)
        return None
