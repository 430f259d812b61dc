"""Turn events as JSON lines, for programs: `nanobot agent --json`. The last line is `turn_ended`, unless
subagents go on: what they bring follows.

What the agent sends to this chat beside its answer is a line `{"type": "message", "text": ...}`.
"""

import json
from typing import TextIO

from nanobot.agent.turn import ApprovalAsked, TurnEvent
from nanobot.cli.closing import failure_line
from nanobot.cli.outlet import Outlet
from nanobot.cli.terminal import harmless_json, visible


class JsonLines:
    """A sink that writes each event as one line, at once. A failure is said on stderr too."""

    def __init__(self, out: TextIO | None, aside: TextIO | None) -> None:
        self.outlet = Outlet(out)
        self._aside = Outlet(aside)

    def __call__(self, event: TurnEvent) -> None:
        """Write the event. Never raises; when nobody reads any more, the outlet says so."""
        self.outlet.write(harmless_json(json.dumps(event.to_json(), ensure_ascii=False, default=str)) + "\n")
        if isinstance(event, ApprovalAsked):
            self._aside.write(f"{visible(event.text)}\n")  # somebody sits there and answers
        if failure := failure_line(event):
            self._aside.write(f"{failure}\n")

    def show(self, text: str) -> None:
        """A message beside the answer."""
        self.outlet.write(harmless_json(json.dumps({"type": "message", "text": text}, ensure_ascii=False)) + "\n")
