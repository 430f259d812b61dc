"""Texts about tasks: for the subagent, for the agent that asked, for people."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from nanobot.agent.context import system_name
from nanobot.agent.scope import OWNERS, Scope
from nanobot.agent.subagent.roles import ROLES, TaskRole
from nanobot.agent.subagent.tasks import Task, TaskState
from nanobot.messages.types import ChatMessage
from nanobot.usage.types import format_dollars
from nanobot.utils.text import clip_line

_LABEL_CHARS = 60
_MAX_REPORT_CHARS = 12_000
_MAX_REASON_CHARS = 300

_TASK = "Your task:\n{task}"
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
_END_TEXTS = {
    TaskState.DONE: "done",
    TaskState.LIMIT: "stopped at its limit; the task may be unfinished",
    TaskState.FAILED: "failed",
    TaskState.STOPPED: "stopped before it was done",
}
_PLAIN_REPORTS = {
    TaskState.DONE: "My background task is done ({label}):\n{result}",
    TaskState.LIMIT: "My background task reached its limit ({label}):\n{result}",
    TaskState.FAILED: "My background task failed ({label}): {result}",
    TaskState.STOPPED: "My background task was stopped ({label}). {result}",
}
_NO_CONTACTS = "You cannot ask or message anybody"
_TEAM_CONTACTS = "You cannot ask a person, and can message only your teammates"
_NO_TEXT = "It returned no text."
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


@dataclass(frozen=True, slots=True)
class SubagentPrompt:
    """The system prompt of subagents: short, and byte-identical for all of a role."""

    workspace: Path
    steps: int
    clock_block: Callable[[Scope], str]
    """Returns the current time for a scope."""
    role: TaskRole = TaskRole.WORKER
    in_team: bool = False
    """Whether it may write to other subagents of its goal."""

    def build_system_prompt(self, summary: str = "", *, scope: Scope = OWNERS, began: date | None = None) -> str:
        """Return the system prompt. `summary` is ignored: subagent sessions are not consolidated."""
        prompt, contacts = ROLES[self.role].prompt, _TEAM_CONTACTS if self.in_team else _NO_CONTACTS
        return prompt.format(
            system=system_name(), workspace=self.workspace, steps=self.steps, contacts=contacts
        ).rstrip()

    def runtime_context(
        self,
        channel: str,
        chat_id: str,
        history: Sequence[ChatMessage],
        *,
        scope: Scope = OWNERS,
        note: str = "",
        folder: str = "",
    ) -> str:
        """Return the time and the note; a subagent has no chat."""
        block = self.clock_block(scope)
        return f"{note}\n\n{block}" if note else block


def task_label(task: str, label: str | None) -> str:
    """Return a one-line label for people."""
    line = " ".join((label or task).split()) or "a task"
    return line if len(line) <= _LABEL_CHARS else f"{line[: _LABEL_CHARS - 3]}..."


def task_prompt(task: Task) -> str:
    return _TASK.format(task=task.order.text)


def retry_prompt(task: Task, error: str) -> str:
    """Repeat the task after a failed attempt, which may have failed before anything was stored."""
    return f"{task_prompt(task)}\n\n{_RETRY.format(error=error)}"


def report(task: Task) -> str:
    """Return the report for the agent."""
    return _REPORT.format(
        label=task.order.label,
        asked_by=task.order.requester.sender_id or "the owner",
        end=_END_TEXTS.get(task.state, task.state),
        result=_clip_result(task),
    )


def plain_report(task: Task) -> str:
    """Return the report for the person, used if no model can phrase it."""
    return _PLAIN_REPORTS.get(task.state, "{result}").format(label=task.order.label, result=_clip_result(task, 3_000))


def tool_result(task: Task) -> str:
    """Return the tool result for the turn that waited."""
    return f"Subagent {task.id}: {_END_TEXTS.get(task.state, task.state)}.\n\n{_clip_result(task, 0)}"


def started_reply(task: Task, before: int) -> str:
    """Return the tool result for a task in the background."""
    line = f" It waits until one of {before} others has ended." if before else ""
    return (
        f"Started a subagent: {task.order.label} ({task.id}).{line} Its result arrives by itself as a message in this "
        "conversation, also after your answer. Do not wait for it, look for it or start it again; tell the person "
        "briefly that you are working on it."
    )


def already_running_reply(task: Task) -> str:
    """Return the tool result if an equal task already runs."""
    return (
        f"A subagent already works on exactly this ({task.id}: {task.order.label}), so none was started. Its result "
        "arrives by itself."
    )


def describe_failure(task: Task) -> str:
    """Describe an end without a result, to follow a noun."""
    text = f" {clip_line(' '.join(task.result.split()), _MAX_REASON_CHARS)}" if task.result.strip() else ""
    return f"ended without a result ({_END_TEXTS.get(task.state, task.state)}).{text}"


def format_line(task: Task, now: float, *, cost_usd: float | None = None, doing: str = "", session: str = "") -> str:
    """Return the task's line in `/tasks`."""
    since = task.created_at if task.state is TaskState.WAITING else task.began_at or task.created_at
    age = _format_age((task.ended_at or now) - since)
    parts = [f"{task.id}  {task.state:<7}  {age:>6}  {task.order.label}"]
    cost = cost_usd if cost_usd is not None else task.cost_usd
    parts += [format_dollars(cost)] if cost else []
    parts += [f"last: {doing}"] if doing else []
    parts += [f"for {session}"] if session else []
    return " · ".join(parts)


def _format_age(seconds: float) -> str:
    """Format a duration in one unit."""
    seconds = max(seconds, 0)
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"


def _clip_result(task: Task, max_chars: int = _MAX_REPORT_CHARS) -> str:
    text = task.result.strip() or _NO_TEXT
    if not max_chars or len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}\n[... {len(text) - max_chars} more characters, in the session {task.session_key}]"
