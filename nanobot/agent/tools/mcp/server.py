"""One server: idle until it is needed, connected while it is used, and reconnected after the connection was lost.

A failed server is tried again by the next call, after a pause that grows with each failure. A server that hangs, dies
or lies affects only its own calls.
"""

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from nanobot.agent.tools.mcp.listing import Listing, fetch_listing, load_listing, save_listing, tool_names
from nanobot.agent.tools.mcp.transport import ServerReport, open_streams
from nanobot.config.schema import McpServerConfig
from nanobot.errors import NanobotError
from nanobot.net.egress import NetworkPolicy, NoSuchHostError
from nanobot.utils.clock import Clock
from nanobot.utils.storage_error import error_text

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client.session import IncomingMessage

T = TypeVar("T")

logger = logging.getLogger(__name__)

RESOURCES, PROMPTS = "resources", "prompts"
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0
_MAX_WAIT_S = 3.0
_CAUSE_WAIT_S = 0.5
"""The cause of a disconnect is known a moment after the disconnect itself."""
_CLOSE_TIMEOUT_S = 8.0
"""The SDK gives a program two seconds to exit by itself, two after SIGTERM, and two after SIGKILL."""
_RETIRED_IDLE_S = 30.0
"""A server that was removed from the config is stopped after this time without a call."""


@dataclass(frozen=True, slots=True)
class McpTimeouts:
    to_connect_s: float = 60.0
    """For a server to start and complete the handshake; a first `npx` has to download it."""
    first_listing_s: float = 3.0
    """How long the first turn waits for servers whose tools are not known yet."""
    idle_s: float = 600.0
    """A program is stopped after this time without a call; the next call starts it again."""


class Phase(StrEnum):
    IDLE = "idle, started by its first call"
    STARTING = "starting"
    READY = "connected"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ServerState:
    """`reason` is why it failed last."""

    phase: Phase
    reason: str = ""
    retry_in_s: float = 0.0


class ServerFailedError(NanobotError):
    """A server did not do what it was asked. The text is for the model."""


class _Connection:
    """A connection, used by any number of calls at once. Once it is closing, it never comes back.

    The SDK's context managers have to be left in the task that entered them, so each connection is a task.
    """

    def __init__(self) -> None:
        self.report = ServerReport()
        self.ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        """The SDK's client once it can be used, or the ServerFailedError why it cannot. Nobody has to await it."""
        self.ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
        self.closing = asyncio.Event()
        self.cause: Exception | None = None
        """The error that ended the connection, if any."""
        self.task: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        return self.ready.done() and not self.closing.is_set()

    def start_closing(self, cause: Exception | None = None) -> None:
        """Close in the background: a program may take seconds to end."""
        if self.closing.is_set():  # a second cancellation would break off the SDK's shutdown of the program
            return
        self.cause = cause
        self.closing.set()
        if self.task is not None and not self.ready.done():
            self.task.cancel()


