"""Who asked for work that goes on after the turn that asked: a task of a subagent, or a goal."""

from dataclasses import dataclass, replace
from typing import Any

from nanobot.agent.command import is_from_owner
from nanobot.agent.scope import OWNERS, Scope
from nanobot.agent.tools.base import ToolContext
from nanobot.bus.events import Address, InboundMessage
from nanobot.messages.types import Origin, Provenance, is_outside, least_trusted


@dataclass(frozen=True, slots=True)
class Requester:
    """The person, chat and turn that asked, as they were then. The work is done in their name and reported to them."""

    session_key: str
    address: Address
    provenance: Provenance = Provenance.OWNER
    """Provenance of the request."""
    origin: Origin = Origin.CLI
    """Origin of the turn that asked."""
    sender_id: str | None = None
    attended: bool = False
    scope: Scope = OWNERS

    @classmethod
    def of(cls, ctx: ToolContext) -> "Requester":
        """The requester of a tool call. What entered the turn may be repeated in the request, so it counts."""
        provenance = least_trusted([ctx.asker, ctx.entered]) if is_outside(ctx.entered) else ctx.asker
        return cls(ctx.session_key, ctx.address, provenance, ctx.origin, ctx.sender_id, ctx.attended, ctx.scope)

    def is_controlled_by(self, message: InboundMessage) -> bool:
        """Whether the sender may stop, resume or answer the work: an owner, or the person who asked for it."""
        return is_from_owner(message) or (message.channel, message.sender_id) == (self.address.channel, self.sender_id)

    def message(self, content: str, **fields: Any) -> InboundMessage:
        """Return a message to the session in their name; `fields` are those of InboundMessage.at."""
        fields = {"session_key": self.session_key, "provenance": self.provenance, **fields}
        return InboundMessage.at(self.address, self.sender_id, content, **fields)

    def stand_in(self, context: ToolContext) -> ToolContext:
        """Return the context of a turn of this work as that of the turn that asked: who may answer its questions."""
        return replace(context, origin=self.origin, attended=self.attended)
