"""A goal as plain data: what to reach, for whom, its progress and its cost. The fields are the keys of its file."""

from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

from nanobot.agent.scope import OWNERS, Scope
from nanobot.agent.tools.goal import CheckKind, GoalCheck
from nanobot.bus.events import Address, InboundMessage
from nanobot.errors import NanobotError
from nanobot.messages.types import Origin, Provenance


class GoalState(StrEnum):
    """The state of a goal. Set by code, never from a model's claim alone."""

    ACTIVE = "active"
    """One turn follows another."""
    ASKING = "asking"
    """Waits for the person's answer."""
    WAITING = "waiting"
    """Waits until a person resumes it."""
    DONE = "done"
    """Claimed, and the check passed."""
    DROPPED = "dropped"
    """The agent says it cannot be reached."""
    STOPPED = "stopped"
    LIMIT = "limit"
    """Reached its limit of steps or money."""

    @property
    def is_over(self) -> bool:
        """Whether it ended. A person may still resume it."""
        return self not in (GoalState.ACTIVE, GoalState.ASKING, GoalState.WAITING)


@dataclass(frozen=True, slots=True)
class GoalLimits:
    """What a goal may use at most."""

    steps: int = 200
    """Model calls, including those of its subagents."""
    usd: float = 2.0
    """Dollars, as far as prices are known."""


@dataclass(slots=True)
class Note:
    """The progress, in the model's words."""

    done: str = ""
    doing: str = ""
    following: str = ""


@dataclass(slots=True)
class Goal:
    """One goal. The facts about its author are those of the time it was set."""

    id: str
    text: str
    session_key: str
    address: Address
    asker: Provenance = Provenance.OWNER
    """Provenance of the message that set it."""
    origin: Origin = Origin.CLI
    """Origin of the turn that set it."""
    sender_id: str | None = None
    attended: bool = False
    scope: Scope = OWNERS
    limits: GoalLimits = field(default_factory=GoalLimits)
    check: GoalCheck | None = None
    """The check its author demands, if any."""
    plan: bool = False
    """Whether a planner writes a task list first."""
    review: bool = False
    """Whether a reviewer reads the result before the person does."""
    state: GoalState = GoalState.ACTIVE
    why: str = ""
    """Why it waits or ended, as a text for people."""
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
    created_at: float = 0.0
    ended_at: float | None = None
    turns: int = 0
    steps: int = 0
    cost_usd: float | None = None
    tokens: int = 0
    failures: int = 0
    """Failed turns in a row."""
    idle: int = 0
    """Turns in a row without any action."""
    unnoted: int = 0
    """Turns in a row without a change of the note."""
    report: str = ""
    """The report of its end, or the question it waits for."""
    is_reported: bool = True
    """Whether the report was sent."""

    @property
    def spent(self) -> str:
        """Why it may not use more; empty if it may."""
        if self.steps >= self.limits.steps:
            return f"its limit of {self.limits.steps} steps is reached"
        if (self.cost_usd or 0.0) >= self.limits.usd:
            return f"its limit of ${self.limits.usd:g} is reached"
        return ""

    def is_theirs(self, message: InboundMessage) -> bool:
        """Whether the sender is an owner or the person who set the goal."""
        sender = (message.channel, message.sender_id)
        return message.provenance is Provenance.OWNER or sender == (self.address.channel, self.sender_id)

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        address = self.address
        return data | {"address": [address.channel, address.chat_id, address.thread_id], "scope": self.scope.chat}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Goal":
        """Parse a stored goal. Raises ValueError, TypeError or KeyError if it is invalid."""
        values = _select_known(cls, data)
        channel, chat_id, thread_id = data["address"]
        values["address"] = Address(str(channel), str(chat_id), None if thread_id is None else str(thread_id))
        values["scope"] = Scope(str(data.get("scope", "")))
        values["limits"] = GoalLimits(**_select_known(GoalLimits, data.get("limits", {})))
        values["note"] = Note(**_select_known(Note, data.get("note", {})))
        for name in ("check", "claim"):
            values[name] = _parse_check(data.get(name))
        converters = {"asker": Provenance, "noted": Provenance, "origin": Origin, "state": GoalState}
        return cls(**values | {name: kind(data[name]) for name, kind in converters.items() if name in data})


def _select_known(kind: type, data: dict[str, Any]) -> dict[str, Any]:
    """Select the values of known fields, so that files of later releases load. Raises TypeError for a wrong type."""
    known = {field.name: field for field in fields(kind)}
    values = {name: value for name, value in data.items() if name in known}
    for name, value in values.items():
        allowed = _JSON_TYPES.get(str(known[name].type))
        if allowed is not None and (
            not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed)
        ):
            raise TypeError(f"{name}: {value!r}")
    return values


_JSON_TYPES: dict[str, tuple[type, ...]] = {
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
"""JSON types allowed for a field type."""


def _parse_check(data: dict[str, Any] | None) -> GoalCheck | None:
    return (
        None if data is None else GoalCheck(CheckKind(data["kind"]), str(data["target"]), str(data.get("expect", "")))
    )


def check_length(limit: int, text: str, name: str) -> None:
    """Raise NanobotError if the text has more than `limit` characters."""
    if len(text) > limit:
        raise NanobotError(f"{name} has {len(text):,} characters; {limit:,} are the most. Put the rest into a file.")
