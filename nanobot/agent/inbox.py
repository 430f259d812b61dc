"""The inbox: messages from the bus that no file knows of yet, on the disk from the moment they are taken.

A message leaves it when a checkpoint or a session has it, or when its turn has ended in any other way. What a killed
process left here is handed in again, in the order it came, at the next start.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nanobot.bus.events import InboundMessage
from nanobot.utils.under_way import UnderWay

log = logging.getLogger(__name__)


class Inbox:
    """The messages of one process that wait, and those that dead ones left."""

    def __init__(self, folder: Path) -> None:
        self._under_way = UnderWay(folder)
        self._waiting: dict[int, tuple[int, InboundMessage]] = {}

    def keep(self, message: InboundMessage) -> None:
        """It was taken, and waits. Never raises."""
        try:
            self._waiting[id(message)] = self._under_way.begin(message.to_json()), message
        except (TypeError, ValueError, RecursionError) as error:  # what a platform put into `metadata`
            log.warning("a message of %s waits in memory only: %r", message.channel, error)

    def done(self, message: InboundMessage) -> None:
        """It need not be kept here any longer. Saying so twice is harmless, as of one that never was here."""
        number, _ = self._waiting.pop(id(message), (0, None))
        if number:
            self._under_way.end(number)

    def left(self, known: Callable[[InboundMessage], bool]) -> list[InboundMessage]:
        """What killed processes left, the oldest first; kept here from now on. Blocking, never raises.

        `known` says whether a file has a message already: the kill may have come between that and the word of it.
        """
        found: list[InboundMessage] = []

        def take(rows: list[dict[str, Any]]) -> None:
            for row in rows:
                message = _message_of(row)
                if message is not None and message not in found and not known(message):
                    found.append(message)
                    self.keep(message)

        try:
            self._under_way.take_over(take)
        except OSError as error:
            log.warning("what waited for a killed process cannot be read: %s", error)
        return sorted(found, key=lambda message: message.timestamp.timestamp())

    def close(self) -> None:
        """No message is taken any more. Never raises."""
        self._under_way.close()


def _message_of(row: dict[str, Any]) -> InboundMessage | None:
    try:
        return InboundMessage.from_json(row)
    except (ValueError, TypeError, KeyError) as error:
        log.warning("a message that a killed process left cannot be read: %r", error)
        return None
