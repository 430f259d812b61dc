"""What subagents share with the turns that start them, and who may approve their calls."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nanobot.agent.approval.router import ApprovalRouter
from nanobot.agent.context import ContextBuilder
from nanobot.agent.scope import Scope
from nanobot.agent.tools.builtin import ToolPolicies
from nanobot.agent.tools.hooks import PlannedCall, ToolPolicy
from nanobot.bus.queue import MessageBus
from nanobot.config.schema import AgentDefaults
from nanobot.session.manager import Session

if TYPE_CHECKING:  # imported only if used
    from nanobot.agent.subagent.tasks import Task


@dataclass(slots=True)
class SubagentEnvironment:
    """Dependencies shared by parent turns and subagents."""

    defaults: AgentDefaults
    bus: MessageBus
    context: ContextBuilder
    policies: ToolPolicies
    """The current tool policies; they change with the config."""
    tool_policies_for: Callable[["TaskAudience", ToolPolicy], Sequence[ToolPolicy]]
    """Returns the policies for their tool calls: who may approve, and the policy that comes first. They change with the
    config too.
    """
    approval_router: ApprovalRouter
    on_session_released: Callable[[Session, Scope], None]
    """Called with a session after a turn released it, to check whether the memory changed."""


class TaskAudience:
    """Decides who may answer a subagent's question: the person who may answer the turn that started it."""

    def __init__(self, approval_router: ApprovalRouter, task_of: Callable[[str], "Task | None"]) -> None:
        self._approval_router = approval_router
        self._task_of = task_of

    async def unavailable_reason(self, planned: PlannedCall) -> str | None:
        """Return why nobody may answer; None if somebody may."""
        task = self._task_of(planned.context.session_key)
        if task is None:
            return await self._approval_router.unavailable_reason(planned)
        context = replace(planned.context, origin=task.origin, attended=task.attended)
        return await self._approval_router.unavailable_reason(replace(planned, context=context))
