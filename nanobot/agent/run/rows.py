"""The rows of one run, each kept before the next thing begins, and how far their words are trusted."""

from collections import Counter
from collections.abc import Sequence

from nanobot.agent.run.outside import stored_provenance
from nanobot.agent.run.tool_calls import Record
from nanobot.agent.tools.base import ToolContext
from nanobot.agent.turn import TurnOutcome
from nanobot.messages.types import ChatMessage, Origin, Provenance, ToolFailure, least_trusted, text_of
from nanobot.providers.base import LLMResponse
from nanobot.utils.clock import timestamp
from nanobot.utils.text import counted


class Rows:
    """The history that a run was given, and what it adds. What `record` raises ends the run."""

    def __init__(self, history: Sequence[ChatMessage], context: ToolContext, record: Record) -> None:
        self.all = list(history)
        self.trust = least_trusted(trust for row in self.all for trust in _trusts(row, context.session_key))
        """The least trusted of all rows: what is derived from them is trusted no more."""
        self.entered = least_trusted(_entered_rows(self.all, context.turn_id))
        """The least trusted of what this turn was given."""
        self._context = context
        self._record = record

    @property
    def last(self) -> ChatMessage:
        """The newest; there is always one to be answered."""
        return self.all[-1]

    async def keep(self, row: ChatMessage) -> None:
        """Record a row of the model's or of ours, then make it part of the history."""
        await self._record(row)
        self.all.append(row)

    def take_in(self, rows: Sequence[ChatMessage]) -> None:
        """These rows are kept: they are part of the history, and what they say is trusted as little as they are."""
        self.all += rows
        key = self._context.session_key
        self.trust = least_trusted([self.trust, *(trust for row in rows for trust in _trusts(row, key))])

    def enters(self, provenance: Provenance) -> None:
        """Words of this kind have entered the turn."""
        self.entered = least_trusted([self.entered, provenance])

    async def tell_model(self, text: str) -> None:
        """A word of ours to the model: replayed, never shown to a person."""
        row = self._stamped({"role": "user", "content": text})
        row["origin"] = Origin.SYSTEM
        row["provenance"] = Provenance.SYSTEM
        await self.keep(row)

    async def tell_person(self, text: str) -> None:
        """A word of ours in the place of an answer that the model did not give."""
        row = self._stamped({"role": "assistant", "content": text, "error": TurnOutcome.PARTIAL.value})
        row["provenance"] = Provenance.SYSTEM
        await self.keep(row)

    def of_model(self, response: LLMResponse) -> ChatMessage:
        """What a model said, as a row that is not kept yet."""
        row = self._stamped({"role": "assistant", "content": response.content or None})
        if response.tool_calls:
            row["tool_calls"] = [call.to_message() for call in response.tool_calls]
        if response.reasoning_content:
            row["reasoning_content"] = response.reasoning_content
        if response.thinking_blocks:
            row["thinking_blocks"] = response.thinking_blocks
        row["provenance"] = self.trust
        return row

    def account(self, why: str) -> str:
        """What was done in this turn by code's own count, for a run that ends early."""
        turn_id = self._context.turn_id
        answered = [row for row in self.all if row.get("turn_id") == turn_id and row["role"] == "tool"]
        mine = [row for row in answered if row.get("failure") != ToolFailure.NOT_RUN]
        times = Counter(str(row.get("name")) for row in mine)
        done = ", ".join(f"{name} {count} times" if count > 1 else name for name, count in times.items())
        failed = [row for row in mine if row.get("failure", ToolFailure.UNKNOWN) != ToolFailure.UNKNOWN]
        parts = [why, f"{counted(len(mine), 'tool call')} ran ({done})." if mine else "No tool ran."]
        if failed:
            parts.append(f"{len(failed)} of them failed, the last with: {text_of(failed[-1]['content'])[:200]}")
        return " ".join([*parts, f"Ask again, or say how to go on. (turn {turn_id})"])

    def _stamped(self, row: ChatMessage) -> ChatMessage:
        row["timestamp"] = timestamp(self._context.clock)
        row["turn_id"] = self._context.turn_id
        return row


def _trusts(row: ChatMessage, session_key: str) -> Sequence[str]:
    """How far its words are trusted, and what was told beside them."""
    said, beside = stored_provenance(row, session_key), row.get("context_provenance")
    return (said,) if beside is None else (said, beside)


def _entered_rows(rows: Sequence[ChatMessage], turn_id: str) -> list[str]:
    """Where the words came from that this turn was given: what was asked, and what tools brought before a crash. One
    that begins by ending a turn that was cut off was given what that one was.
    """
    last = rows[-1:]
    names = (turn_id, *(row["turn_id"] for row in last if row.get("turn_id")))
    given = ([row for row in rows if row.get("turn_id") == name and row["role"] != "assistant"] for name in names)
    mine = next((found for found in given if found), last)
    return [row.get("own_provenance", row.get("provenance", Provenance.TOOL)) for row in mine]
