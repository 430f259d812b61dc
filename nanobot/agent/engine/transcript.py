"""The rows of a run: each is recorded before the run continues. What rows say about an interrupted run."""

from collections import Counter
from collections.abc import Sequence

from nanobot.agent.engine.spec import Record
from nanobot.agent.events import TurnOutcome
from nanobot.agent.tools.base import ToolContext
from nanobot.messages.types import (
    INTERRUPTED,
    ChatMessage,
    Origin,
    Provenance,
    ToolFailure,
    is_synthetic,
    least_trusted,
    stored_provenance,
    text_of,
)
from nanobot.providers.base import LLMResponse, ToolCallRequest
from nanobot.utils.clock import timestamp
from nanobot.utils.text import count_noun

FINISH_RESUMED = "resumed"
"""Finish reason of a step without a model call, in which a resumed run gives pending calls their results."""
CONTINUE_TRUNCATED = (
    "Your answer was cut off by the length limit. Go on exactly where it stopped, without repeating anything."
)
CONTINUE_INTERRUPTED = "Your answer broke off. Go on exactly where it stopped, without repeating anything."


class Transcript:
    """The history that a run was given and the rows it adds. An error raised by `record` ends the run."""

    def __init__(self, history: Sequence[ChatMessage], context: ToolContext, record: Record) -> None:
        self.all = list(history)
        self.trust = _lowest_provenance(self.all, context.session_key)
        """The lowest provenance of all rows, and so that of anything derived from them."""
        self.entered = least_trusted(_entered_rows(self.all, context.turn_id))
        """The lowest provenance of this turn's input: its message, and results of its tools."""
        self._context = context
        self._record = record

    @property
    def last(self) -> ChatMessage:
        """The newest row; there is always one."""
        return self.all[-1]

    async def append(self, row: ChatMessage) -> None:
        """Record a row, then add it to the history."""
        await self._record(row)
        self.all.append(row)

    def extend(self, rows: Sequence[ChatMessage]) -> None:
        """Add rows that are recorded already."""
        self.all += rows
        self.trust = least_trusted([self.trust, _lowest_provenance(rows, self._context.session_key)])

    def lower_entered(self, provenance: Provenance) -> None:
        """Content of this provenance has entered the turn."""
        self.entered = least_trusted([self.entered, provenance])

    async def add_instruction(self, text: str, provenance: Provenance = Provenance.SYSTEM) -> None:
        """Add a generated message to the model: replayed, never shown to a person. Set `provenance` if it quotes."""
        row = self._stamp({"role": "user", "content": text})
        row["origin"] = Origin.SYSTEM
        row["provenance"] = provenance
        await self.append(row)

    async def add_fallback_answer(self, text: str) -> None:
        """Add a generated answer in place of the one that the model did not give."""
        row = self._stamp({"role": "assistant", "content": text, "error": TurnOutcome.PARTIAL.value})
        row["provenance"] = Provenance.SYSTEM
        await self.append(row)

    def model_row(self, response: LLMResponse) -> ChatMessage:
        """A response as a row, not recorded yet."""
        row = self._stamp({"role": "assistant", "content": response.content or None})
        if response.tool_calls:
            row["tool_calls"] = [call.to_message() for call in response.tool_calls]
        if response.reasoning_content:
            row["reasoning_content"] = response.reasoning_content
        if response.thinking_blocks:
            row["thinking_blocks"] = response.thinking_blocks
        row["provenance"] = self.trust
        return row

    def summarize_turn(self, reason: str) -> str:
        """The reply of a run that ends early: the reason, and which tools ran, counted from the rows."""
        turn_id = self._context.turn_id
        answered = [row for row in self.all if row.get("turn_id") == turn_id and row["role"] == "tool"]
        ran = [row for row in answered if row.get("failure") != ToolFailure.NOT_RUN]
        times = Counter(str(row.get("name")) for row in ran)
        done = ", ".join(f"{name} {count} times" if count > 1 else name for name, count in times.items())
        failed = [row for row in ran if row.get("failure", ToolFailure.UNKNOWN) != ToolFailure.UNKNOWN]
        parts = [reason, f"{count_noun(len(ran), 'tool call')} ran ({done})." if ran else "No tool ran."]
        if failed:
            parts.append(f"{len(failed)} of them failed, the last with: {text_of(failed[-1]['content'])[:200]}")
        return " ".join([*parts, f"Ask again, or say how to continue. (turn {turn_id})"])

    def _stamp(self, row: ChatMessage) -> ChatMessage:
        row["timestamp"] = timestamp(self._context.clock)
        row["turn_id"] = self._context.turn_id
        return row


