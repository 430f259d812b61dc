"""The bot, as a program uses it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from nanobot.agent.events import Answer
from nanobot.agent.hooks import Hook
from nanobot.config.paths import DataPaths, absolute, get_config_path, get_data_dir
from nanobot.errors import NanobotError
from nanobot.sdk.result import RunResult
from nanobot.sdk.run import Approve, Backend, OriginalStream, RunOptions, RunRequest, RunStream, Watcher, split_hooks
from nanobot.utils.aio import finish

if TYPE_CHECKING:
    from nanobot.agent.memory.store import MemoryStore
    from nanobot.agent.tools.base import Tool
    from nanobot.cron.service import CronService
    from nanobot.providers.base import LLMProvider
    from nanobot.runtime.build import Runtime
    from nanobot.session.manager import SessionManager

T = TypeVar("T")


class Nanobot:
    """A bot. Runs of different sessions run at the same time; those of one session take turns.

    Open it with `async with`: it closes once the block and all its runs have ended. A run of a bot that is not open
    opens it, and closes it at its end.
    """

    def __init__(
        self,
        open_backend: Callable[[], AbstractAsyncContextManager[Backend]],
        *,
        watchers: Sequence[Watcher] = (),
        approve: Approve | None = None,
        instructions: str = "",
    ) -> None:
        """Use `from_config`, `local` or `connect`."""
        self._open_backend = open_backend
        self._watchers = watchers
        self._approve = approve
        self._instructions = instructions
        self._lock = asyncio.Lock()
        self._blocks = 0
        self._users = 0
        """Blocks and runs."""
        self._exit_stack = AsyncExitStack()
        self._backend: Backend | None = None

    @classmethod
    def from_config(
        cls,
        path: Path | str | None = None,
        *,
        config_path: Path | str | None = None,
        workspace: Path | str | None = None,
        model: str | None = None,
        model_preset: str | None = None,
        tools: "Sequence[Tool | Callable[..., Any]]" = (),
        hooks: Sequence[Hook | Watcher] = (),
        approve: Approve | None = None,
        instructions: str = "",
    ) -> Self:
        """Create a bot from a config file. Raises ConfigError.

        Without a path it is the default file, which need not exist.
        `model` is a model or a preset of the config. `tools`, `hooks`, `approve` and `instructions` are for every run,
        see RunOptions; those of a run come on top. `config_path` and `model_preset` are the original's names.
        """
        from nanobot.config.loader import load_config  # brings pydantic
        from nanobot.sdk.local import open_local

        file = absolute(path or config_path or get_config_path())
        config = load_config(file, must_exist=bool(path or config_path))
        folder = Path(workspace) if workspace else None
        turn_hooks, watchers = split_hooks(hooks)

        def open_backend() -> AbstractAsyncContextManager[Backend]:
            return open_local(
                config, file.parent, workspace=folder, model=model or model_preset, tools=tools, hooks=turn_hooks
            )

        return cls(open_backend, watchers=watchers, approve=approve, instructions=instructions)

    @classmethod
    def local(
        cls,
        *,
        model: "str | LLMProvider",
        api_key: str | None = None,
        api_base: str | None = None,
        workspace: Path | str | None = None,
        tools: "Sequence[Tool | Callable[..., Any]]" = (),
        hooks: Sequence[Hook | Watcher] = (),
        approve: Approve | None = None,
        instructions: str = "",
        limits: Mapping[str, Any] | None = None,
    ) -> Self:
        """Create a bot without a config file. It reads and writes nothing outside of its workspace.

        Without a `workspace` it has an empty folder that is deleted when it closes. `model` is a name with its provider
        (`openai/gpt-5`), or an LLMProvider; `api_base` is the URL of a server that speaks OpenAI chat completions. A
        key that is not given is taken from the environment. `limits` are the keys of the config's section. Raises
        ConfigError.
        """
        from nanobot.sdk.local import local_config, open_local

        config = local_config(model, api_key, api_base, limits or {})
        turn_hooks, watchers = split_hooks(hooks)

        given = absolute(workspace) if workspace else None

        @asynccontextmanager
        async def open_backend() -> AsyncIterator[Backend]:
            with TemporaryDirectory(ignore_cleanup_errors=True) if given is None else nullcontext(given) as opened:
                folder = Path(opened)
                async with open_local(
                    config, folder / ".nanobot", workspace=folder, model=model, tools=tools, hooks=turn_hooks
                ) as backend:
                    yield backend

        return cls(open_backend, watchers=watchers, approve=approve, instructions=instructions)

    @classmethod
    def connect(cls, url: str | None = None, *, token: str | None = None) -> Self:
        """Create a bot that runs in a gateway: that of this data folder, or the one at an address, whose API takes the
        token (`nanobot api key add NAME`). Opening it raises GatewayError if none runs.

        The gateway's config decides about model, tools and hooks.
        """
        from nanobot.sdk.remote import open_http_bot, open_socket_bot

        if url is not None:
            return cls(lambda: open_http_bot(url, token))
        state = DataPaths(get_data_dir()).state
        return cls(lambda: open_socket_bot(state))

    async def __aenter__(self) -> Self:
        await self._acquire()
        self._blocks += 1
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Leave the block that `async with` entered. Does nothing outside of one."""
        if self._blocks:
            self._blocks -= 1
            await self._release()

    @overload
    async def run(self, message: str, *, output: type[T], **options: Unpack[RunOptions]) -> RunResult[T]: ...
    @overload
    async def run(self, message: str, *, output: None = None, **options: Unpack[RunOptions]) -> RunResult[None]: ...
    @overload
    async def run(self, message: str, *, output: Any, **options: Unpack[RunOptions]) -> RunResult[Any]: ...
    async def run(self, message: str, *, output: Any = None, **options: Unpack[RunOptions]) -> RunResult[Any]:
        """Send a message and wait for the end of its turn. `options` are those of RunOptions.

        `output` is the form of the answer: a type that pydantic knows, or a JSON schema. Never raises for a failure of
        a model or a tool: the result has its outcome. Raises OutputInvalid if the model does not keep to the form,
        after two repairs. Cancelling stops the turn; what was done and said so far stays in the session.
        """
        return await self.stream(message, output=output, **options).result()

    @overload
    def stream(self, message: str, *, output: type[T], **options: Unpack[RunOptions]) -> RunStream[T]: ...
    @overload
    def stream(self, message: str, *, output: None = None, **options: Unpack[RunOptions]) -> RunStream[None]: ...
    @overload
    def stream(self, message: str, *, output: Any, **options: Unpack[RunOptions]) -> RunStream[Any]: ...
    def stream(self, message: str, *, output: Any = None, **options: Unpack[RunOptions]) -> RunStream[Any]:
        """Like `run`, to be iterated: yields the events of the turn. Leaving the loop stops it."""
        options["hooks"] = [*self._watchers, *options.get("hooks", ())]
        options["instructions"] = "\n\n".join(filter(None, [self._instructions, options.get("instructions", "")]))
        if not options.get("attended"):
            options.setdefault("approve", self._approve)
        return RunStream(RunRequest.of(message, output, options), self._use)

    async def run_streamed(self, message: str, **options: Unpack[RunOptions]) -> OriginalStream:
        """The original's `stream`, with its names of events."""
        return OriginalStream(self.stream(message, **options))

    def answer(self, question: str, answer: Answer) -> bool:
        """Answer the approval question of an attended run as the owner. Return False if it is not open."""
        return self._opened().answer(question, answer)

    async def stop(self, session: str) -> bool:
        """Stop the session's running turn. Return False if none runs."""
        return await self._opened().stop(session)

    def branch(self, session: str, at: str | None = None) -> str:
        """Copy a conversation and return the session of the copy. `at`: the turn id after which it is cut."""
        return self.sessions.branch(session, at)

    @property
    def sessions(self) -> "SessionManager":
        """The stored conversations."""
        return self._runtime().sessions

    @property
    def memory(self) -> "MemoryStore":
        """The owner's long-term memory."""
        return self._runtime().context.memory

    @property
    def cron(self) -> "CronService":
        """The jobs. They run in a gateway, or here after `start`."""
        return self._runtime().cron()

    def _opened(self) -> Backend:
        if self._backend is None:
            raise RuntimeError("open the bot first: async with Nanobot.from_config() as bot")
        return self._backend

    def _runtime(self) -> "Runtime":
        from nanobot.sdk.local import LocalBot  # as in `from_config`

        backend = self._opened()
        if not isinstance(backend, LocalBot):
            raise NanobotError("The gateway keeps its sessions, memory and jobs to itself: use from_config instead.")
        return backend.runtime

    @asynccontextmanager
    async def _use(self) -> AsyncIterator[Backend]:
        backend = await self._acquire()
        try:
            yield backend
        finally:
            await self._release()

    async def _acquire(self) -> Backend:
        """Open the bot for its first user."""
        async with self._lock:
            if self._backend is None:
                self._backend = await self._exit_stack.enter_async_context(self._open_backend())
            self._users += 1
            return self._backend

    async def _release(self) -> None:
        """Close the bot after its last user. Cancelling does not interrupt that."""
        await finish(self._close_unused())

    async def _close_unused(self) -> None:
        async with self._lock:
            self._users -= 1
            if not self._users:
                self._backend = None
                await self._exit_stack.aclose()
