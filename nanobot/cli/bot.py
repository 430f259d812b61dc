"""Who answers at the terminal: a bot of this very process, or the one that lives in a running gateway.

Chat and one-shot know this port alone, so they look and behave the same with either.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nanobot.bus.events import DeliveryFailedError, InboundMessage, OutboundKind
from nanobot.cli.inbound import CHANNEL, heard, terminal_message

if TYPE_CHECKING:
    from nanobot.agent.turn import Answer, EventSink, TurnResult
    from nanobot.runtime import Runtime

Joining = Callable[[int], Sequence[InboundMessage]]
"""Takes at most so many of the lines that wait and join the turn that runs."""
Show = Callable[[str], None]
"""Shows what comes for a chat beside the answer. Neither blocks nor raises."""

_TIDIED_S = 60.0
_NOT_FROM_HERE = (
    "Nothing goes to {channel} from here: no gateway runs. Nothing was sent. Start one with `nanobot gateway`, then "
    "ask again."
)


@dataclass(frozen=True, slots=True)
class ModelSeen:
    """The model a session asks, for the chat to show."""

    name: str
    window_tokens: int
    provider: str
    reason: str


class Bot(Protocol):
    """What the terminal asks of a bot."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def workspace(self) -> Path:
        """Its folder."""
        ...

    def commands(self) -> Mapping[str, str]:
        """Its slash commands, and what each does."""
        ...

    def skills(self) -> Mapping[str, str]:
        """Skills it can use, and what each is for."""
        ...

    async def model(self, session_key: str) -> ModelSeen:
        """The model of this session. Raises NanobotError where it has none."""
        ...

    async def run_turn(
        self,
        message: InboundMessage,
        sink: "EventSink | None" = None,
        *,
        waiting: Joining | None = None,
        show: Show | None = None,
        attended: bool = False,
    ) -> "TurnResult":
        """The turn of a message from the terminal, to its end. Cancelling stops it; what was said is kept.

        `show` is for who does not listen to `messages` meanwhile: what comes for this chat is handed to it. `attended`:
        somebody is there who answers what the turn asks, with `answer`.
        """
        ...

    async def resume(self, session_key: str, sink: "EventSink", *, attended: bool = False) -> None:
        """Take up the turn of this session that was cut off, if there is one."""
        ...

    def answer(self, question: str, answer: "Answer") -> None:
        """Answer what the turn that runs here has asked."""
        ...

    async def stop_turn(self, session_key: str) -> bool:
        """Stop the turn that runs here; False where it has not begun."""
        ...

    def lines_wait(self, messages: Sequence[InboundMessage]) -> None:
        """These lines wait now, in the place of those said before; the turn that runs may take them."""
        ...

    async def shell(self, line: str, session_key: str) -> tuple[list[str], bool]:
        """Run a `!command`; the lines of its output, and whether it went well."""
        ...

    def messages(self, session_key: str) -> AsyncIterator[str]:
        """What comes for this chat beside its turns, until cancelled."""
        ...

    async def jobs_wait(self) -> str:
        """Why jobs that were made here do not run when they are due; empty where somebody runs them."""
        ...

    async def background_ends(self, session_key: str, begins: Callable[[Sequence[str]], None], show: Show) -> None:
        """Wait until nothing works for this session any more, and what came of it was shown. Where something does,
        `begins` is told first what that is. Cancelling only ends the waiting.
        """

    @property
    def is_tidying(self) -> bool:
        """Whether old messages are being moved into memory, which ends with this process."""
        ...

    async def tidied(self) -> None:
        """Wait for that, a minute at most."""
        ...


