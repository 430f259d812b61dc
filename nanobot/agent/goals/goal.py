"""A goal: what to reach, for whom, its progress and its cost."""

from dataclasses import dataclass, field, replace

from nanobot.agent.goals.check import GoalCheck
from nanobot.agent.work import Requester, Work, WorkState
from nanobot.errors import NanobotError
from nanobot.messages.types import Provenance


@dataclass(frozen=True, slots=True)
class GoalLimits:
    """What a goal may use at most."""

    steps: int = 200
    """Model calls, including those of its subagents."""
    usd: float = 2.0
    """Dollars, as far as prices are known."""


@dataclass(frozen=True, slots=True)
class GoalOrder:
    """What is to be reached, and for whom. Fixed when it is set."""

    text: str
    requester: Requester
    check: GoalCheck | None = None
    """The check that is demanded, if any."""
    plan: bool = False
    """Whether a planner writes a task list first."""
    review: bool = False
    """Whether a reviewer reads the result before the person does."""


@dataclass(frozen=True, slots=True)
class Note:
    """The progress, in the model's words."""

    done: str = ""
    doing: str = ""
    following: str = ""


@dataclass(slots=True)
class GoalProgress:
    """How far the work is."""

    note: Note = field(default_factory=Note)
    noted: Provenance = Provenance.OWNER
    """Least trusted provenance of the turns that wrote the note."""
    claim: GoalCheck | None = None
    """The check that passed. The turn that claimed it may still be running."""
    planned: bool = False
    sent_back: int = 0
    """Number of rejections by the reviewer."""
    objections: str = ""
    """The reviewer's last objections."""
    failures: int = 0
    """Failed turns in a row."""
    idle: int = 0
    """Turns in a row without any action."""
    unnoted: int = 0
    """Turns in a row without a change of the note."""


@dataclass(slots=True)
class GoalUsage:
    turns: int = 0
    steps: int = 0
    """Model calls, including those of its subagents."""
    cost_usd: float | None = None
    """None while no price is known."""


@dataclass(slots=True, kw_only=True)
class Goal(Work):
    """One goal: its order, and what became of it. A session has one, its current or last."""

    order: GoalOrder
    limits: GoalLimits = field(default_factory=GoalLimits)
    state: WorkState = WorkState.ACTIVE
    why: str = ""
    """Why it waits or ended, or what it asks, as a text for people."""
    progress: GoalProgress = field(default_factory=GoalProgress)
    usage: GoalUsage = field(default_factory=GoalUsage)
    report: str = ""
    """The report of its end, or the question it waits for."""
    reported: bool = True

    @property
    def session_key(self) -> str:
        return self.order.requester.session_key

    @property
    def root(self) -> str:
        return self.session_key

    @property
    def spent(self) -> str:
        """Why it may not use more; empty if it may."""
        if self.usage.steps >= self.limits.steps:
            return f"its limit of {self.limits.steps} steps is reached"
        if (self.usage.cost_usd or 0.0) >= self.limits.usd:
            return f"its limit of ${self.limits.usd:g} is reached"
        return ""

    def extend(self, steps: int | None, usd: float | None, usual: GoalLimits) -> None:
        """Raise the limits of a resumed goal by what is asked for, or where one is reached by the usual amount."""
        used, limits = self.usage, self.limits
        if steps is not None or used.steps >= limits.steps:
            limits = replace(limits, steps=used.steps + (steps or usual.steps))
        if usd is not None or (used.cost_usd or 0.0) >= limits.usd:
            limits = replace(limits, usd=(used.cost_usd or 0.0) + (usd or usual.usd))
        self.limits = limits


def check_length(limit: int, text: str, name: str) -> None:
    """Raise NanobotError if the text has more than `limit` characters."""
    if len(text) > limit:
        raise NanobotError(f"{name} has {len(text):,} characters; {limit:,} are the most. Put the rest into a file.")
