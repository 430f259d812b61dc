"""nanobot inside another program.

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

from nanobot.agent.hooks import Hook
from nanobot.agent.turn import Answer, TurnEvent, TurnResult
from nanobot.bus.events import InboundMessage
from nanobot.config.loader import get_config_path, load_config
from nanobot.config.schema import Config
from nanobot.messages.types import Origin
from nanobot.runtime import Runtime, build_runtime

DEFAULT_SESSION = "sdk:direct"


class Nanobot:
    """One bot; its sessions may be used side by side. Open it with `async with`."""

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
        self._lives = AsyncExitStack()
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
        """The bot that this config file describes; the usual one for None. Raises ConfigError as every command does.

        `hooks` are asked in every turn, behind those of plugins. Raises TypeError for what is no hook.
        """
        place = Path(path).expanduser() if path else get_config_path()
        folder = Path(workspace) if workspace else None
        return cls(load_config(place), place.parent, workspace=folder, model=model, hooks=hooks)

    async def __aenter__(self) -> Self:
        self._runtime = await self._lives.enter_async_context(
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
        await self._lives.aclose()
        self._runtime = None

    async def run(
        self, message: str, *, session: str = DEFAULT_SESSION, model: str | None = None, hooks: Sequence[Hook] = ()
    ) -> TurnResult:
        """Say something and wait for the end of the turn. Never raises for a failure of a model or a tool.

        `model` (a name or a preset) and `hooks` are for this turn alone, however many run at once.
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
        """The same as it happens; TurnEnded is the last event. Leaving the loop early stops the turn.

        `attended` promises an `answer` to each ApprovalAsked; without it what needs the owner's yes is refused.
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
        """Answer what a turn has asked, in the owner's name; False where that question is not open."""
        return self._open().questions.answer(question, answer)

    def _open(self) -> Runtime:
        if self._runtime is None:
            raise RuntimeError("open the bot first: async with Nanobot.from_config() as bot")
        return self._runtime


def _message(text: str, session: str) -> InboundMessage:
    return InboundMessage.from_owner("sdk", "direct", text, session_key=session, origin=Origin.API)
