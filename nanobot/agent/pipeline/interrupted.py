"""What an interrupted turn left: messages not stored yet, and an answer that may not have been sent."""

import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanobot.agent.engine.interruption import (
    is_continuation,
    is_interrupted,
    parts_of_answer,
)
from nanobot.agent.events import TurnEnded, TurnOutcome
from nanobot.agent.feed import TurnStarted, TurnView
from nanobot.bus.events import InboundMessage
from nanobot.errors import NanobotError
from nanobot.messages.types import INTERRUPTED, ChatMessage, Origin, is_synthetic, text_of
from nanobot.providers.base import parse_arguments
from nanobot.session.checkpoint import Checkpoint, InterruptedTurns, interrupted_keys
from nanobot.session.manager import Session, SessionManager

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 4
"""Attempts at a turn that is interrupted each time; it may be the cause of the crashes."""


class RepeatedlyInterruptedError(NanobotError):
    """A turn was interrupted in each attempt."""

    retryable = False

    def __init__(self, attempts: int) -> None:
        super().__init__(
            f"This turn was cut off {attempts} times before it could end, so it is not tried again. What it did is in "
            "the session. Send the message again if you want it."
        )


@dataclass(frozen=True, slots=True)
class InterruptedTurn:
    """A turn with a checkpoint: interrupted, or running in another process; the session's lock tells which."""

    turn_id: str
    message: InboundMessage


@dataclass(frozen=True, slots=True)
class MessageOutcome:
    """The turn that accepted a message, and its answer; empty if the turn has not ended."""

    turn_id: str
    answer: str


def find_interrupted_turns(folder: Path) -> dict[str, InterruptedTurn]:
    """Turns that have not ended, by session key. Blocks on the disk, never raises."""
    turns = ((key, find_interrupted_turn(folder, key)) for key in interrupted_keys(folder))
    return {key: turn for key, turn in turns if turn is not None}


def find_interrupted_turn(folder: Path, session_key: str) -> InterruptedTurn | None:
    """The turn of this session that has not ended; None if there is none. Blocks on the disk, never raises."""
    interrupted = Checkpoint(folder, session_key).load()
    message = message_from_row(interrupted.accepted[-1].message) if interrupted.accepted else None
    if message is None or message.session_key != session_key:
        return None
    return InterruptedTurn(interrupted.turn_id, message)


def is_answer(row: ChatMessage) -> bool:
    """Whether a turn may end with this row."""
    return row["role"] == "assistant" and not row.get("tool_calls")


def outcome_text(rows: Sequence[ChatMessage]) -> str:
    """The reply of a turn that ended with these rows: the whole answer, or why there is none."""
    last = rows[-1]
    if last.get("error") not in (None, INTERRUPTED):
        return last.get("reply") or text_of(last["content"])
    return "".join(parts_of_answer(rows, last.get("turn_id", ""))).strip()


def parts_of_turn(rows: Iterable[ChatMessage], turn_id: str) -> list[dict[str, Any]]:
    """The texts and tool calls of a turn as parts of its view, from the rows of its session."""
    parts: list[dict[str, Any]] = []
    tools: dict[str, dict[str, Any]] = {}
    continues = False
    for row in rows:
        if row.get("turn_id") != turn_id:
            continue
        if row["role"] == "user":
            continues = is_continuation(row)
        elif row["role"] == "tool" and (call_of := tools.get(row.get("tool_call_id", ""))) is not None:
            call_of.update({"ok": "failure" not in row, "content": text_of(row["content"]), "seconds": 0.0})
        elif row["role"] == "assistant":
            if (text := text_of(row["content"])) and "reply" not in row and not row.get("sent_back"):
                parts.append({"type": "text", "text": [text], **({"continues": True} if continues else {})})
            for call in row.get("tool_calls", ()):
                arguments, _ = parse_arguments(call["function"]["arguments"])
                tool = {"type": "tool", "call_id": call["id"], "name": call["function"]["name"], "arguments": arguments}
                tools[call["id"]] = tool
                parts.append(tool)
            continues = is_interrupted(row)
    return parts