class OwnBot:
    """The bot of this process."""

    def __init__(self, runtime: "Runtime") -> None:
        """The agent gets the `message` tool as a gateway's has it, as far as this terminal reaches."""
        from nanobot.agent.tools.message import MessageTool  # not for who talks through a gateway
        from nanobot.wiring.walls import path_policy

        self._runtime = runtime
        paths = path_policy(runtime.config, runtime.data_dir, runtime.workspace)
        runtime.tools.register(MessageTool(runtime.bus, _OnlyHere(runtime), paths))

    @property
    def name(self) -> str:
        """What it is called."""
        return self._runtime.config.agents.defaults.bot_name

    @property
    def workspace(self) -> Path:
        """Its folder."""
        return self._runtime.workspace

    def commands(self) -> Mapping[str, str]:
        """Its slash commands."""
        return self._runtime.loop.commands.names()

    def skills(self) -> Mapping[str, str]:
        """Skills it can use."""
        return {skill.name: skill.description for skill in self._runtime.context.skills.skills() if skill.available}

    async def model(self, session_key: str) -> ModelSeen:
        """The model of this session."""
        import asyncio  # here already; only named where it is used

        session = await asyncio.to_thread(self._runtime.sessions.get_or_create, session_key)
        model = await self._runtime.models.get(session.metadata.get("model"))
        return ModelSeen(model.name, model.limits.window_tokens, model.provider_name, model.reason)

    async def run_turn(
        self,
        message: InboundMessage,
        sink: "EventSink | None" = None,
        *,
        waiting: Joining | None = None,
        show: Show | None = None,
        attended: bool = False,
    ) -> "TurnResult":
        """The turn of a message, recordings made text first."""
        message.content = await heard(self._runtime.config, message.content, message.media)
        turn = self._runtime.loop.run_turn(message, sink, waiting=waiting, attended=attended)
        if show is None:
            return await turn
        async with listening(self, message.session_key, show):
            return await turn

    async def resume(self, session_key: str, sink: "EventSink", *, attended: bool = False) -> None:
        """Take up what was cut off."""
        await self._runtime.loop.resume(session_key, sink, attended=attended)

    def answer(self, question: str, answer: "Answer") -> None:
        """Answer what the turn has asked."""
        self._runtime.questions.answer(question, answer)

    async def stop_turn(self, session_key: str) -> bool:
        """Stop the turn that runs."""
        return await self._runtime.loop.stop_turn(session_key)

    def lines_wait(self, messages: Sequence[InboundMessage]) -> None:
        """Nothing to say: the turn asks by itself."""

    async def shell(self, line: str, session_key: str) -> tuple[list[str], bool]:
        """Run a `!command`."""
        from nanobot.cli.shell_escape import shell_escape  # only who types one waits for it

        runtime = self._runtime
        return await shell_escape(
            line,
            runtime.tools,
            session_key=session_key,
            address=terminal_message(line, session_key).address,
            workspace=runtime.workspace,
            clock=runtime.clock,
        )

    async def messages(self, session_key: str) -> AsyncIterator[str]:
        """What comes over the bus. Nobody else is here to send what is for other channels."""
        while (message := await self._runtime.bus.consume_outbound()) is not None:
            if message.channel == CHANNEL:
                if message.kind in (OutboundKind.REPLY, OutboundKind.NOTICE) and message.content.strip():
                    yield message.content
                if message.receipt is not None:
                    message.receipt.settle()
            elif message.receipt is not None:
                message.receipt.fail(DeliveryFailedError(_NOT_FROM_HERE.format(channel=message.channel)))

    async def jobs_wait(self) -> str:
        """Asked in the store: another process may run them."""
        import asyncio  # here already

        from nanobot.cron.desk import NEEDS_GATEWAY  # who made a job has it loaded

        return "" if await asyncio.to_thread(self._runtime.cron().is_served) else NEEDS_GATEWAY

    async def background_ends(self, session_key: str, begins: Callable[[Sequence[str]], None], show: Show) -> None:
        """What works in this process, and what one that died has left."""
        background = self._runtime.background
        await background.take_up(session_key)
        if at_work := background.at_work(session_key):
            begins(at_work)
            async with listening(self, session_key, show):
                await background.all_shown(session_key)

    @property
    def is_tidying(self) -> bool:
        """Whether old messages are being moved into memory."""
        return self._runtime.upkeep.tidying.is_asking

    async def tidied(self) -> None:
        """Wait for that."""
        import asyncio  # here already

        with suppress(TimeoutError):
            async with asyncio.timeout(_TIDIED_S):
                await self._runtime.upkeep.tidying.settled()


class _OnlyHere:
    """The chats that this terminal knows of. Of the channels, none can be reached from here, and the bot says so."""

    def __init__(self, runtime: "Runtime") -> None:
        channels = runtime.config.channels.switched_on()
        self.names = [CHANNEL, *(name for name, is_on in channels.items() if is_on)]

    async def find(self, channel: str, name: str) -> str | None:
        """An id is what it is."""
        return name


@asynccontextmanager
async def listening(bot: Bot, session_key: str, show: Show) -> AsyncIterator[None]:
    """Show what comes for this chat, until the block ends."""
    import asyncio  # here already

    async def listen() -> None:
        async for text in bot.messages(session_key):
            show(text)

    hearing = asyncio.create_task(listen(), name="messages")
    try:
        yield
    finally:
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)
