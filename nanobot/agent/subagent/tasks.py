"""Tasks: what subagents were asked to do, how it ended, and how that is told to the subagent, the agent that asked and
people.
"""

from dataclasses import dataclass
from enum import StrEnum

from nanobot.agent.requester import Requester
from nanobot.agent.tools.base import SUBAGENT_SESSION
from nanobot.agent.work import Work, WorkState
from nanobot.messages.types import Provenance
from nanobot.usage.types import format_dollars
from nanobot.utils.text import clip_line, escape_surrogates

_LABEL_CHARS = 60
_MAX_REPORT_CHARS = 12_000
_MAX_PLAIN_REPORT_CHARS = 3_000
_MAX_REASON_CHARS = 300

_RETRY = (
    "You worked on this before and did not finish: {error}\nContinue where you stopped. What is done above is done; "
    "do nothing twice."
)
_REPORT = """\
[A subagent has ended. This is its report from nanobot, not a message from the person.]
Task: {label}
Asked for by: {asked_by}
End: {end}

{result}

[Tell the person the result in one or two sentences, in their language and without ids or technical terms. If it failed
or is unfinished, say so plainly. Then continue only with what they asked for.]"""
_ENDS = {
    WorkState.DONE: ("done", "My background task is done ({label}):\n{result}"),
    WorkState.LIMIT: (
        "stopped at its limit; the task may be unfinished",
        "My background task reached its limit ({label}):\n{result}",
    ),
    WorkState.FAILED: ("failed", "My background task failed ({label}): {result}"),
    WorkState.STOPPED: ("stopped before it was done", "My background task was stopped ({label}). {result}"),
}
"""How a task ended, for the model, and a report for the person."""
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


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


def task_label(task: str, label: str | None) -> str:
    line = escape_surrogates(" ".join((label or task).split())) or "a task"
    return line if len(line) <= _LABEL_CHARS else f"{line[: _LABEL_CHARS - 3]}..."


def task_prompt(task: Task, error: str = "") -> str:
    """Return the message that starts an attempt. `error` ended the last one, perhaps before anything was stored."""
    prompt = f"Your task:\n{task.order.text}"
    return f"{prompt}\n\n{_RETRY.format(error=error)}" if error else prompt


def format_report(task: Task) -> str:
    """Return the report for the agent."""
    asked_by, end = task.order.requester.sender_id or "the owner", _ENDS[task.state][0]
    result = _clip_result(task, _MAX_REPORT_CHARS)
    return _REPORT.format(label=task.order.label, asked_by=asked_by, end=end, result=result)


def format_plain_report(task: Task) -> str:
    """Return the report for the person, used if no model can phrase it."""
    result = _clip_result(task, _MAX_PLAIN_REPORT_CHARS)
    return _ENDS[task.state][1].format(label=task.order.label, result=result)


def format_tool_result(task: Task) -> str:
    """Return the tool result for the turn that waited."""
    return f"Subagent {task.id}: {_ENDS[task.state][0]}.\n\n{_clip_result(task)}"


def describe_failure(task: Task) -> str:
    """Describe an end without a result, to follow a noun."""
    reason = clip_line(" ".join(task.result.split()), _MAX_REASON_CHARS)
    return f"ended without a result ({_ENDS[task.state][0]}). {reason}".rstrip()


def format_line(task: Task, now: float, *, cost_usd: float | None = None, doing: str = "", session: str = "") -> str:
    """Return the task's line in `/tasks`."""
    since = task.created_at if task.state is WorkState.WAITING else task.began_at or task.created_at
    seconds = max(int((task.ended_at or now) - since), 0)
    size, unit = next((unit for unit in _UNITS if seconds >= unit[0]), _UNITS[-1])
    parts = [f"{task.id}  {task.state:<7}  {f'{seconds // size} {unit}':>6}  {task.order.label}"]
    cost = cost_usd if cost_usd is not None else task.cost_usd
    parts += [format_dollars(cost)] if cost else []
    parts += [f"last: {doing}"] if doing else []
    parts += [f"for {session}"] if session else []
    return " · ".join(parts)


def _clip_result(task: Task, max_chars: int | None = None) -> str:
    text = task.result.strip() or "It returned no text."
    if max_chars is None or len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}\n[... {len(text) - max_chars} more characters, in the session {task.session_key}]"