def stored_view(session: Session, turn_id: str, origin: Origin) -> TurnView | None:
    """What a turn has shown that is over and no longer in the feed, from the rows of its session, without its usage.
    None if it never began.
    """
    rows = [row for row in session.messages if row.get("turn_id") == turn_id]
    if not rows:
        return None
    started = TurnStarted(
        turn_id=turn_id,
        text=text_of(rows[0]["content"]),
        message_id=turn_id,
        sender_id=str(rows[0].get("sender_id", "")),
        origin=origin,
        media=list(rows[0].get("media", ())),
        at=str(rows[0].get("timestamp", "")),
    )
    view = TurnView(started, session.key, session.key.partition(":")[0], parts=parts_of_turn(rows, turn_id))
    name, has_answer = rows[-1].get("error"), is_answer(rows[-1])
    outcome = next((outcome for outcome in TurnOutcome if outcome == name), TurnOutcome.FAILED)
    if name is None and has_answer:
        outcome = TurnOutcome.ANSWERED
    text = outcome_text(rows) if has_answer else ""
    view.ended = TurnEnded(turn_id=turn_id, outcome=outcome, text=text, error=name)
    return view


def find_answer(history: Sequence[ChatMessage], turn_id: str) -> ChatMessage | None:
    """The row that ended this turn; None if it has not ended."""
    last = history[-1] if history else None
    if last is None or last.get("turn_id") != turn_id or not is_answer(last) or is_interrupted(last):
        return None
    return last


def find_outcomes(history: Sequence[ChatMessage], journal_keys: Container[str]) -> dict[str, MessageOutcome]:
    """The outcomes of accepted messages, by journal key. A message that is missing was accepted by no turn."""
    turns = {row["inbound"]: row.get("turn_id", "") for row in history if row.get("inbound", "") in journal_keys}
    turn_ids = {*turns.values()}
    answers = {
        row["turn_id"]: index
        for index, row in enumerate(history)
        if row.get("turn_id") in turn_ids and is_answer(row)  # also a partial one: it may be the last row
    }
    texts = {turn_id: outcome_text(history[: index + 1]) for turn_id, index in answers.items()}
    return {key: MessageOutcome(turn_id, texts.get(turn_id, "")) for key, turn_id in turns.items()}


def is_accepted(folder: Path, sessions: SessionManager, session_key: str, journal_key: str) -> bool:
    """Whether a turn has accepted this message, however it ended. Blocks on the disk.

    Raises StorageError if the session cannot be read.
    """
    interrupted = find_interrupted_turn(folder, session_key)
    if interrupted is not None and interrupted.message.journal_key == journal_key:
        return True
    return journal_key in find_outcomes(sessions.get_or_create(session_key).since(0), {journal_key})


def missing_messages(history: Sequence[ChatMessage], interrupted: InterruptedTurns) -> list[tuple[str, InboundMessage]]:
    """Messages that interrupted turns accepted but did not store before the crash, with their turn's id."""
    known_turns = {row.get("turn_id") for row in history if row["role"] == "user" and not is_synthetic(row)}
    missing: list[tuple[str, InboundMessage]] = []
    for entry in interrupted.accepted:
        if entry.turn_id not in known_turns:
            known_turns.add(entry.turn_id)
            message = message_from_row(entry.message)
            missing += [(entry.turn_id, message)] if message is not None else []
    return missing


def message_from_row(payload: Mapping[str, Any]) -> InboundMessage | None:
    """The message stored in a checkpoint; None if it cannot be read."""
    try:
        return InboundMessage.from_json(payload)
    except (ValueError, TypeError, KeyError) as error:
        log.warning("cannot read a message of an interrupted turn: %r", error)
        return None
