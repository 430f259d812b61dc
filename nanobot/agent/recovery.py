"""Recovery after a crash or a restart: what a previous process left unfinished, and what becomes of it.

An interrupted turn leaves a checkpoint beside its session; an accepted message without an outcome is in the journal.
"""

import logging
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanobot.agent.engine.transcript import is_answer, is_interrupted, outcome_text
from nanobot.agent.tools.base import SUBAGENT_SESSION
from nanobot.bus.events import InboundMessage
from nanobot.errors import NanobotError, StorageError
from nanobot.messages.types import ChatMessage, Origin, is_synthetic
from nanobot.session.checkpoint import Checkpoint, InterruptedTurns, interrupted_keys
from nanobot.session.manager import SessionManager

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


def find_interrupted_turn(folder: Path, session_key: str) -> InterruptedTurn | None:
    """The turn of this session that has not ended; None if there is none. Blocks on the disk, never raises."""
    interrupted = Checkpoint(folder, session_key).load()
    message = message_from_row(interrupted.accepted[-1].message) if interrupted.accepted else None
    if message is None or message.session_key != session_key:
        return None
    return InterruptedTurn(interrupted.turn_id, message)


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


_WAITED_FOR = (Origin.CLI, Origin.API)
"""A caller waited for the result of these turns; after a crash it is gone, so they are not resumed.

Journaled messages are resumed: they were acknowledged to their senders.
"""


@dataclass(slots=True)
class RecoveryPlan:
    """Each accepted and unsettled message is in exactly one of these, oldest first."""

    resumable: list[InterruptedTurn] = field(default_factory=list)
    """Interrupted turns to resume."""
    joined: dict[str, list[InboundMessage]] = field(default_factory=dict)
    """Messages that had joined a resumable turn, by its id."""
    ended: list[tuple[InboundMessage, MessageOutcome]] = field(default_factory=list)
    """Messages whose turn ended before the crash, but whose reply may not have been sent."""
    unstarted: list[InboundMessage] = field(default_factory=list)
    """Messages that no turn has accepted."""


def plan_recovery(turns_folder: Path, sessions: SessionManager, unsettled: Sequence[InboundMessage]) -> RecoveryPlan:
    """Sort interrupted turns and unsettled messages. Blocks on the disk, never raises."""
    plan = RecoveryPlan()
    for key in interrupted_keys(turns_folder):
        turn = find_interrupted_turn(turns_folder, key)
        if turn is None or key.startswith(SUBAGENT_SESSION):  # resumed with their task
            continue
        if turn.message.journal_key or turn.message.origin not in _WAITED_FOR:
            plan.resumable.append(turn)
    resumed = {turn.turn_id: turn.message.journal_key for turn in plan.resumable}
    others = [message for message in unsettled if message.journal_key not in resumed.values()]
    keys_of: defaultdict[str, set[str]] = defaultdict(set)
    for message in others:
        keys_of[message.session_key].add(message.journal_key or "")
    outcomes: dict[str, MessageOutcome] = {}
    for session_key, journal_keys in keys_of.items():
        try:
            rows = sessions.get_or_create(session_key).since(0)  # a turn may be longer than the history window
            outcomes |= find_outcomes(rows, journal_keys)
        except StorageError as error:
            log.warning("cannot read what became of messages in session %s: %s", session_key, error)
    for message in others:
        outcome = outcomes.get(message.journal_key or "")
        if outcome is None:
            plan.unstarted.append(message)
        elif outcome.turn_id in resumed:
            plan.joined.setdefault(outcome.turn_id, []).append(message)
        else:
            plan.ended.append((message, outcome))
    return plan
