"""What subagents have to do with the goal of their session: what they use is the goal's, its limits are theirs, and
they know of the notes and of each other.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from nanobot.agent import team_words
from nanobot.agent.letters import is_letter
from nanobot.agent.pipeline.work import Goals
from nanobot.agent.scope import Scope
from nanobot.agent.tasks import Task
from nanobot.agent.teammates import Teammates
from nanobot.agent.turn import StepEnded
from nanobot.bus.events import InboundMessage
from nanobot.messages.types import ChatMessage, Origin, is_outside
from nanobot.security.paths import PathDeniedError, PathPolicy
from nanobot.utils.files import make_private_folder

log = logging.getLogger(__name__)


def notes_of(paths: PathPolicy, scope: Scope, goal: str) -> str:
    """The notes folder of a goal, as it is named from the workspace; empty where there is none."""
    name = f"{scope.notes}/{goal}"
    try:
        return f"{name}/" if paths.kept(name).is_dir() else ""
    except (OSError, PathDeniedError):
        return ""


def make_notes(paths: PathPolicy, scope: Scope, goal: str) -> None:
    """See that there is one. Where it cannot be, subagents work on without: it is named to nobody then. Blocks."""
    try:
        make_private_folder(paths.kept(f"{scope.notes}/{goal}"))
    except (OSError, PathDeniedError) as error:
        log.warning("the notes folder of goal %s cannot be made: %s", goal, error)


class TaskGoals:
    """The goals, as turns of subagents meet them: those that a goal has asked for work for it."""

    def __init__(self, goals: Goals, task_of: Callable[[str], Task | None], team: Teammates, paths: PathPolicy) -> None:
        """`task_of` knows by its session the task that runs there."""
        self._goals = goals
        self._task_of = task_of
        self._team = team
        self._paths = paths

    def serves(self, message: InboundMessage) -> bool:
        """Whether a goal's turn has asked for this."""
        task = self._task_of(message.session_key)
        return task is not None and task.origin is Origin.GOAL

    def is_wanted(self, message: InboundMessage) -> bool:
        """Who asked for it waits for it."""
        return True

    async def recall(self, session_key: str) -> None:
        """The session that has the goal does."""

    def note_for(self, message: InboundMessage) -> str:
        """A subagent knows its task, and where a goal asked for it the notes and who else works for that."""
        task = self._task_of(message.session_key)
        if task is None or not task.goal or is_letter(message.journal_key):
            return ""
        return team_words.note(task, notes_of(self._paths, task.scope, task.goal), self._team.others(task))

    def told(self, message: InboundMessage) -> Sequence[ChatMessage]:
        """The names of others are a model's words, and it may have read anything before it gave them."""
        task = self._task_of(message.session_key)
        others = self._team.others(task) if task is not None else []
        return [
            {"role": "tool", "name": "team", "content": one.label, "provenance": one.asker}
            for one in others
            if is_outside(one.asker)
        ]

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

    async def elsewhere(self, session_key: str) -> str:
        """The session that has the goal knows."""
        return ""

    async def stop_of(self, said: InboundMessage) -> str:
        """The loop does."""
        return ""