class McpServer:
    """One server, shared by the whole process."""

    def __init__(
        self,
        name: str,
        config: McpServerConfig,
        *,
        state_dir: Path,
        clock: Clock,
        network: NetworkPolicy | None = None,
        timeouts: McpTimeouts | None = None,
    ) -> None:
        """`state_dir` is the folder in which listings are stored, and the working directory of the server's program.

        Never start a program in the workspace: Python, Node and npx load modules and settings from their working
        directory, and untrusted content can make the agent write files into the workspace.
        """
        self.name = name
        self.config = config
        self.listing: Listing | None = None
        """What the server offers, now or when it was last connected; None if unknown."""
        self.has_changed = False
        """Whether it reported changed tools since they were listed."""
        stem = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:80]
        # Everything that determines which tools the server has, without values that may be secrets.
        source = [config.command, config.args, config.cwd, config.url, config.transport]
        source += [sorted(config.env or ()), sorted(config.headers or ())]
        self._loaded = False
        self._file = state_dir / f"{stem}-{_hash(json.dumps(source))}.json"
        self._folder = config.folder or state_dir / f"{stem}-{_hash(name)}"
        self._clock = clock
        self._network = network or NetworkPolicy()
        self._timeouts = timeouts or McpTimeouts()
        self._connection: _Connection | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        """Connections that are not released yet."""
        self._reason = ""
        self._pause_s = 0.0
        self._next_try = 0.0
        self._busy = 0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._retired = False

    @property
    def state(self) -> ServerState:
        connection = self._connection
        if connection is not None and not connection.ready.done():
            return ServerState(Phase.STARTING, self._reason)
        if connection is not None and connection.is_open:
            return ServerState(Phase.READY)
        if self._reason:
            return ServerState(Phase.FAILED, self._reason, max(self._next_try - self._clock.monotonic(), 0.0))
        return ServerState(Phase.IDLE)

    @property
    def left_out(self) -> int:
        """Number of tools that are left out: too many."""
        return self.listing.left_out if self.listing is not None else 0

    def offered_names(self, taken: AbstractSet[str] = frozenset()) -> dict[str, str]:
        """Return the offered name of each enabled tool, by the server's own name; none is in `taken`.

        Resources and prompts are one tool each, if the server has any. Empty if its tools are not known yet.
        """
        enabled = set(self.config.enabled_tools)
        return {tool: name for tool, name in self._names(taken).items() if not enabled.isdisjoint({"*", tool, name})}

    def unknown_tools(self) -> list[str]:
        """Return names in `enabledTools` without a tool: typos, or tools of an older version."""
        known = {"*", *(name for pair in self._names(frozenset()).items() for name in pair)}
        return sorted(set(self.config.enabled_tools) - known) if self.listing is not None else []

    def _names(self, taken: AbstractSet[str]) -> dict[str, str]:
        listing = self.listing or Listing(())
        own = dict.fromkeys(tool.name for tool in listing.tools)
        own |= {RESOURCES: None} if listing.resources else {}
        own |= {PROMPTS: None} if listing.prompts else {}
        return tool_names(self.name, own, taken)

    async def load_listing(self) -> None:
        """Load the stored listing, once. Never raises."""
        if not self._loaded:
            self._loaded = True
            self.listing = await asyncio.to_thread(load_listing, self._file)

    def start(self) -> "_Connection | None":
        """Return the connection, maybe one that is starting; None after a failure a moment ago."""
        if self._connection is None or (self._connection.ready.done() and not self._connection.is_open):
            if self._closed or self._clock.monotonic() < self._next_try:
                return None
            self._connection = _Connection()
            task = asyncio.create_task(self._run(self._connection), name=f"mcp {self.name}")
            self._connection.task = task
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return self._connection

    async def connect(self) -> "_Connection":
        """Wait until connected; a cancelled call leaves the server starting. Raises ServerFailedError with the reason
        and what to do.
        """
        while not self._closed:
            if (connection := self.start()) is not None:
                await asyncio.wait((connection.ready,))
                connection.ready.result()
                if connection.is_open:
                    return connection
            elif (pause := self._next_try - self._clock.monotonic()) > _MAX_WAIT_S:
                raise ServerFailedError(f"{self._unreachable(self._reason)} It is tried again in {pause:.0f} s.")
            else:
                await asyncio.sleep(max(pause, 0.0))
        raise self._closed_error()

    async def ask(self, request: Callable[["Client"], Awaitable[T]], *, repeatable: bool = False) -> T:
        """Send a request. One that was lost before it reached the server, or is repeatable, is sent once more.

        Raises ServerFailedError if the server is not available or was lost during the request, and otherwise what
        `request` raises: MCPError is the server's own answer.
        """
        self._busy += 1
        try:
            for last in (False, True):
                connection = await self.connect()
                try:
                    return await request(connection.ready.result())
                except Exception as error:  # any error may mean that the connection is lost; else it is raised again
                    from mcp.shared.exceptions import MCPError
                    from mcp.types import CONNECTION_CLOSED

                    is_closed = isinstance(error, MCPError) and error.code == CONNECTION_CLOSED
                    if connection.is_open and not (is_closed or connection.report.session_lost):
                        raise
                    reason, not_done = await self._explain_loss(connection, error)
                    if last or not (repeatable or not_done):
                        raise ServerFailedError(
                            self._unreachable(reason)
                            if not_done
                            else f"The connection to the MCP server {self.name} was lost during the call ({reason}). "
                            "It may or may not have been done: check before you call again."
                        ) from error
                    logger.info("The MCP server %s was lost (%s); asking it again.", self.name, reason)
            raise AssertionError("the second try returns or raises")
        finally:
            self._busy -= 1
            self._schedule_stop()

    async def relist(self) -> None:
        """List the tools again, if it is connected. Never raises, and does not wait long."""
        connection = self._connection
        if connection is None or not connection.is_open:
            return
        try:
            async with asyncio.timeout(self._timeouts.first_listing_s):
                await self._list(connection.ready.result())
        except Exception as error:  # isolate servers; asked again once it reports another change
            logger.warning("The MCP server %s did not list its changed tools: %s", self.name, error_text(error))

    def retire(self) -> None:
        """The config has it no more: stop it after a moment without a call. A running turn may still use it."""
        self._retired = True
        self._schedule_stop()

    async def close(self) -> None:
        """Stop the server, if it runs. Never raises, and does not wait long."""
        self._closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._drop_connection()
        for _ in range(2):
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=_CLOSE_TIMEOUT_S)
            for task in self._tasks:
                task.cancel()

    # -- the connection --------------------------------------------------------------------------------------------

    async def _run(self, connection: _Connection) -> None:
        """Connect, list the tools, and stay until the connection is to be closed, or is lost."""
        too_late = asyncio.get_running_loop().call_later(
            self._timeouts.to_connect_s, connection.start_closing, TimeoutError()
        )
        use_legacy = self.listing is not None and self.listing.is_legacy
        try:
            await self._serve(connection, use_legacy, too_late)
        except asyncio.CancelledError:  # it is closing, or takes too long
            pass
        except Exception as error:  # isolate servers: the callers get the reason
            while isinstance(error, ExceptionGroup):  # task groups wrap what they raise
                error = error.exceptions[0]
            connection.cause = connection.cause or error
            logger.debug("A connection to an MCP server ended.", exc_info=True)
        finally:
            too_late.cancel()
            connection.closing.set()
        if connection.ready.done():
            return
        if self._closed:
            connection.ready.set_exception(self._closed_error())
            return
        self._pause_s = min(max(self._pause_s * 2, FIRST_PAUSE_S), MAX_PAUSE_S)
        self._next_try = self._clock.monotonic() + self._pause_s
        if use_legacy:
            self.listing = None  # it may have been upgraded: try the newest handshake next
        log = logger.info if self._reason else logger.warning
        cause = connection.cause or ConnectionError("it hung up during the handshake")
        self._reason = await self._describe_failure(cause, connection.report)
        log("The MCP server %s cannot be used: %s", self.name, self._reason)
        connection.ready.set_exception(ServerFailedError(self._unreachable(self._reason)))

    async def _serve(self, connection: _Connection, use_legacy: bool, too_late: asyncio.TimerHandle) -> None:
        await asyncio.to_thread(import_module, "mcp")  # 0.6 s of imports, off the event loop
        for name in ("mcp", "client"):  # the SDK's; we report lost connections ourselves, in a line
            logging.getLogger(name).setLevel(logging.CRITICAL)
        from mcp import Client
        from mcp.types import Implementation

        # No roots: a file server would use them instead of the folders the owner gave it. No sampling and no
        # elicitation either: the SDK declines them.
        manager = Client(
            open_streams(
                self.name, self.config, self._folder, self._network, connection.report, connection.start_closing
            ),
            client_info=Implementation(name="nanobot", version=version("nanobot")),
            message_handler=self._on_message,
            mode="legacy" if use_legacy else "auto",
            cache=None,
        )
        async with manager as client:
            listening = asyncio.create_task(self._listen_for_changes(client))
            try:
                await self._list(client)
                if self._reason:
                    logger.info("The MCP server %s is back.", self.name)
                self._reason, self._pause_s, self._next_try = "", 0.0, 0.0
                too_late.cancel()
                connection.ready.set_result(client)
                self._schedule_stop()
                await connection.closing.wait()
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)

    async def _on_message(self, message: "IncomingMessage") -> None:
        from mcp.types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self.has_changed = True

    async def _listen_for_changes(self, client: "Client") -> None:
        """Listen for changed tools, if the newest protocol has a stream of its own for them."""
        tools = client.server_capabilities.tools
        if client.session.discover_result is None or tools is None or not tools.list_changed:
            return
        with suppress(Exception):  # a server without such a stream: its tools are listed at the next connection
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self.has_changed = True

    async def _list(self, client: "Client") -> None:
        self.has_changed = False
        listing = await fetch_listing(client)
        if listing != self.listing:
            self.listing = listing
            await asyncio.to_thread(save_listing, self._file, listing)

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.start_closing()

    def _schedule_stop(self) -> None:
        """Stop a program that was not used for a while."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if (self.config.transport == "stdio" or self._retired) and not self._busy and not self._closed:
            idle_s = min(self._timeouts.idle_s, _RETIRED_IDLE_S) if self._retired else self._timeouts.idle_s
            self._idle_timer = asyncio.get_running_loop().call_later(idle_s, self._drop_connection)

    # -- failures --------------------------------------------------------------------------------------------------

    async def _explain_loss(self, connection: _Connection, error: Exception) -> tuple[str, bool]:
        """Drop a lost connection. Return why it was lost, and whether the request surely had no effect."""
        if connection.report.session_lost:
            reason, not_done = "it lost our session", True
        else:
            if connection.task is not None:
                await asyncio.wait((connection.task,), timeout=_CAUSE_WAIT_S)
            reason = await self._describe_failure(connection.cause or error, connection.report)
            not_done = _was_never_sent(connection.cause)
        if self._connection is connection:
            self._drop_connection()
        return reason, not_done

    async def _describe_failure(self, error: Exception, report: ServerReport) -> str:
        """Explain the failure: what went wrong, and what the server itself reported."""
        text, location = error_text(error), self.config.location
        if isinstance(error, TimeoutError):
            text = f"it did not answer in time ({self._timeouts.to_connect_s:g} s)"
        elif _was_never_sent(error) and not isinstance(error, NoSuchHostError):
            text = f"nothing answers at {location}"
        elif report.http_status >= 400:  # the SDK reports all of them alike
            text = f"{location} answers {report.http_status}; look at the url and the headers"
        reported = await report.describe() if self.config.transport == "stdio" else ""
        return "; ".join(part for part in (text, reported) if part)[:1000]

    def _closed_error(self) -> ServerFailedError:
        return ServerFailedError(f"The MCP server {self.name} is closed: nanobot is shutting down.")

    def _unreachable(self, reason: str) -> str:
        return f"The MCP server {self.name} cannot be reached: {reason.rstrip('.')}."


def _was_never_sent(cause: Exception | None) -> bool:
    import httpx2

    return isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout | NoSuchHostError)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]
