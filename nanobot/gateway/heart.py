"""The heartbeat as a member: who is asked, who works on the tasks, and which chat hears of it."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from datetime import datetime

from nanobot.agent.turn import TurnOutcome
from nanobot.bus.events import Address, InboundMessage, OutboundKind, OutboundMessage
from nanobot.config.paths import Places
from nanobot.errors import NanobotError
from nanobot.gateway.members import Member
from nanobot.gateway.owners import is_private, owners_chats
from nanobot.gateway.roster import Roster
from nanobot.heartbeat.service import SESSION, HeartbeatService
from nanobot.messages.types import ChatMessage, Origin, Provenance, ToolSchema
from nanobot.providers.base import LLMProvider, LLMResponse
from nanobot.runtime import Runtime

log = logging.getLogger(__name__)


def heartbeat_member(runtime: Runtime, roster: Roster) -> Member | None:
    """The heartbeat; None where its owner has switched it off. Without a task in HEARTBEAT.md it costs nothing."""
    settings = runtime.config.gateway.heartbeat
    if "enabled" in settings.model_fields_set and not settings.enabled:
        return None
    heart = Heart(runtime, roster)
    service = HeartbeatService(
        runtime.workspace,
        BackgroundModel(runtime),
        on_execute=heart.execute,
        on_notify=heart.notify,
        interval_s=settings.interval_s,
        clock=runtime.clock,
        state_file=Places(runtime.data_dir).state / "heartbeat.json",
        last_user=heart.last_user,
        opener=runtime.context.files.descriptor,
    )
    return Member("heartbeat", service.run, problem=lambda: service.paused or None)


class BackgroundModel(LLMProvider):
    """The model for work that nobody waits for (`backgroundModel`, else the usual one), chosen when it is asked."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> LLMResponse:
        """Ask it."""
        chosen = await self._runtime.models.get(model or self._runtime.config.agents.defaults.background_model)
        return await chosen.provider.chat(messages, tools, chosen.name, max_tokens, temperature)


class Heart:
    """Works on tasks in a session of their own, and tells the owner what came of it."""

    def __init__(self, runtime: Runtime, roster: Roster) -> None:
        self._runtime = runtime
        self._roster = roster

    async def execute(self, tasks: str) -> str:
        """Run a turn on them; nothing of it is sent by itself. Raises NanobotError where it came to no answer."""
        there = await self._chat() or Address("cli", "direct")
        file = self._runtime.workspace / "HEARTBEAT.md"
        written = await asyncio.to_thread(self._runtime.file_book.of, file)
        message = InboundMessage(
            there.channel,
            "heartbeat",
            there.chat_id,
            f"These tasks of HEARTBEAT.md are due:\n\n{tasks}\n\nWork on them now. Tick off in HEARTBEAT.md what is "
            "done for good. Answer with what your owner should hear, or HEARTBEAT_OK if that is nothing.",
            session_key_override=SESSION,
            origin=Origin.HEARTBEAT,
            provenance=written or Provenance.FILE,
            quiet=True,
        )
        result = await self._runtime.loop.run_turn(message)
        if result.outcome not in (TurnOutcome.ANSWERED, TurnOutcome.PARTIAL):
            raise NanobotError(f"The tasks of the heartbeat were not done: {result.text}")
        return result.text

    async def notify(self, text: str) -> None:
        """Send it to the chat the config names, else to the one its owner wrote in last.

        With one session for all chats of an owner, which tells them not apart, it is their private chat.
        """
        there = await self._chat()
        if there is None:
            log.warning("the heartbeat has something to say and no chat to say it in; set gateway.heartbeat.to")
            return
        message = OutboundMessage(there.channel, there.chat_id, text, kind=OutboundKind.NOTICE)
        receipt = await self._runtime.bus.publish_outbound(message)
        await receipt.wait()

    def last_user(self) -> datetime | None:
        """When somebody wrote last, as far as this start knows."""
        heard = [evidence.last_received for evidence in self._roster.evidence().values()]
        return max((moment for moment in heard if moment is not None), default=None)

    async def _chat(self) -> Address | None:
        settings = self._runtime.config.gateway.heartbeat
        if settings.channel and settings.to:
            return Address(settings.channel, settings.to)
        if self._runtime.config.agents.defaults.unified_session:
            async with aclosing(owners_chats(self._runtime, self._roster.manager, self._roster.names)) as chats:
                return await anext(chats, None)
        return await asyncio.to_thread(self._last)

    def _last(self) -> Address | None:
        names = self._roster.names
        key = self._runtime.sessions.latest(lambda key: key.count(":") == 1 and key.partition(":")[0] in names)
        if key is None:
            return None
        channel, _, chat_id = key.partition(":")
        return Address(channel, chat_id) if is_private(self._runtime, channel, chat_id) else None
