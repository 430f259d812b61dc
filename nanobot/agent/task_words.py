"""What is said about tasks: to the subagent, to the agent that asked, to a person."""

import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from nanobot.agent.roles import SHEETS, Role
from nanobot.agent.scope import OWNERS, Scope
from nanobot.agent.tasks import Task, TaskState
from nanobot.agent.tools.spawn import RESULT
from nanobot.messages.types import ChatMessage
from nanobot.usage.types import dollars
from nanobot.utils.text import clip_line

_LABEL_CHARS = 60
_LONGEST_REPORT = 12_000
_LONGEST_QUOTE = 12_000
_LONGEST_WHY = 300

_TASK = "Your task:\n{task}"
_AGAIN = (
    "You were at this before, and did not come to the end: {error}\nGo on from where you stopped. What is done above "
    "is done; do nothing twice."
)
_REPORT = """\
[A subagent has ended. This is its report from nanobot, not a message from the person.]
Task: {label}
Asked for by: {asked_by}
End: {end}

{result}

[Tell the person in one or two sentences what came of it, in their language and without ids or technical words. Where it
failed or is unfinished, say so plainly. Then go on only with what they had asked for.]"""
_ENDS = {
    TaskState.DONE: "done",
    TaskState.LIMIT: "stopped at its limit; the task may be unfinished",
    TaskState.FAILED: "failed",
    TaskState.STOPPED: "stopped before it was done",
}
_PLAIN = {
    TaskState.DONE: "What I worked on in the background is done ({label}):\n{result}",
    TaskState.LIMIT: "What I worked on in the background came to its limit ({label}):\n{result}",
    TaskState.FAILED: "What I worked on in the background failed ({label}): {result}",
    TaskState.STOPPED: "What I worked on in the background was stopped ({label}). {result}",
}
_TO_NOBODY = "You can ask nobody and write to nobody"
_TO_MATES = "You can ask no person, and write to your teammates alone"
_NOTHING_SAID = "It said nothing."
_SPANS = ((86_400, "d"), (3_600, "h"), (60, "min"))


@dataclass(frozen=True, slots=True)
class SubagentPrompt:
    """The system prompt of subagents: short, and the same bytes for all of a role."""

    workspace: Path
    steps: int
    clock_block: Callable[[Scope], str]
    """What time it is, as a message of this scope is told."""
    role: Role = Role.WORKER
    in_team: bool = False
    """Whether it may write to others that work for the same goal."""

    def build_system_prompt(self, summary: str = "", *, scope: Scope = OWNERS, began: date | None = None) -> str:
        """The head of every request. There is no `summary`: nothing of a subagent's session goes into memory."""
        systems = {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}
        system = f"{systems.get(sys.platform, sys.platform)} {platform.machine()}".strip()
        words, speaks = SHEETS[self.role].words, _TO_MATES if self.in_team else _TO_NOBODY
        return words.format(system=system, workspace=self.workspace, steps=self.steps, speaks=speaks).rstrip()

    def runtime_context(
        self, channel: str, chat_id: str, history: Sequence[ChatMessage], *, scope: Scope = OWNERS, goal: str = ""
    ) -> str:
        """The time; a subagent speaks in no chat."""
        block = self.clock_block(scope)
        return f"{goal}\n\n{block}" if goal else block


def label_of(task: str, label: str | None) -> str:
    """What a person calls it: a line."""
    return _headed(" ".join((label or task).split())) or "a task"


def _headed(line: str) -> str:
    return line if len(line) <= _LABEL_CHARS else f"{line[: _LABEL_CHARS - 3]}..."


def asked(task: Task) -> str:
    """The task, as the subagent is given it."""
    return _TASK.format(task=task.task)


def asked_again(task: Task, error: str) -> str:
    """The same, where a try failed: perhaps so early that nothing of it was kept, the task neither."""
    return f"{asked(task)}\n\n{_AGAIN.format(error=error)}"


def report(task: Task) -> str:
    """The report, for the agent."""
    return _REPORT.format(
        label=task.label,
        asked_by=task.sender_id or "the owner",
        end=_ENDS.get(task.state, task.state),
        result=_clipped(task),
    )


def plainly(task: Task) -> str:
    """The same for the person, where no model can put it in words."""
    return _PLAIN.get(task.state, "{result}").format(label=task.label, result=_clipped(task, 3_000))


def inline(task: Task) -> str:
    """The result, for the turn that waited for it."""
    return f"{given(task)} {_ENDS.get(task.state, task.state)}.\n\n{_clipped(task, 0)}"


def given(task: Task) -> str:
    """How that result begins."""
    return RESULT.format(id=task.id)


def started(task: Task, before: int) -> str:
    """What the agent is told when nobody waits."""
    line = f" It waits until one of {before} others has ended." if before else ""
    return (
        f"Started a subagent: {task.label} ({task.id}).{line} Its result comes to you by itself, as a message in this "
        "conversation, also after your answer. Do not wait or look for it and do not start it again; tell the person "
        "in a few words that you are on it."
    )


def is_running_already(task: Task) -> str:
    """What the agent is told of a second one like it."""
    return (
        f"A subagent works on exactly that already ({task.id}: {task.label}); no second one was started. Its result "
        "comes to you by itself."
    )


def not_done(task: Task) -> str:
    """How it ended, where it is not done: behind what it was."""
    said = f" {clip_line(' '.join(task.result.split()), _LONGEST_WHY)}" if task.result.strip() else ""
    return f"ended without a result ({_ENDS.get(task.state, task.state)}).{said}"


def quoted(text: str) -> str:
    """Somebody's words, each line of them marked: nothing in them can look like words of ours."""
    text, more = text[:_LONGEST_QUOTE], len(text) - _LONGEST_QUOTE
    lines = [f"| {line}".rstrip() for line in text.splitlines()] or ["| (nothing)"]
    return "\n".join([*lines, f"[... {more} more characters that are not shown]"] if more > 0 else lines)


def line_of(task: Task, now: float, *, cost_usd: float | None = None, doing: str = "", session: str = "") -> str:
    """One task in a line, for a person."""
    since = task.created_at if task.state is TaskState.WAITING else task.began_at or task.created_at
    age = span((task.ended_at or now) - since)
    parts = [f"{task.id}  {task.state:<7}  {age:>6}  {task.label}"]
    cost = cost_usd if cost_usd is not None else task.cost_usd
    parts += [dollars(cost)] if cost else []
    parts += [f"last: {doing}"] if doing else []
    parts += [f"for {session}"] if session else []
    return " · ".join(parts)


def span(seconds: float) -> str:
    """How long, in one unit."""
    seconds = max(seconds, 0)
    for length, unit in _SPANS:
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"


def _clipped(task: Task, most: int = _LONGEST_REPORT) -> str:
    text = task.result.strip() or _NOTHING_SAID
    if not most or len(text) <= most:
        return text
    return f"{text[:most]}\n[... {len(text) - most} more characters, in the session {task.session_key}]"
