"""What a request asks of its turn: stored with its message, so that it also holds after a restart."""

from typing import TYPE_CHECKING, Any

from nanobot.agent.pipeline.turn import TurnOptions
from nanobot.bus.events import InboundMessage

if TYPE_CHECKING:
    from nanobot.sdk.output import OutputFormat


def turn_options(message: InboundMessage) -> TurnOptions:
    """The options of a message's turn, from `message.request`."""
    asked = message.request
    form = answer_form(asked.get("schema"))
    return TurnOptions(
        model=asked.get("model"),
        instructions=asked.get("instructions", ""),
        max_tokens=asked.get("max_tokens"),
        temperature=asked.get("temperature"),
        reasoning_effort=asked.get("reasoning_effort"),
        budget_usd=asked.get("budget_usd"),
        ephemeral=asked.get("ephemeral", False),
        answer_format=form.describe() if form is not None else "",
        format_problem=form.problem if form is not None else None,
    )


def answer_form(schema: dict[str, Any] | None) -> "OutputFormat | None":
    """The form of an answer with this JSON schema; None without one. Raises TypeError if it is not valid."""
    if schema is None:
        return None
    from nanobot.sdk.output import OutputFormat  # most requests want a text

    return OutputFormat(schema)
