"""The SDK without asyncio: `nanobot.sdk.Nanobot` on an event loop in a thread of its own.

with Nanobot.from_config() as bot:
    for event in bot.stream("Write a haiku about SQLite"):
        print(event.delta, end="")

It works where an event loop runs already, such as in a notebook. Functions that are tools or hooks run in that thread,
or in threads of it.
"""

from collections.abc import Callable, Coroutine, Generator
from contextlib import ExitStack
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, Unpack, overload

from anyio.from_thread import BlockingPortal, start_blocking_portal

from nanobot import sdk
from nanobot.agent.events import Answer, TurnEvent
from nanobot.sdk.result import RunResult
from nanobot.sdk.run import RunOptions

if TYPE_CHECKING:
    from nanobot.agent.memory.store import MemoryStore
    from nanobot.cron.service import CronService
    from nanobot.session.manager import SessionManager

P = ParamSpec("P")
T = TypeVar("T")

__all__ = ["Nanobot", "RunStream"]


def _twin(create: "Callable[P, sdk.Nanobot]") -> "Callable[P, Nanobot]":
    def create_twin(*args: P.args, **kwargs: P.kwargs) -> "Nanobot":
        return Nanobot(create(*args, **kwargs))

    return create_twin


class Nanobot:
    """The twin of `nanobot.sdk.Nanobot`: the same methods, which block. Threads may share it."""

    from_config = staticmethod(_twin(sdk.Nanobot.from_config))
    local = staticmethod(_twin(sdk.Nanobot.local))
    connect = staticmethod(_twin(sdk.Nanobot.connect))

    def __init__(self, bot: "sdk.Nanobot") -> None:
        self._bot = bot
        self._lock = RLock()
        self._blocks = 0
        self._exit_stack = ExitStack()
        self._portal: BlockingPortal
        """The event loop, in a block."""

    def __enter__(self) -> Self:
        with self._lock, ExitStack() as stack:
            if not self._blocks:
                self._portal = stack.enter_context(start_blocking_portal())
                stack.enter_context(self._portal.wrap_async_context_manager(self._bot))
                self._exit_stack = stack.pop_all()
            self._blocks += 1
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            self._blocks -= 1
            if not self._blocks:
                self._exit_stack.__exit__(*exc_info)  # type: ignore[arg-type]

    def _call(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run it on the loop of the bot, which is opened for that if it is not open."""
        with self:
            result: T = self._portal.call(function, *args)
        return result

    @overload
    def run(self, message: str, *, output: type[T], **options: Unpack[RunOptions]) -> RunResult[T]: ...
    @overload
    def run(self, message: str, *, output: None = None, **options: Unpack[RunOptions]) -> RunResult[None]: ...
    @overload
    def run(self, message: str, *, output: Any, **options: Unpack[RunOptions]) -> RunResult[Any]: ...
    def run(self, message: str, *, output: Any = None, **options: Unpack[RunOptions]) -> RunResult[Any]:
        """See `nanobot.sdk.Nanobot.run`."""
        return self._call(partial(self._bot.run, message, output=output, **options))

    @overload
    def stream(self, message: str, *, output: type[T], **options: Unpack[RunOptions]) -> "RunStream[T]": ...
    @overload
    def stream(self, message: str, *, output: None = None, **options: Unpack[RunOptions]) -> "RunStream[None]": ...
    @overload
    def stream(self, message: str, *, output: Any, **options: Unpack[RunOptions]) -> "RunStream[Any]": ...
    def stream(self, message: str, *, output: Any = None, **options: Unpack[RunOptions]) -> "RunStream[Any]":
        """See `nanobot.sdk.Nanobot.stream`."""
        return RunStream(self, self._bot.stream(message, output=output, **options))

    def answer(self, question: str, answer: Answer) -> bool:
        """See `nanobot.sdk.Nanobot.answer`."""
        with self:
            return self._portal.call(self._bot.answer, question, answer)

    def stop(self, session: str) -> bool:
        """See `nanobot.sdk.Nanobot.stop`."""
        return self._call(self._bot.stop, session)

    def branch(self, session: str, at: str | None = None) -> str:
        """See `nanobot.sdk.Nanobot.branch`."""
        return self._bot.branch(session, at)

    @property
    def sessions(self) -> "SessionManager":
        """The stored conversations."""
        return self._bot.sessions

    @property
    def memory(self) -> "MemoryStore":
        """The owner's long-term memory."""
        return self._bot.memory

    @property
    def cron(self) -> "CronService":
        """The jobs."""
        return self._bot.cron


class RunStream(Generic[T]):
    """The twin of `nanobot.sdk.RunStream`."""

    def __init__(self, bot: Nanobot, stream: "sdk.RunStream[T]") -> None:
        self._bot = bot
        self._stream = stream

    def __iter__(self) -> Generator[TurnEvent, None, None]:
        with self._bot:
            portal = self._bot._portal  # noqa: SLF001 both classes are one module's
            events = aiter(self._stream)
            try:
                while (event := portal.call(anext, events, None)) is not None:
                    yield event
            finally:
                portal.call(events.aclose)

    def result(self) -> RunResult[T]:
        """See `nanobot.sdk.RunStream.result`."""
        return self._bot._call(self._stream.result)  # noqa: SLF001 as above

    def stop(self) -> RunResult[T]:
        """See `nanobot.sdk.RunStream.stop`."""
        return self._bot._call(self._stream.stop)  # noqa: SLF001 as above
