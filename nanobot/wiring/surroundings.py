"""What subagents share with the turns that ask for them, and who answers what they ask."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nanobot.agent.answering import Answering
from nanobot.agent.context import ContextBuilder
from nanobot.agent.run.hooks import PlannedCall, ToolHook
from nanobot.agent.scope import Scope
from nanobot.agent.tools.builtin import ToolPolicies
from nanobot.bus.queue import MessageBus
from nanobot.config.schema import AgentDefaults
from nanobot.session.manager import Session

if TYPE_CHECKING:  # a turn without subagents does not wait for it
    from nanobot.agent.tasks import Task


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What subagents share with the turns that ask for them."""

    defaults: AgentDefaults
    bus: MessageBus
    context: ContextBuilder
    policies: ToolPolicies
    hooks: Callable[["Answerers"], Sequence[ToolHook]]
    """The hooks around their tool calls, asking where this says."""
    answering: Answering
    look: Callable[[Session, Scope], None]
    """Told of a session that a turn has let go of, to see whether that changed the memory."""


class Answerers:
    """Who may answer a subagent's question: who could answer the turn that asked for it."""

    def __init__(self, answering: Answering, task_of: Callable[[str], "Task | None"]) -> None:
        self._answering = answering
        self._task_of = task_of

    async def why_not(self, planned: PlannedCall) -> str | None:
        """Why nobody may answer; None where somebody may."""
        task = self._task_of(planned.context.session_key)
        if task is None:
            return await self._answering.why_not(planned)
        context = replace(planned.context, origin=task.origin, attended=task.attended)
        return await self._answering.why_not(replace(planned, context=context))
