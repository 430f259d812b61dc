"""What a request asks of its turn: stored with its message, so that it also holds after a restart."""

from typing import TYPE_CHECKING, Any

from nanobot.agent.pipeline.turn import TurnOptions
from nanobot.bus.events import InboundMessage

if TYPE_CHECKING:
    from nanobot.sdk.output import OutputFormat


def turn_options(message: InboundMessage) -> TurnOptions:
    """The options of a message's turn, from `message.request`."""
    asked = {name: value for name, value in message.request.items() if value is not None}
    form = answer_form(asked.pop("schema", None))
    if form is not None:
        asked |= {"answer_format": form.describe(), "format_problem": form.problem}
    return TurnOptions(**asked)


def answer_form(schema: dict[str, Any] | None) -> "OutputFormat | None":
    """The form of an answer with this JSON schema; None without one. Raises TypeError if it is not valid."""
    if schema is None:
        return None
    from nanobot.sdk.output import OutputFormat  # most requests want a text

    return OutputFormat(schema)
