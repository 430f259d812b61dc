"""The `message` tool: words, files and buttons to a chat, delivered when the platform says so.

Whoever is spoken with is answered by the answer itself; this is for another chat, for files, and for what cannot wait
for the end of the turn.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

from nanobot.agent.answers import answer_in
from nanobot.agent.tools.base import Effect, Tool, ToolContext, ToolResult
from nanobot.agent.tools.disk import opener
from nanobot.agent.tools.reach import Reach, ReachKind
from nanobot.agent.tools.schema import array, string, takes
from nanobot.bus.events import Button, DeliveryFailedError, OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.messages.types import ToolFailure, is_outside
from nanobot.security.paths import PathDeniedError, PathPolicy
from nanobot.security.vault import masked, secret_in

DELIVERED_S = 60.0
"""How long the platform is waited for. A message that takes longer stays in the queue; the agent is told so."""
_MOST_BUTTONS = 10


class Chats(Protocol):
    """The chats that can be reached."""

    @property
    def names(self) -> list[str]:
        """The channels that are switched on."""
        ...

    async def find(self, channel: str, name: str) -> str | None:
        """The id of the chat that a person would call so: an id as it is, `@ann`, `#general`. None for no chat."""
        ...


class MessageTool(Tool):
    """A message to a chat."""

    name = "message"
    aliases = ("message_user",)
    description = (
        "Send a message to another chat (channel and chat_id), or files to this one; to answer here, just answer."
    )
    parameters = takes(
        "content",
        content=string(),
        channel=string("Like telegram (default: here)"),
        chat_id=string("Id or name, like @ann, #general (default: here)"),
        media=array("File paths"),
        buttons=array("Labels; one pressed comes as a message"),
    )
    effect = Effect.ONCE

    def __init__(self, bus: MessageBus, chats: Chats, paths: PathPolicy) -> None:
        self._bus = bus
        self._chats = chats
        self._paths = paths

    async def reaches(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Reach]:
        """Another chat than the turn's own; and the hosts of addresses that a platform would fetch files from."""
        there = await self._target(arguments.get("channel"), arguments.get("chat_id"), ctx)
        reached: list[Reach] = []
        if not isinstance(there, ToolResult) and (there.channel, there.chat_id) != (
            ctx.address.channel,
            ctx.address.chat_id,
        ):
            named = str(arguments.get("chat_id") or there.chat_id)
            detail = f"{named} on {there.channel}" if named != there.chat_id else ""
            reached.append(Reach(ReachKind.RECIPIENT, f"{there.channel}:{there.chat_id}", detail=detail))
        hosts = {urlsplit(one).netloc for one in arguments.get("media") or () if _is_address(one)}
        return [*reached, *(Reach(ReachKind.HOST, host) for host in sorted(hosts))]

    async def execute(
        self,
        content: str,
        channel: str | None = None,
        chat_id: str | None = None,
        media: Sequence[str] = (),
        buttons: Sequence[str] = (),
        *,
        ctx: ToolContext,
    ) -> ToolResult:
        """Send it and wait for the platform. Cancelling does not take it back."""
        if ctx.quiet:
            return ToolResult.failed(
                "This job speaks by its answer alone, which is sent if there is something to tell. Nothing was sent."
            )
        if not content.strip() and not media:
            return ToolResult.failed("There is nothing to send. Give content, media, or both.")
        there = await self._target(channel, chat_id, ctx)
        if isinstance(there, ToolResult):
            return there
        if (told := next(filter(None, map(secret_in, media)), None)) is not None:
            return ToolResult.failed(
                f"Nothing was sent: media holds the secret {told}, and secrets go nowhere but where they belong."
            )
        try:
            files = [str(await asyncio.to_thread(self._file, path, ctx)) for path in media]
        except (PathDeniedError, FileNotFoundError) as error:
            return ToolResult.failed(str(error))
        there.content, there.media = masked(content), files
        there.buttons = tuple(Button(label, _value_of(label, ctx)) for label in map(masked, buttons[:_MOST_BUTTONS]))
        return await self._sent(there)

    async def _target(self, channel: str | None, chat_id: str | None, ctx: ToolContext) -> OutboundMessage | ToolResult:
        """An empty message to the chat that is meant; or why there is none."""
        here = ctx.address
        channel = (channel or here.channel).strip().lower()
        if channel not in self._chats.names:
            if channel == here.channel and not chat_id:
                return ToolResult.failed("Here your answer is what is read: write it as your answer.")
            known = ", ".join(sorted(self._chats.names)) or "none"
            return ToolResult.failed(f"There is no channel {channel!r} switched on. Channels: {known}.")
        if not chat_id and channel != here.channel:
            return ToolResult.failed(f"Which chat on {channel}? Give chat_id: no message goes to a chat by chance.")
        thread_id = here.thread_id if channel == here.channel and chat_id in (None, "", here.chat_id) else None
        found = await self._chats.find(channel, chat_id) if chat_id else here.chat_id
        if found is None:
            return ToolResult.failed(f"There is no chat {chat_id!r} on {channel}. Give its id.")
        return OutboundMessage(
            channel,
            found,
            "",
            kind=OutboundKind.NOTICE,
            turn_id=ctx.turn_id,
            thread_id=thread_id,
            answers=ctx.answers,
        )

    def _file(self, named: str, ctx: ToolContext) -> str:
        """The file, where it may be sent. An address on the web goes as it is: the platform fetches it."""
        if _is_address(named):
            return named
        try:
            return str(opener(self._paths, ctx).to_send(named))
        except OSError as error:
            why = "" if isinstance(error, FileNotFoundError | IsADirectoryError) else f" ({error.strerror or error})"
            raise FileNotFoundError(f"There is no file {named}{why}. Paths begin at {ctx.workspace}.") from error

    async def _sent(self, message: OutboundMessage) -> ToolResult:
        where = f"{message.channel}:{message.chat_id}"
        receipt = self._bus.post_outbound(message)
        try:
            async with asyncio.timeout(DELIVERED_S):
                ids = await receipt.wait()
        except TimeoutError:
            return ToolResult.failed(
                f"{where} does not have the message yet: the platform is slow or out of reach. It stays in the queue "
                "and is sent when that is over; do not send it again.",
                ToolFailure.UNKNOWN,
            )
        except DeliveryFailedError as error:
            return ToolResult.failed(str(error))
        if receipt.repeated:
            return ToolResult(f"{where} has this very message already; it was not sent again.")
        named = f" (message {', '.join(ids)})" if ids else ""
        return ToolResult(f"Delivered to {where}{named}.")


def _is_address(named: str) -> bool:
    return named.startswith(("https://", "http://"))


def _value_of(label: str, ctx: ToolContext) -> str:
    """What a press says: the label. Somebody else's words must not get a button that answers what the owner is asked
    elsewhere in this chat.
    """
    answers = label.lstrip().startswith("/") or answer_in(label) is not None
    return f"I choose: {label}" if answers and is_outside(ctx.entered) else label
