"""Tasks: what subagents were asked to do, and how it ended."""

from dataclasses import dataclass
from enum import StrEnum

from nanobot.agent.tools.base import SUBAGENT_SESSION
from nanobot.agent.work import Requester, Work
from nanobot.messages.types import Provenance


class TaskRole(StrEnum):
    WORKER = "worker"
    """Does a task with all tools of subagents."""
    REVIEWER = "reviewer"
    """Judges another agent's result."""
    PLANNER = "planner"
    """Writes the task list for a piece of work."""


@dataclass(frozen=True, slots=True)
class TaskOrder:
    """What is to be done, and for whom. Fixed when it is asked for."""

    text: str
    label: str
    requester: Requester
    """Its session gets the report."""
    role: TaskRole = TaskRole.WORKER
    turn_id: str = ""
    root: str = ""
    """The session at the top if a subagent asked, else that of the requester."""
    depth: int = 1
    goal: str = ""
    """Id of the goal whose turn asked, if any."""
    waited: bool = False
    """Whether the turn that asked waits for the result."""
    quiet: bool = False
    """Whether the turn that asked sends nothing; then the report is not sent either."""

    @property
    def parent(self) -> str:
        """The session that asked."""
        return self.requester.session_key

    @property
    def key(self) -> tuple[str, TaskRole, str]:
        """Equal for two orders of the same work."""
        return self.parent, self.role, " ".join(self.text.split()).casefold()

    @property
    def in_team(self) -> bool:
        """Whether it may exchange messages with the other workers of its goal."""
        return bool(self.goal) and self.role is TaskRole.WORKER

    def belongs_to(self, session_key: str) -> bool:
        return session_key in (self.parent, self.root)


@dataclass(slots=True, kw_only=True)
class Task(Work):
    """One task: its order, and how far it is."""

    order: TaskOrder
    began_at: float | None = None
    tries: int = 0
    cost_usd: float | None = None
    result: str = ""
    seen: Provenance = Provenance.TOOL
    """The least trusted content the subagent read."""

    @property
    def root(self) -> str:
        return self.order.root

    @property
    def turn_id(self) -> str:
        return self.order.turn_id

    @property
    def name(self) -> str:
        """By which teammates address it."""
        return f"{self.order.label} ({self.id})"

    @property
    def session_key(self) -> str:
        """Session of the subagent, with its transcript."""
        return f"{SUBAGENT_SESSION}{self.id}"

    @property
    def attempt_key(self) -> str:
        """Key of the message that starts the current attempt."""
        return f"{self.session_key}:{self.tries}"

    @property
    def journal_key(self) -> str:
        """Key of the report, so that it is delivered once."""
        return f"{self.session_key}:report"
