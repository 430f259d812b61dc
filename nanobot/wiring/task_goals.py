"""What subagents have to do with the goal of their session: what they use is the goal's, and its limits are theirs."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from nanobot.agent.pipeline.work import Goals
from nanobot.agent.tasks import Task
from nanobot.agent.turn import StepEnded
from nanobot.bus.events import InboundMessage
from nanobot.messages.types import ChatMessage, Origin


class TaskGoals:
    """The goals, as turns of subagents meet them: those that a goal has asked for work for it."""

    def __init__(self, goals: Goals, task_of: Callable[[str], Task | None]) -> None:
        """`task_of` knows by its session the task that runs there."""
        self._goals = goals
        self._task_of = task_of

    def serves(self, message: InboundMessage) -> bool:
        """Whether a goal's turn has asked for this."""
        task = self._task_of(message.session_key)
        return task is not None and task.origin is Origin.GOAL

    def is_wanted(self, message: InboundMessage) -> bool:
        """Who asked for it waits for it."""
        return True

    def note_for(self, message: InboundMessage) -> str:
        """A subagent knows its task, and nothing else."""
        return ""

    def told(self, message: InboundMessage) -> Sequence[ChatMessage]:
        """Nothing, therefore."""
        return ()

    def used(self, message: InboundMessage, step: StepEnded) -> None:
        """The goal has used it."""
        self._goals.used(self._asked_by(message), step)

    def why_enough(self, message: InboundMessage) -> str:
        """What the goal may not use, its subagents may not."""
        return self._goals.why_enough(self._asked_by(message))

    def _asked_by(self, message: InboundMessage) -> InboundMessage:
        """The same in the session that has the goal."""
        task = self._task_of(message.session_key)
        return replace(message, session_key_override=task.root) if task is not None else message

    async def take_up(self, session_key: str | None = None) -> None:
        """The loop does."""

    async def stop_of(self, said: InboundMessage) -> str:
        """The loop does."""
        return ""
