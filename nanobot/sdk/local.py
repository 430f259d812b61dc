"""The bot of this process."""

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from nanobot.agent.events import Answer, EventSink
from nanobot.agent.hooks import Hook
from nanobot.agent.pipeline.turn import TurnOptions
from nanobot.agent.tools.base import Tool
from nanobot.bus.events import InboundMessage
from nanobot.config.provider_table import find_by_key, find_by_model, find_by_name
from nanobot.config.schema import Config
from nanobot.errors import ConfigError
from nanobot.messages.types import Origin
from nanobot.providers.base import LLMProvider, call_context
from nanobot.runtime.build import Runtime, build_runtime
from nanobot.sdk.functions import as_tool
from nanobot.sdk.run import RunRequest


class LocalBot:
    def __init__(self, runtime: Runtime, tools: Sequence[Tool | Callable[..., Any]]) -> None:
        """Raises ValueError for a tool that has the name of another one."""
        self.runtime = runtime
        self.workspace = runtime.workspace
        for tool in self._new_tools(tools):
            runtime.tools.register(tool)

    async def run_turn(self, request: RunRequest, sink: EventSink) -> None:
        """Run the turn. Raises TypeError and ValueError for tools that cannot be used.

        Raises RuntimeError for a turn that would wait for the one that asks for it.
        """
        if call_context().turn_id and call_context().session_key == request.session:
            raise RuntimeError(
                f"This is called by a tool of a turn of {request.session}, which the new turn would wait for: pass "
                "another session=, or ephemeral=True."
            )
        text, media = request.message, request.paths
        if media:
            from nanobot.providers.transcription import transcribe_media  # brings httpx

            text = await transcribe_media(text, media, self.runtime.config, os.environ)
        message = InboundMessage.from_owner(
            request.channel, request.chat_id, text, session_key=request.session, origin=Origin.API, media=media
        )
        message.sender_id, message.metadata = request.sender_id, dict(request.attributes)
        output = request.output
        options = TurnOptions(
            tools=self._new_tools(request.tools),
            instructions=request.instructions,
            budget_usd=request.budget_usd,
            ephemeral=request.ephemeral,
            answer_format=output.describe() if output is not None else "",
            format_problem=output.problem if output is not None else None,
        )
        await self.runtime.loop.run_turn(
            message, sink, attended=request.is_attended, hooks=request.hooks, model=request.model, options=options
        )

    async def stop(self, session: str) -> bool:
        """Stop the session's running turn and wait for its end. Return False if none runs."""
        return await self.runtime.loop.stop_turn(session)

    def answer(self, question: str, answer: Answer) -> bool:
        """Answer an approval question as the owner. Return False if it is not open."""
        return self.runtime.questions.answer(question, answer)

    def _new_tools(self, given: Sequence[Tool | Callable[..., Any]]) -> list[Tool]:
        tools = [as_tool(one) for one in given]
        names = [tool.name for tool in tools]
        taken = [name for name in names if self.runtime.tools.has(name) or names.count(name) > 1]
        if taken:
            raise ValueError(f"There is a tool {taken[0]} already: give the function another name.")
        return tools


@asynccontextmanager
async def open_local(
    config: Config,
    data_dir: Path,
    *,
    workspace: Path | None = None,
    model: str | LLMProvider | None = None,
    tools: Sequence[Tool | Callable[..., Any]] = (),
    hooks: Sequence[Hook] = (),
) -> AsyncIterator[LocalBot]:
    """Open a bot in this process; its turns are stopped when the block ends."""
    async with build_runtime(
        config,
        data_dir=data_dir,
        workspace=workspace,
        model=model if isinstance(model, str) else None,
        provider=model if isinstance(model, LLMProvider) else None,
        own_hooks=hooks,
    ) as runtime:
        yield LocalBot(runtime, tools)


def local_config(
    model: str | LLMProvider, api_key: str | None, api_base: str | None, limits: Mapping[str, Any]
) -> Config:
    """Return the config of a bot without a file. Raises ConfigError if the provider is unclear, and ValueError for a
    limit that does not exist.
    """
    sections: dict[str, Any] = {"limits": dict(limits)}
    if isinstance(model, str):
        spec = find_by_name("custom") if api_base else find_by_model(model) or find_by_key(api_key or "")
        if spec is None and api_key is not None:
            raise ConfigError(f"It is unclear whose model {model} is. Write the provider before it: openai/{model}.")
        sections["agents"] = {"defaults": {"model": model, "provider": spec.name if spec is not None else "auto"}}
        if spec is not None:
            sections["providers"] = {spec.config_key: {"apiKey": api_key or "", "apiBase": api_base}}
    return Config.model_validate(sections)
