"""The heartbeat in a gateway: its model, the turns that its tasks start, and where their results go."""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nanobot.agent.events import TurnOutcome
from nanobot.bus.events import Address, InboundMessage, OutboundKind, OutboundMessage
from nanobot.config.paths import DataPaths
from nanobot.errors import NanobotError
from nanobot.gateway.supervisor import SupervisedTask
from nanobot.heartbeat.service import SESSION, HeartbeatService
from nanobot.messages.types import ChatMessage, Origin, Provenance, ToolSchema
from nanobot.providers.base import LLMProvider, LLMResponse
from nanobot.runtime.build import Runtime

if TYPE_CHECKING:
    from nanobot.gateway.channels import GatewayChannels

log = logging.getLogger(__name__)


def heartbeat_task(runtime: Runtime, channels: "GatewayChannels") -> SupervisedTask | None:
    """Return the heartbeat's task, or None if the config disables it. Without due tasks it costs nothing."""
    settings = runtime.config.gateway.heartbeat
    if "enabled" in settings.model_fields_set and not settings.enabled:
        return None
    runner = HeartbeatRunner(runtime, channels)
    service = HeartbeatService(
        runtime.workspace,
        BackgroundModel(runtime),
        on_execute=runner.execute,
        on_notify=runner.notify,
        interval_s=settings.interval_s,
        clock=runtime.clock,
        state_file=DataPaths(runtime.data_dir).state / "heartbeat.json",
        opener=runtime.context.files.descriptor,
    )
    return SupervisedTask("heartbeat", service.run, problem=lambda: service.paused or None)


class BackgroundModel(LLMProvider):
    """The model for background work (`backgroundModel`, else the default one), resolved at each call."""

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
        if self._runtime.loop.is_stopping:  # what is due could not be worked on: ask at the next start
            await asyncio.Event().wait()
        chosen = await self._runtime.models.get(model or self._runtime.config.agents.defaults.background_model)
        return await chosen.provider.chat(messages, tools, chosen.name, max_tokens, temperature)


class HeartbeatRunner:
    """Runs due tasks in the heartbeat session and sends the result to the owner."""

    def __init__(self, runtime: Runtime, channels: "GatewayChannels") -> None:
        self._runtime = runtime
        self._channels = channels

    async def execute(self, tasks: str) -> str:
        """Run a turn on the tasks and return its answer without sending it. Raises NanobotError if there is none."""
        chat = await self._chat() or Address("cli", "direct")
        file = self._runtime.workspace / "HEARTBEAT.md"
        written = await asyncio.to_thread(self._runtime.file_provenance.of, file)
        message = InboundMessage(
            chat.channel,
            "heartbeat",
            chat.chat_id,
            f"These tasks of HEARTBEAT.md are due:\n\n{tasks}\n\nWork on them now. Tick off in HEARTBEAT.md what is "
            "done for good. Answer with what your owner should know, or HEARTBEAT_OK if that is nothing.",
            session_key_override=SESSION,
            origin=Origin.HEARTBEAT,
            provenance=written or Provenance.FILE,
            quiet=True,
        )
        result = await self._runtime.loop.run_turn(message)
        if result.outcome not in (TurnOutcome.ANSWERED, TurnOutcome.PARTIAL):
            if self._runtime.loop.is_stopping:
                await asyncio.Event().wait()
            raise NanobotError(f"The tasks of the heartbeat were not done: {result.text}")
        return result.text

    async def notify(self, text: str) -> None:
        """Queue the text for its chat. Does not wait for the delivery: a platform that is down must not stop the
        heartbeat.
        """
        chat = await self._chat()
        if chat is None:
            log.warning(
                "the heartbeat has a result and no chat to send it to; write to the bot in private, or set "
                "gateway.heartbeat.channel and gateway.heartbeat.to"
            )
            return
        message = OutboundMessage(chat.channel, chat.chat_id, text, kind=OutboundKind.NOTICE)
        await self._runtime.bus.publish_outbound(message)

    async def _chat(self) -> Address | None:
        """The configured chat, else the private chat that was used last, else the owner's private chat."""
        settings, channels = self._runtime.config.gateway.heartbeat, self._channels
        if settings.channel and settings.to:
            return Address(settings.channel, settings.to)
        last = await asyncio.to_thread(self._runtime.privacy.owners_last_chat, channels.names)
        return last or await channels.owners_chat(channels.names)
