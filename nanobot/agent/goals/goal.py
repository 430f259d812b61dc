"""A goal as plain data: what is to be reached, for whom, how far it is, what it has cost."""

from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

from nanobot.agent.scope import OWNERS, Scope
from nanobot.agent.tools.goal import Check, CheckKind
from nanobot.bus.events import Address, InboundMessage
from nanobot.errors import NanobotError
from nanobot.messages.types import Origin, Provenance


class GoalState(StrEnum):
    """How far a goal is. Set by code, never by what a model says of itself."""

    ACTIVE = "active"
    """Turn follows turn."""
    ASKING = "asking"
    """It goes on when the person has answered."""
    WAITING = "waiting"
    """Something is in its way: it goes on when the person says so."""
    DONE = "done"
    """It was claimed, and the check held."""
    DROPPED = "dropped"
    """The agent says that it cannot be reached."""
    STOPPED = "stopped"
    LIMIT = "limit"
    """It came to its limit of steps or money."""

    @property
    def is_over(self) -> bool:
        """Whether nothing comes any more, unless somebody takes it up again."""
        return self not in (GoalState.ACTIVE, GoalState.ASKING, GoalState.WAITING)


@dataclass(frozen=True, slots=True)
class GoalLimits:
    """What a goal may use at most."""

    steps: int = 200
    """Model calls, its subagents' too."""
    usd: float = 2.0
    """Dollars, as far as prices are known."""


@dataclass(slots=True)
class Note:
    """How far it is, in the model's words."""

    done: str = ""
    doing: str = ""
    following: str = ""


@dataclass(slots=True)
class Goal:
    """One goal. What is said of who set it is as it was then."""

    id: str
    text: str
    session_key: str
    address: Address
    asker: Provenance = Provenance.OWNER
    """How far the words are trusted that it came of."""
    origin: Origin = Origin.CLI
    """Why the turn existed that set it."""
    sender_id: str | None = None
    attended: bool = False
    scope: Scope = OWNERS
    limits: GoalLimits = field(default_factory=GoalLimits)
    check: Check | None = None
    """What must hold at the end, as who set it has said."""
    plan: bool = False
    """Whether a planner writes a list of tasks first."""
    review: bool = False
    """Whether a reviewer reads the result before the person does."""
    state: GoalState = GoalState.ACTIVE
    why: str = ""
    """Why it waits or is over, in words for a person."""
    note: Note = field(default_factory=Note)
    noted: Provenance = Provenance.OWNER
    """The least trusted words that had come into the turns which wrote the note."""
    claim: Check | None = None
    """What has proved it: the turn that made the claim may still run."""
    planned: bool = False
    sent_back: int = 0
    """How often the reviewer was not content."""
    objections: str = ""
    """What the reviewer said last."""
    created_at: float = 0.0
    ended_at: float | None = None
    turns: int = 0
    steps: int = 0
    cost_usd: float | None = None
    tokens: int = 0
    failures: int = 0
    """Turns in a row that a model or a line has failed."""
    idle: int = 0
    """Turns in a row in which nothing was done."""
    unnoted: int = 0
    """Turns in a row after which the note was the same."""
    report: str = ""
    """What the person is to be told of its end, or of what it waits for."""
    told: bool = True
    """Whether they were."""

    @property
    def spent(self) -> str:
        """Why it may use no more; empty where it may."""
        if self.steps >= self.limits.steps:
            return f"its limit of {self.limits.steps} steps is reached"
        if (self.cost_usd or 0.0) >= self.limits.usd:
            return f"its limit of ${self.limits.usd:g} is reached"
        return ""

    def is_theirs(self, message: InboundMessage) -> bool:
        """Whether an owner says this, or who set it."""
        who = (message.channel, message.sender_id)
        return message.provenance is Provenance.OWNER or who == (self.address.channel, self.sender_id)

    def to_json(self) -> dict[str, Any]:
        """The goal as JSON keeps it."""
        told = asdict(self)
        here = self.address
        return told | {"address": [here.channel, here.chat_id, here.thread_id], "scope": self.scope.chat}

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> "Goal":
        """The goal back. Raises ValueError, TypeError or KeyError where it is none."""
        given = _known(cls, told)
        channel, chat_id, thread_id = told["address"]
        given["address"] = Address(str(channel), str(chat_id), None if thread_id is None else str(thread_id))
        given["scope"] = Scope(str(told.get("scope", "")))
        given["limits"] = GoalLimits(**_known(GoalLimits, told.get("limits", {})))
        given["note"] = Note(**_known(Note, told.get("note", {})))
        for name in ("check", "claim"):
            given[name] = _check_of(told.get(name))
        kinds = {"asker": Provenance, "noted": Provenance, "origin": Origin, "state": GoalState}
        return cls(**given | {name: kind(told[name]) for name, kind in kinds.items() if name in told})


def _known(kind: type, told: dict[str, Any]) -> dict[str, Any]:
    """What of this a `kind` has a field for: a later release may know more. Raises TypeError where a value is none."""
    known = {one.name: one for one in fields(kind)}
    given = {name: value for name, value in told.items() if name in known}
    for name, value in given.items():
        allowed = _PLAIN.get(str(known[name].type))
        if allowed is not None and (
            not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed)
        ):
            raise TypeError(f"{name}: {value!r}")
    return given


_PLAIN: dict[str, tuple[type, ...]] = {
    str(kind): allowed
    for kind, allowed in (
        (str, (str,)),
        (int, (int,)),
        (float, (int, float)),
        (bool, (bool,)),
        (float | None, (int, float, type(None))),
        (str | None, (str, type(None))),
    )
}
"""What JSON may hold for a field of this type."""


def _check_of(told: dict[str, Any] | None) -> Check | None:
    return None if told is None else Check(CheckKind(told["kind"]), str(told["target"]), str(told.get("expect", "")))


def keeps_to(most: int, text: str, name: str) -> None:
    """Raises NanobotError where a text has more characters than it may."""
    if len(text) > most:
        raise NanobotError(f"{name} has {len(text):,} characters; {most:,} are the most. Put the rest into a file.")