def _lowest_provenance(rows: Sequence[ChatMessage], session_key: str) -> Provenance:
    """The lowest provenance of the rows' texts and of their runtime contexts."""
    texts = {row.get("provenance") or stored_provenance(row, session_key) for row in rows}
    contexts = {context for row in rows if (context := row.get("context_provenance"))}
    return least_trusted(texts | contexts)


def _entered_rows(rows: Sequence[ChatMessage], turn_id: str) -> list[str]:
    """The provenances of this turn's input: its message, and tool results from before a crash. A turn that first ends
    an interrupted one has that one's input.
    """
    last = rows[-1:]
    turn_ids = (turn_id, *(row["turn_id"] for row in last if row.get("turn_id")))
    inputs = ([row for row in rows if row.get("turn_id") == key and row["role"] != "assistant"] for key in turn_ids)
    chosen = next((turn_rows for turn_rows in inputs if turn_rows), last)
    return [row.get("own_provenance", row.get("provenance", Provenance.TOOL)) for row in chosen]


def pending_calls(rows: Sequence[ChatMessage]) -> list[ToolCallRequest]:
    """The calls at the end of a history that have no result, in order."""
    results = results_at_end(rows)
    if len(rows) == len(results):
        return []
    last = rows[len(rows) - len(results) - 1]
    answered = {row.get("tool_call_id") for row in results}
    return [
        ToolCallRequest.from_text(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in last.get("tool_calls") or ()
        if call["id"] not in answered
    ]


def is_interrupted(row: ChatMessage) -> bool:
    """Whether this row is the partial text of an interrupted answer."""
    return row["role"] == "assistant" and row.get("error") == INTERRUPTED and not row.get("tool_calls")


def is_answer(row: ChatMessage) -> bool:
    """Whether a turn may end with this row."""
    return row["role"] == "assistant" and not row.get("tool_calls")


def outcome_of(row: ChatMessage) -> TurnOutcome:
    """How a turn ended that ended with this row."""
    error = row.get("error")
    if error is None:
        return TurnOutcome.ANSWERED if is_answer(row) else TurnOutcome.FAILED
    return next((outcome for outcome in TurnOutcome if outcome == error), TurnOutcome.FAILED)


def outcome_text(rows: Sequence[ChatMessage]) -> str:
    """The reply of a turn that ended with these rows: the whole answer, or why there is none."""
    last = rows[-1]
    if last.get("error") not in (None, INTERRUPTED):
        return last.get("reply") or text_of(last["content"])
    return "".join(parts_of_answer(rows, last.get("turn_id", ""))).strip()


def is_continuation(row: ChatMessage) -> bool:
    """Whether this row asks for the rest of an answer."""
    return is_synthetic(row) and row["content"] in (CONTINUE_TRUNCATED, CONTINUE_INTERRUPTED)


def parts_of_answer(rows: Sequence[ChatMessage], turn_id: str) -> list[str]:
    """The parts of this turn's answer at the end of these rows, in order; each but the last was interrupted."""
    parts: list[str] = []
    may_end_here = True
    """Whether the row before may be a part: it was interrupted, or CONTINUE_TRUNCATED follows it."""
    for row in reversed(rows):
        if row.get("turn_id") != turn_id or row.get("tool_calls") or row["role"] not in ("user", "assistant"):
            break
        if row["role"] == "user":
            if is_synthetic(row) and not is_continuation(row):
                break
            may_end_here = is_synthetic(row)
        elif may_end_here or is_interrupted(row):
            parts.append(text_of(row["content"]))
            may_end_here = False
        else:
            break
    return [part for part in reversed(parts) if part.strip()]


def results_at_end(rows: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The tool results at the end, after the last assistant row."""
    index = len(rows)
    while index and rows[index - 1]["role"] == "tool":
        index -= 1
    return list(rows[index:])


def describe_interruption(
    finished_count: int, rerun: Sequence[ToolCallRequest], unknown: Sequence[ToolCallRequest]
) -> str:
    """The notice about interrupted calls."""
    parts = ["nanobot was interrupted in the middle of this turn and continues from there."]
    if finished_count:
        parts.append(f"{count_noun(finished_count, 'call')} had finished.")
    if rerun:
        parts.append(f"Runs now: {', '.join(call.name for call in rerun)}.")
    if unknown:
        parts.append(f"May or may not have run: {', '.join(call.name for call in unknown)}.")
    return " ".join(parts)
