"""The rows of a run, each recorded before the run continues, and their provenance."""

from collections import Counter
from collections.abc import Sequence

from nanobot.agent.engine.spec import Record
from nanobot.agent.events import TurnOutcome
from nanobot.agent.tools.base import ToolContext
from nanobot.messages.types import (
    ChatMessage,
    Origin,
    Provenance,
    ToolFailure,
    least_trusted,
    stored_provenance,
    text_of,
)
from nanobot.providers.base import LLMResponse
from nanobot.utils.clock import timestamp
from nanobot.utils.text import count_noun


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
