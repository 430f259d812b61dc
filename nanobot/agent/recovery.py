"""Plan what to do after a restart with turns and messages that a previous process left unfinished."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nanobot.agent.pipeline.interrupted import InterruptedTurn, MessageOutcome, find_interrupted_turns, find_outcomes
from nanobot.agent.tools.base import SUBAGENT_SESSION
from nanobot.bus.events import InboundMessage
from nanobot.errors import StorageError
from nanobot.messages.types import Origin
from nanobot.session.manager import SessionManager

log = logging.getLogger(__name__)

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
    interrupted = find_interrupted_turns(turns_folder).values()
    plan = RecoveryPlan(
        [
            turn
            for turn in interrupted
            if not turn.message.session_key.startswith(SUBAGENT_SESSION)  # resumed with their task
            and (turn.message.origin not in _WAITED_FOR or turn.message.journal_key)
        ]
    )
    resumed_keys = {turn.message.journal_key for turn in plan.resumable}
    resumed_turns = {turn.turn_id for turn in plan.resumable}
    others = [message for message in unsettled if message.journal_key not in resumed_keys]
    outcomes = _load_outcomes(sessions, others)
    for message in others:
        outcome = outcomes.get(message.journal_key or "")
        if outcome is None:
            plan.unstarted.append(message)
        elif outcome.turn_id in resumed_turns:
            plan.joined.setdefault(outcome.turn_id, []).append(message)
        else:
            plan.ended.append((message, outcome))
    return plan


def _load_outcomes(sessions: SessionManager, messages: Sequence[InboundMessage]) -> dict[str, MessageOutcome]:
    """The outcomes of messages that a turn accepted, by journal key."""
    by_session: dict[str, set[str]] = {}
    for message in messages:
        by_session.setdefault(message.session_key, set()).add(message.journal_key or "")
    outcomes: dict[str, MessageOutcome] = {}
    for session_key, journal_keys in by_session.items():
        try:
            session = sessions.get_or_create(session_key)
            outcomes |= find_outcomes(session.since(0), journal_keys)  # a turn may be longer than the history window
        except StorageError as error:
            log.warning("cannot read what became of messages in session %s: %s", session_key, error)
    return outcomes
