"""The `message` tool: text, files and buttons to a chat; waits until the platform has accepted the message.

The answer itself goes to the chat of the turn. This tool is for other chats, for files, and for what cannot wait for
the end of the turn.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

from nanobot.agent.events import parse_answer
from nanobot.agent.tools.base import Access, AccessKind, Effect, Tool, ToolContext, ToolResult, array, string, takes
from nanobot.agent.tools.disk import opener
from nanobot.bus.events import FEED_CHANNELS, WEB_CHANNEL, Button, DeliveryFailedError, OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.messages.types import ToolFailure, is_outside
from nanobot.security.files.paths import PathDeniedError, PathPolicy
from nanobot.security.secrets import find_secret, redact_known

DELIVERY_TIMEOUT_S = 60.0
"""A message that takes longer stays in the queue; the result says so."""
_MAX_BUTTONS = 10


class ChatDelivery(Protocol):
    """The chats that can be reached."""

    @property
    def names(self) -> list[str]:
        """The channels that are switched on."""
        ...

    async def find(self, channel: str, name: str) -> str | None:
        """Return the id of a chat by id or by a name such as `@ann` or `#general`; None if there is none."""
        ...


class MessageTool(Tool):
    name = "message"
    aliases = ("message_user",)
    description = (
        "Send a message to another chat (channel and chat_id), or files to this one. To answer in this chat, answer "
        "directly instead."
    )
    parameters = takes(
        "content",
        content=string("The text, in Markdown"),
        channel=string("Channel name such as telegram (default: this chat's)"),
        chat_id=string("Chat id or name such as @ann or #general (default: this chat)"),
        media=array("Paths of files to attach, relative to the workspace"),
        buttons=array("Button labels; a press arrives as a message with that text"),
    )
    effect = Effect.ONCE

    def __init__(self, bus: MessageBus, chats: ChatDelivery, paths: PathPolicy) -> None:
        self._bus = bus
        self._chats = chats
        self._paths = paths

    async def required_access(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Access]:
        """Declare a chat other than the turn's own, and hosts of URLs from which a platform would fetch files."""
        message = await self._target(arguments.get("channel"), arguments.get("chat_id"), ctx)
        accesses: list[Access] = []
        if not isinstance(message, ToolResult) and (message.channel, message.chat_id) != (
            ctx.address.channel,
            ctx.address.chat_id,
        ):
            chat = str(arguments.get("chat_id") or message.chat_id)
            detail = f"{chat} on {message.channel}" if chat != message.chat_id else ""
            accesses.append(Access(AccessKind.RECIPIENT, f"{message.channel}:{message.chat_id}", detail=detail))
        hosts = {urlsplit(url).netloc for url in arguments.get("media") or () if _is_url(url)}
        return [*accesses, *(Access(AccessKind.HOST, host) for host in sorted(hosts))]

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
        """Send the message and wait for the platform. Cancelling does not take it back."""
        if ctx.quiet:
            return ToolResult.failed(
                "Nothing was sent: this job sends only its answer, if there is something to report. Put the text there."
            )
        if not content.strip() and not media:
            return ToolResult.failed("There is nothing to send. Give content, media, or both.")
        message = await self._target(channel, chat_id, ctx)
        if isinstance(message, ToolResult):
            return message
        if (secret := next(filter(None, map(find_secret, media)), None)) is not None:
            return ToolResult.failed(f"Nothing was sent: media holds the secret {secret}, and no tool sends secrets.")
        try:
            files = [str(await asyncio.to_thread(self._file, path, ctx)) for path in media]
        except (PathDeniedError, FileNotFoundError) as error:
            return ToolResult.failed(str(error))
        message.content, message.media = redact_known(content), files
        message.buttons = tuple(
            Button(label, _button_value(label, ctx)) for label in map(redact_known, buttons[:_MAX_BUTTONS])
        )
        target = f"{message.channel}:{message.chat_id}"
        receipt = self._bus.post_outbound(message)
        try:
            async with asyncio.timeout(DELIVERY_TIMEOUT_S):
                ids = await receipt.wait()
        except TimeoutError:
            return ToolResult.failed(
                f"{target} does not have the message yet: the platform is slow or out of reach. It stays in the queue "
                "and is sent when that is over; do not send it again.",
                ToolFailure.UNKNOWN,
            )
        except DeliveryFailedError as error:
            return ToolResult.failed(str(error))
        if receipt.repeated:
            return ToolResult(f"{target} already has this message; it was not sent again.")
        suffix = f" (message {', '.join(ids)})" if ids else ""
        return ToolResult(f"Delivered to {target}{suffix}.")

    async def _target(self, channel: str | None, chat_id: str | None, ctx: ToolContext) -> OutboundMessage | ToolResult:
        """Return an empty message to the meant chat, or why there is none."""
        here = ctx.address
        channel = (channel or here.channel).strip().lower()
        is_page = channel == here.channel == WEB_CHANNEL and not chat_id
        if channel not in self._chats.names and not is_page:
            if channel == here.channel and not chat_id:
                return ToolResult.failed("This chat shows your answer itself: write the text as your answer instead.")
            known = ", ".join(sorted({*self._chats.names}.difference(FEED_CHANNELS))) or "none"
            return ToolResult.failed(f"There is no channel {channel!r} switched on. Channels: {known}.")
        if not chat_id and channel != here.channel:
            return ToolResult.failed(f"Which chat on {channel}? Give its chat_id.")
        thread_id = here.thread_id if channel == here.channel and chat_id in (None, "", here.chat_id) else None
        chat = await self._chats.find(channel, chat_id) if chat_id else here.chat_id
        if chat is None:
            return ToolResult.failed(f"There is no chat {chat_id!r} on {channel}. Give its id.")
        return OutboundMessage(
            channel,
            chat,
            "",
            kind=OutboundKind.NOTICE,
            turn_id=ctx.turn_id,
            thread_id=thread_id,
            answers=ctx.answers,
            by_tool=True,
        )

    def _file(self, path: str, ctx: ToolContext) -> str:
        """Return the path of a file that may be sent. A URL is returned as it is: the platform fetches it."""
        if _is_url(path):
            return path
        try:
            return str(opener(self._paths, ctx).resolve_sendable(path))
        except OSError as error:
            why = "" if isinstance(error, FileNotFoundError | IsADirectoryError) else f" ({error.strerror or error})"
            raise FileNotFoundError(f"There is no file {path}{why}. Paths are relative to {ctx.workspace}.") from error


def _is_url(path: str) -> bool:
    return path.startswith(("https://", "http://"))


def _button_value(label: str, ctx: ToolContext) -> str:
    """Return what a press says: the label. Untrusted content must not create a button that answers an approval question
    of this chat.
    """
    is_answer = label.lstrip().startswith("/") or parse_answer(label) is not None
    return f"I choose: {label}" if is_answer and is_outside(ctx.entered) else label
