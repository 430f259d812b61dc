"""What an earlier life left, sorted: turns to take up, messages that had joined them, messages to begin anew."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nanobot.agent.pipeline.left_over import Fate, LeftOver, fates_of, left_over_turns
from nanobot.bus.events import InboundMessage
from nanobot.errors import StorageError
from nanobot.messages.types import Origin
from nanobot.session.manager import SessionManager

log = logging.getLogger(__name__)

_TO_BE_ASKED = (Origin.CLI, Origin.API)
"""Who waits for the result of a turn in person; after a crash nobody does."""


@dataclass(slots=True)
class Earlier:
    """Each message that was accepted and has not ended is in one place here, oldest first."""

    turns: list[LeftOver] = field(default_factory=list)
    """Cut off, and to be taken up: not those whose person waited at a terminal or in a program that is gone."""
    joined: dict[str, list[InboundMessage]] = field(default_factory=dict)
    """Messages that had joined one of them, by its id."""
    over: list[tuple[InboundMessage, Fate]] = field(default_factory=list)
    """Their turn has ended; the crash came between that and the sending of the reply."""
    anew: list[InboundMessage] = field(default_factory=list)
    """No turn has taken them on."""


def sort_out(turns_folder: Path, sessions: SessionManager, unsettled: Sequence[InboundMessage]) -> Earlier:
    """What is to be done with what was left. Blocks on the disk, never raises."""
    left = left_over_turns(turns_folder).values()
    earlier = Earlier([one for one in left if one.message.origin not in _TO_BE_ASKED])
    taken_up = {one.message.journal_key for one in earlier.turns}
    going_on = {one.turn_id for one in earlier.turns}
    others = [message for message in unsettled if message.journal_key not in taken_up]
    fates = _fates_in(sessions, others)
    for message in others:
        fate = fates.get(message.journal_key or "")
        if fate is None:
            earlier.anew.append(message)
        elif fate.turn_id in going_on:
            earlier.joined.setdefault(fate.turn_id, []).append(message)
        else:
            earlier.over.append((message, fate))
    return earlier


def _fates_in(sessions: SessionManager, messages: Sequence[InboundMessage]) -> dict[str, Fate]:
    """By journal key, what became of those that a turn took on."""
    by_session: dict[str, set[str]] = {}
    for message in messages:
        by_session.setdefault(message.session_key, set()).add(message.journal_key or "")
    fates: dict[str, Fate] = {}
    for session_key, journal_keys in by_session.items():
        try:
            session = sessions.get_or_create(session_key)
            fates |= fates_of(session.since(0), journal_keys)  # one turn may be longer than what a model is shown
        except StorageError as error:
            log.warning("what became of messages in session %s cannot be seen: %s", session_key, error)
    return fates
