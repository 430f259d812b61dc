"""Goals as seen by the turns of subagents: they use the goal's limits and know its notes and their teammates."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from nanobot.agent.events import StepEnded
from nanobot.agent.pipeline.turn import TurnGoals
from nanobot.agent.scope import Scope
from nanobot.agent.subagent import team_texts
from nanobot.agent.subagent.mailbox import is_team_message
from nanobot.agent.subagent.tasks import Task
from nanobot.agent.subagent.team import TeamService
from nanobot.bus.events import InboundMessage
from nanobot.messages.types import ChatMessage, Origin, is_outside
from nanobot.security.files.paths import PathDeniedError, PathPolicy
from nanobot.utils.files import make_private_folder

log = logging.getLogger(__name__)


def goal_notes(paths: PathPolicy, scope: Scope, goal: str) -> str:
    """Return the notes folder of a goal, relative to the workspace; empty if there is none."""
    name = f"{scope.notes}/{goal}"
    try:
        return f"{name}/" if paths.resolve_own(name).is_dir() else ""
    except (OSError, PathDeniedError):
        return ""


def make_notes(paths: PathPolicy, scope: Scope, goal: str) -> None:
    """Create the notes folder. On failure subagents work without it. Blocks."""
    try:
        make_private_folder(paths.resolve_own(f"{scope.notes}/{goal}"))
    except (OSError, PathDeniedError) as error:
        log.warning("the notes folder of goal %s cannot be created: %s", goal, error)


class TaskGoals:
    """Goals as seen by the turns of subagents that a goal started."""

    def __init__(
        self, goals: TurnGoals, task_of: Callable[[str], Task | None], team: TeamService, paths: PathPolicy
    ) -> None:
        """`task_of` returns the task that runs in a session."""
        self._goals = goals
        self._task_of = task_of
        self._team = team
        self._paths = paths

    def serves(self, message: InboundMessage) -> bool:
        """Whether a goal's turn started this subagent."""
        task = self._task_of(message.session_key)
        return task is not None and task.origin is Origin.GOAL

    def is_wanted(self, message: InboundMessage) -> bool:
        """The turn that started it waits for it."""
        return True

    async def adopt(self, message: InboundMessage, text: str, scope: Scope) -> str:
        """Subagent sessions have no goals of earlier releases."""
        return ""

    async def recall(self, session_key: str) -> None:
        """The parent session does this."""

    def note_for(self, message: InboundMessage) -> str:
        """Return the notes folder and teammates for a subagent of a goal."""
        task = self._task_of(message.session_key)
        if task is None or not task.goal or is_team_message(message.journal_key):
            return ""
        return team_texts.note(task, goal_notes(self._paths, task.scope, task.goal), self._team.others(task))

    def untrusted_rows(self, message: InboundMessage) -> Sequence[ChatMessage]:
        """Return the teammates' labels as untrusted rows: a model chose them after it may have read anything."""
        task = self._task_of(message.session_key)
        others = self._team.others(task) if task is not None else []
        return [
            {"role": "tool", "name": "team", "content": other.label, "provenance": other.asker}
            for other in others
            if is_outside(other.asker)
        ]

    def record_usage(self, message: InboundMessage, step: StepEnded) -> None:
        """Count the step for the goal."""
        self._goals.record_usage(self._for_goal_session(message), step)

    def stop_reason(self, message: InboundMessage) -> str:
        """The goal's limits hold for its subagents too."""
        return self._goals.stop_reason(self._for_goal_session(message))

    def _for_goal_session(self, message: InboundMessage) -> InboundMessage:
        """Return the message as if in the session that has the goal."""
        task = self._task_of(message.session_key)
        return replace(message, session_key_override=task.root) if task is not None else message

    async def recover(self, session_key: str | None = None) -> None:
        """The loop does this."""

    async def other_process_note(self, session_key: str) -> str:
        """The parent session knows."""
        return ""

    async def stop_for(self, message: InboundMessage) -> str:
        """The loop does this."""
        return ""
