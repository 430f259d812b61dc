"""A goal: what to reach, for whom, how success is proved, its progress and its cost; and how it is described to the
model and to people.
"""

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum

from nanobot.agent.work import Requester, Work, WorkState
from nanobot.errors import NanobotError
from nanobot.messages.types import Provenance
from nanobot.usage.types import format_dollars
from nanobot.utils.text import clip_line, count_noun, duration

_MAX_TARGET = 4_000
_MAX_EXPECTED = 2_000
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_PROVES_NOTHING = re.compile(
    r"(?:.*(?:[;\n]|\|\|))?[\s(]*"  # the last command determines the exit code
    r"(?:(?:[\w/]*/)?(?:true|:|pwd|date|ls(?: \.)?|exit(?: 0)?)|(?:echo|printf)\b[^|;&\n]*)[\s)]*"
    r"|.*[^&]&\s*",  # in the background
    re.DOTALL,
)
_PIPED = re.compile(r".*\|\s*(?:tail|head|cat|tee|wc|sort|uniq|nl|tr|cut)\b[^|;&\n]*", re.DOTALL)
"""These succeed whatever their input, so without a text to expect they prove nothing either."""


class CheckKind(StrEnum):
    """What a check examines."""

    COMMAND = "command"
    """It exits with code 0."""
    FILE = "file"
    """It exists and is not empty."""
    PAGE = "page"
    """It answers with a status below 400."""


@dataclass(frozen=True, slots=True)
class GoalCheck:
    """Shows whether a goal is reached."""

    kind: CheckKind
    target: str
    expect: str = ""
    """A text that it must show."""

    def __str__(self) -> str:
        shows = f' showing "{self.expect}"' if self.expect else ""
        return f"{self.kind}: {self.target}{shows}"

    @classmethod
    def of(cls, text: str, expect: str = "") -> "GoalCheck":
        """Parse a text such as `command: pytest -q`. Raises NanobotError, which says what would be right."""
        kind, colon, target = text.partition(":")
        kind, target = kind.strip().lower(), target.strip()
        if not colon or kind not in [*CheckKind] or not target:
            raise NanobotError(
                f"A check is written as `command: ...`, `file: PATH` or `page: URL`; {text[:80]!r} is none of these."
            )
        if len(target) > _MAX_TARGET or len(expect) > _MAX_EXPECTED:
            raise NanobotError(
                f"A check has {_MAX_TARGET:,} characters at most, and {_MAX_EXPECTED:,} of a text to show. Put more "
                "into a script, and name that."
            )
        unquoted, expect = _QUOTED.sub("quoted", target).strip(), expect.strip()
        proves_nothing = _PROVES_NOTHING.fullmatch(unquoted) or (not expect and _PIPED.fullmatch(unquoted))
        if kind == CheckKind.COMMAND and proves_nothing:  # as far as can be seen
            raise NanobotError(
                f"`{target}` succeeds whatever was done, so it proves nothing. Name a command that fails as long as "
                "the goal is not reached."
            )
        return cls(CheckKind(kind), target, expect)


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

    @property
    def title(self) -> str:
        return clip_line(" ".join(self.order.text.split()), 60)

    @property
    def usage_text(self) -> str:
        """What it has used of its limits."""
        limits, used = self.limits, self.usage
        if used.steps and used.cost_usd is None:
            return f"step {used.steps} of {limits.steps}, its cost is not known"
        cost = f"{format_dollars(used.cost_usd or 0.0)} of {format_dollars(limits.usd)}"
        return f"step {used.steps} of {limits.steps}, {cost}"

    @property
    def note_text(self) -> str:
        note = self.progress.note
        parts = {"Done": note.done, "Doing": note.doing, "Next": note.following}
        return "\n".join(f"{name}: {text}" for name, text in parts.items() if text)

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


# --- how it is described to the model beside a message, and to people

_HEADING = "## Goal"
_RESUME_OR_NEW = "/goal resume continues it; /goal TEXT starts another."
_STATES = {
    WorkState.ACTIVE: ("is running", "/stop ends it."),
    WorkState.ASKING: ("waits for your answer", "Your answer continues it; /stop ends it."),
    WorkState.WAITING: ("waits", "/goal resume continues it; /stop ends it."),
    WorkState.DONE: ("is done", ""),
    WorkState.DROPPED: ("is given up", _RESUME_OR_NEW),
    WorkState.STOPPED: ("is stopped", _RESUME_OR_NEW),
    WorkState.LIMIT: ("ended at its limit", _RESUME_OR_NEW),
}
"""What a goal does in each state, and what a person can do next."""


def runtime_note(goal: Goal) -> str:
    """Return the note and objections for the runtime context of a goal's turn. They may hold untrusted content, so they
    are not part of the message.
    """
    note = goal.note_text
    objections = f"The reviewer objects: {goal.progress.objections}" if goal.progress.objections else ""
    return "\n".join(filter(None, [_HEADING, "", note, objections])) if note or objections else ""


def runtime_context(goal: Goal) -> str:
    """Return the goal for the runtime context of a person's message."""
    state = _STATES[goal.state][0].replace("your", "their")
    lines = [
        f"{_HEADING}\n\n{goal.order.text}",
        f"(You work on this between the person's messages; it {state}. "
        "Answer this message first. `goal` updates the note, finishes or drops the goal.)",
        f"You asked: {goal.why}" if goal.state is WorkState.ASKING else "",
        goal.note_text,
    ]
    return "\n".join(filter(None, lines))


def format_status(goal: Goal, now: float) -> str:
    """Return the reply to `/goal`."""
    state, next_step = _STATES[goal.state]
    state = f"{state}: {goal.why}" if goal.why else state
    turns, age = count_noun(goal.usage.turns, "turn"), duration(now - goal.created_at)
    lines = [
        f"Goal: {goal.order.text}",
        f"It {state}. {turns}, {goal.usage_text}, {age} old.",
        f"Check: {goal.order.check}" if goal.order.check is not None else "",
        f"Proved by: {goal.progress.claim}" if goal.progress.claim is not None else "",
        goal.note_text,
        next_step,
    ]
    return "\n".join(filter(None, lines))


def format_status_line(goal: Goal) -> str:
    """Return the goal's line in `/status`."""
    state = _STATES[goal.state][0].removeprefix("is ")
    state = f"{state}: {goal.why}" if goal.why else state
    return f"Goal: {goal.title} ({state}; {goal.usage_text})"
