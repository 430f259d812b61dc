"""Tool policies: they see each call before it runs, and may refuse it or grant it more than the sandbox does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from nanobot.agent.events import Emitter
from nanobot.agent.tools.base import Access, ToolContext
from nanobot.messages.types import ChatMessage, Provenance, least_trusted
from nanobot.providers.base import ToolCallRequest


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call that is about to run. `rows` are the chat messages in the window; `emit` takes turn events.

    What earlier policies found to enter the turn is included in `context.entered`, with its description in `source`.
    `untrusted_rows`: third-party text that requests carry outside of the window, as rows without a turn.
    """

    call: ToolCallRequest
    required_access: tuple[Access, ...]
    context: ToolContext
    rows: Sequence[ChatMessage]
    emit: Emitter
    source: str = ""
    untrusted_rows: Sequence[ChatMessage] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the call may run, and which rules are granted. `refusal` tells the model why not and what to do instead.

    `entered`: provenance of the content that enters the turn with the call; `source` describes it for a person.
    """

    granted: frozenset[str] = frozenset()
    refusal: str | None = None
    entered: Provenance = Provenance.OWNER
    source: str = ""
    on_success: Sequence[Callable[[], None]] = ()
    """Run after the call succeeded. They may block and do not raise."""
    original_arguments: dict[str, Any] | None = None
    """The arguments as the model gave them, if a hook changed them."""


class ToolPolicy(Protocol):
    """Asked about every call of a step, one after the other, before any of them runs."""

    async def before_call(self, planned: PlannedCall) -> Verdict:
        """Judge the call. May wait for a person; cancelling is safe. An exception refuses the call."""
        ...


async def judge_calls(policies: Sequence[ToolPolicy], planned: PlannedCall) -> Verdict:
    """Combine the verdicts of all policies: the first refusal, else everything that any of them grants."""
    combined = Verdict()
    for policy in policies:
        verdict = await policy.before_call(planned)
        entered = least_trusted([combined.entered, verdict.entered])
        if verdict.refusal is not None:
            return replace(verdict, entered=entered)
        combined = Verdict(
            combined.granted | verdict.granted,
            entered=entered,
            on_success=(*combined.on_success, *verdict.on_success),
        )
        context = planned.context
        if verdict.entered is not Provenance.OWNER:
            tainted = replace(context, entered=least_trusted([context.entered, verdict.entered]))
            planned = replace(planned, context=tainted, source=verdict.source or planned.source)
    return combined
