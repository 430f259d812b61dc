"""nanobot as a library.

async with Nanobot.from_config() as bot:
    print((await bot.run("What is in my workspace?")).text)
    async for event in bot.stream("And in there?"):
        ...
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from nanobot.agent.events import Answer, TurnEvent, TurnResult
from nanobot.agent.hooks.api import Hook
from nanobot.bus.events import InboundMessage
from nanobot.config.loader import get_config_path, load_config
from nanobot.config.schema import Config
from nanobot.messages.types import Origin
from nanobot.runtime.build import Runtime, build_runtime

DEFAULT_SESSION = "sdk:direct"


class Nanobot:
    """A bot. Open it with `async with`; its sessions may be used concurrently."""

    def __init__(
        self,
        config: Config,
        data_dir: Path,
        *,
        workspace: Path | None = None,
        model: str | None = None,
        hooks: Sequence[Hook] = (),
    ) -> None:
        self._config = config
        self._data_dir = data_dir
        self._workspace = workspace
        self._model = model
        self._hooks = tuple(hooks)
        self._exit_stack = AsyncExitStack()
        self._runtime: Runtime | None = None

    @classmethod
    def from_config(
        cls,
        path: Path | str | None = None,
        *,
        workspace: Path | str | None = None,
        model: str | None = None,
        hooks: Sequence[Hook] = (),
    ) -> Self:
        """Create a bot from a config file; None uses the default path. Raises ConfigError.

        `hooks` run in every turn, after those of plugins. `async with` raises TypeError for an object that is no hook.
        """
        config_path = Path(path).expanduser() if path else get_config_path()
        folder = Path(workspace) if workspace else None
        return cls(load_config(config_path), config_path.parent, workspace=folder, model=model, hooks=hooks)

    async def __aenter__(self) -> Self:
        self._runtime = await self._exit_stack.enter_async_context(
            build_runtime(
                self._config,
                data_dir=self._data_dir,
                workspace=self._workspace,
                model=self._model,
                own_hooks=self._hooks,
            )
        )
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._exit_stack.aclose()
        self._runtime = None

    async def run(
        self, message: str, *, session: str = DEFAULT_SESSION, model: str | None = None, hooks: Sequence[Hook] = ()
    ) -> TurnResult:
        """Send a message and wait for the end of its turn. Never raises for a failure of a model or a tool.

        `model` (a name or a preset) and `hooks` apply to this turn only.
        """
        return await self._open().loop.run_turn(_message(message, session), model=model, hooks=hooks)

    async def stream(
        self,
        message: str,
        *,
        session: str = DEFAULT_SESSION,
        attended: bool = False,
        model: str | None = None,
        hooks: Sequence[Hook] = (),
    ) -> AsyncIterator[TurnEvent]:
        """Like `run`, yielding events; TurnEnded is the last one. Leaving the loop early stops the turn.

        With `attended`, the caller must call `answer` for each ApprovalAsked; without it, calls that need approval are
        refused.
        """
        events: asyncio.Queue[TurnEvent | None] = asyncio.Queue()
        loop = self._open().loop
        turn = asyncio.create_task(
            loop.run_turn(_message(message, session), events.put_nowait, attended=attended, model=model, hooks=hooks)
        )
        turn.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            await turn
        finally:
            turn.cancel()
            await asyncio.wait([turn])

    def answer(self, question: str, answer: Answer) -> bool:
        """Answer an approval question as the owner. Return False if the question is not open."""
        return self._open().questions.answer(question, answer)

    def _open(self) -> Runtime:
        if self._runtime is None:
            raise RuntimeError("open the bot first: async with Nanobot.from_config() as bot")
        return self._runtime


def _message(text: str, session: str) -> InboundMessage:
    return InboundMessage.from_owner("sdk", "direct", text, session_key=session, origin=Origin.API)
