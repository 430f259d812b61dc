"""What the sessions of subagents and of their parents say about a task. All functions block on the disk."""

from nanobot.agent.approval.taint import provenance_of
from nanobot.agent.events import TurnOutcome, TurnResult
from nanobot.agent.recovery import find_outcomes
from nanobot.agent.subagent import texts
from nanobot.agent.subagent.tasks import Task
from nanobot.errors import StorageError
from nanobot.messages.types import ChatMessage, Origin, Provenance, least_trusted, text_of
from nanobot.session.manager import Session, SessionManager
from nanobot.utils.clock import Clock, timestamp

_OUTCOMES = {outcome.value: outcome for outcome in (TurnOutcome.PARTIAL, TurnOutcome.STOPPED, TurnOutcome.REFUSED)}
"""Outcomes by the `error` value in the last row of a turn."""


def prepare_session(sessions: SessionManager, task: Task) -> None:
    """Create the subagent's session with the parent's model. Raises StorageError."""
    session = sessions.get_or_create(task.session_key)
    if "subagent" in session.metadata:
        return
    parent_model = sessions.get_or_create(task.parent).metadata.get("model")
    session.metadata["subagent"] = {"label": task.label, "parent": task.parent, "scope": task.scope.chat}
    if parent_model is not None:
        session.metadata["model"] = parent_model
    sessions.save(session)


def load_result(sessions: SessionManager, task: Task, max_steps: int) -> TurnResult | None:
    """Return the result of this attempt if a crash came before it was saved in the task. Raises StorageError."""
    rows = sessions.get_or_create(task.session_key).since(0)
    ended = find_outcomes(rows, {task.attempt_key}).get(task.attempt_key)
    if ended is None or not ended.answer:
        return None
    answers = [row for row in rows if row.get("turn_id") == ended.turn_id and row["role"] == "assistant"]
    error, retryable = answers[-1].get("error"), answers[-1].get("retryable", True)
    if error in _OUTCOMES:
        return TurnResult(_OUTCOMES[error], ended.answer, turn_id=ended.turn_id)
    steps = sum(bool(row.get("tool_calls")) for row in answers)
    outcome = TurnOutcome.FAILED if error else TurnOutcome.PARTIAL if steps >= max_steps else TurnOutcome.ANSWERED
    return TurnResult(outcome, ended.answer, error, ended.turn_id, retryable=retryable)


def provenance_in(sessions: SessionManager, task: Task) -> Provenance:
    """Return the least trusted provenance in the subagent's session. Never raises."""
    try:
        rows = sessions.get_or_create(task.session_key).since(0)
    except StorageError:
        return Provenance.WEB  # unknown, so the least trusted
    return least_trusted(provenance_of(row, task.session_key) for row in rows)


def stores_result(sessions: SessionManager, task: Task) -> bool:
    """Whether a turn that waited has stored the result, as a tool result of the parent session. Never raises."""
    try:
        rows = sessions.get_or_create(task.parent).since(0)
    except StorageError:
        return False
    prefix = texts.tool_result_prefix(task)
    return any(row["role"] == "tool" and text_of(row["content"]).startswith(prefix) for row in rows)


def row_of_stop(task: Task, session: Session, clock: Clock) -> ChatMessage | None:
    """Return a row that tells the model that a person stopped the task; None if the session needs none."""
    row: ChatMessage = {
        "role": "user",
        "content": f"[The person stopped the subagent that worked on: {task.label}. It will not report.]",
        "origin": Origin.SYSTEM,
        "provenance": Provenance.SYSTEM,
        "timestamp": timestamp(clock),
    }
    last = session.last_message
    return None if last is None or text_of(last["content"]) == row["content"] else row
