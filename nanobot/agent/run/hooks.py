"""Hooks around a tool call: each sees it before it begins, and may forbid it or grant it more than its walls do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from nanobot.agent.tools.base import ToolContext
from nanobot.agent.tools.reach import Reach
from nanobot.agent.turn import Emitter
from nanobot.messages.types import ChatMessage, Provenance, least_trusted
from nanobot.providers.base import ToolCallRequest


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call that is about to begin. `rows` is what stands in the window; `emit` tells the turn's watchers.

    What hooks before this one found to come into the turn stands in `context.entered`, and in `source` what it is.
    `told`: what the requests carry beside the window and is not the owner's, as rows of no turn.
    """

    call: ToolCallRequest
    reaches: tuple[Reach, ...]
    context: ToolContext
    rows: Sequence[ChatMessage]
    emit: Emitter
    source: str = ""
    told: Sequence[ChatMessage] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the call may begin, and with which rules granted. `refusal` is for the model: why not, what instead.

    `entered`: whose words come into the turn with the call: those that were found in it, or in the file it reads;
    `source` is what a person knows them by.
    """

    granted: frozenset[str] = frozenset()
    refusal: str | None = None
    entered: Provenance = Provenance.OWNER
    source: str = ""
    when_done: Sequence[Callable[[], None]] = ()
    """What to do once the call went well. They may block, and do not raise."""
    asked: dict[str, Any] | None = None
    """The arguments as the model gave them, where they were changed."""


class ToolHook(Protocol):
    """Asked about every call of a run before any call of its step begins, one call after the other."""

    async def before_call(self, planned: PlannedCall) -> Verdict:
        """Judge it. It may take as long as a person takes to answer; cancelling is safe. What it raises forbids."""
        ...


async def judged(hooks: Sequence[ToolHook], planned: PlannedCall) -> Verdict:
    """What all hooks say together: the first refusal stands, else everything that any of them grants."""
    said = Verdict()
    for hook in hooks:
        verdict = await hook.before_call(planned)
        entered = least_trusted([said.entered, verdict.entered])
        if verdict.refusal is not None:
            return replace(verdict, entered=entered)
        said = Verdict(said.granted | verdict.granted, entered=entered, when_done=(*said.when_done, *verdict.when_done))
        context = planned.context
        if verdict.entered is not Provenance.OWNER:
            known = replace(context, entered=least_trusted([context.entered, verdict.entered]))
            planned = replace(planned, context=known, source=verdict.source or planned.source)
    return said
