"""Turn events as JSON lines, for programs: `nanobot agent --json`. The last line is `turn_ended`."""

import json
from typing import TextIO

from nanobot.agent.turn import TurnEnded, TurnEvent, TurnOutcome
from nanobot.cli.terminal import leave_quietly, mended, say


class JsonLines:
    """A sink that writes each event as one line, at once. A failure is said on stderr too."""

    def __init__(self, out: TextIO, aside: TextIO) -> None:
        self._out = out
        self._aside = aside
        self.closed = False

    def __call__(self, event: TurnEvent) -> None:
        """Write the event. Never raises; when nobody reads any more, `closed` says so."""
        if self.closed:
            return
        try:
            say(self._out, mended(json.dumps(event.to_json(), ensure_ascii=False, default=str)) + "\n")
        except OSError:
            self.closed = True
            leave_quietly(self._out)
        if isinstance(event, TurnEnded) and event.outcome in (TurnOutcome.FAILED, TurnOutcome.REFUSED):
            self._complain(" ".join(event.text.split()))

    def _complain(self, text: str) -> None:
        try:
            say(self._aside, f"Error: {text}\n")
        except OSError:
            leave_quietly(self._aside)
