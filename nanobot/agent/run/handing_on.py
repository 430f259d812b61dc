"""The hook that says whose words are handed on to a subagent.

It sees nothing of the conversation, so its turn could not know that a task repeats what an older turn has read on the
web or in a mail. Here that is found out, while the window is at hand.
"""

import asyncio
from weakref import WeakValueDictionary

from nanobot.agent.run.hooks import PlannedCall, Verdict
from nanobot.agent.run.outside import provenance_of, repeated_row
from nanobot.agent.turn import Emitter
from nanobot.messages.types import is_outside

_NOTHING = Verdict()


class HandingOn:
    """It forbids nothing. Beside that it knows who watches the turns that wait for a subagent."""

    def __init__(self) -> None:
        self._watched: WeakValueDictionary[str, Emitter] = WeakValueDictionary()

    async def before_call(self, planned: PlannedCall) -> Verdict:
        """Look at a task; of any other call there is nothing to say."""
        if planned.call.name != "spawn":
            return _NOTHING
        context = planned.context
        self._watched[context.turn_id] = planned.emit
        if is_outside(context.entered):
            return _NOTHING
        rows = [*planned.told, *planned.rows]
        row = await asyncio.to_thread(repeated_row, planned.call.arguments, rows, context.turn_id, context.session_key)
        return _NOTHING if row is None else Verdict(entered=provenance_of(row, context.session_key))

    def watched_by(self, turn_id: str) -> Emitter | None:
        """Tells who watches that turn; None where it has ended, or spawned nothing."""
        return self._watched.get(turn_id)
