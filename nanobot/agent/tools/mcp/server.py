"""One server: idle until it is needed, connected while it is used, and reconnected after the connection was lost.

Nothing runs in the background: a failed server is tried again by the next call, after a pause that grows with each
failure. A server that hangs, dies or lies affects only its own calls.
"""

import asyncio
import hashlib
import logging
import os
import re
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from nanobot.agent.tools.mcp.connection import McpConnection
from nanobot.agent.tools.mcp.listing import Listing, ListingFile, fetch_listing, tool_names
from nanobot.agent.tools.mcp.settings import ServerSettings, Transport
from nanobot.agent.tools.mcp.transport import (
    OpenClient,
    ServerReport,
    open_client,
    open_streams,
    resolve_program,
    server_environment,
)
from nanobot.errors import NanobotError
from nanobot.net.egress import NoSuchHostError
from nanobot.utils.clock import Clock
from nanobot.utils.files import make_private_folder
from nanobot.utils.storage_error import error_text

if TYPE_CHECKING:
    from mcp import Client

T = TypeVar("T")

logger = logging.getLogger(__name__)

RESOURCES, PROMPTS = "resources", "prompts"
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0
_MIN_ERROR_STATUS = 400
"""The lowest HTTP status that is an error."""
_MAX_WAIT_S = 3.0
_QUICK_LISTING_S = 1.0
"""A turn may wait this long for changed tools without anybody noticing."""
_CAUSE_WAIT_S = 0.5
"""The cause of a disconnect is known a moment after the disconnect itself."""
_RETIRED_IDLE_S = 30.0
"""A server that was removed from the config is stopped after this time without a call."""
_UNSAFE_IN_FILES = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class McpTimeouts:
    """Timeouts of servers."""

    to_connect_s: float = 60.0
    """For a server to start and complete the handshake; a first `npx` has to download it."""
    first_listing_s: float = 3.0
    """How long the first turn waits for servers whose tools are not known yet."""
    idle_s: float = 600.0
    """A program is stopped after this time without a call; the next call starts it again."""


class Phase(StrEnum):
    IDLE = "idle"
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ServerState:
    phase: Phase
    reason: str = ""
    """Why it failed last."""
    retry_in_s: float = 0.0


class ServerFailedError(NanobotError):
    """A server did not do what it was asked. The text is for the model."""


class OutcomeUnknownError(ServerFailedError):
    """The connection was lost during the request."""


class McpServer:
    """One server, shared by the whole process."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        state_dir: Path,
        clock: Clock,
        timeouts: McpTimeouts | None = None,
        open_client: OpenClient = open_client,
    ) -> None:
        """`state_dir` is the folder in which listings are stored, and the working directory of the server's program.

        Never start a program in the workspace: Python, Node and npx load modules and settings from their working
        directory, and untrusted content can make the agent write files into the workspace.
        """
        self.settings = settings
        self.listing: Listing | None = None
        """What the server offers, now or when it was last connected; None if unknown."""
        self.is_slow = False
        """Whether a turn recently waited for it in vain."""
        stem = _UNSAFE_IN_FILES.sub("_", settings.name)[:80]
        self._file = ListingFile(state_dir / f"{stem}-{settings.fingerprint}.json")
        name_hash = hashlib.sha256(settings.name.encode(errors="surrogatepass")).hexdigest()[:8]
        self._folder = Path(settings.cwd) if settings.cwd else state_dir / f"{stem}-{name_hash}"
        self._clock = clock
        self._timeouts = timeouts or McpTimeouts()
        self._open_client = open_client
        self._connection: McpConnection | None = None
        self._unclosed: set[McpConnection] = set()
        self._opening: asyncio.Task[McpConnection] | None = None
        self._reason = ""
        self._pause_s = 0.0
        self._next_try = 0.0
        self._changed = False
        self._relist_pause_s = 0.0
        self._next_relist = 0.0
        self._busy = 0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._retired = False

    @property
    def state(self) -> ServerState:
        """The present state."""
        if self._connection is not None and self._connection.is_open:
            return ServerState(Phase.READY)
        if self._opening is not None:
            return ServerState(Phase.STARTING, self._reason)
        if self._reason:
            return ServerState(Phase.FAILED, self._reason, max(self._next_try - self._clock.monotonic(), 0.0))
        return ServerState(Phase.IDLE)

    def offered_names(self, taken: AbstractSet[str] = frozenset()) -> dict[str, str]:
        """Return the offered name of each enabled tool, by the server's own name; none is in `taken`.

        Resources and prompts are one tool each, if the server has any. Empty if its tools are not known yet.
        """
        return {tool: name for tool, name in self._names(taken).items() if self.settings.offers(tool, name)}

    def _names(self, taken: AbstractSet[str] = frozenset()) -> dict[str, str]:
        """Return the same for all tools, enabled or not."""
        if self.listing is None:
            return {}
        own = dict.fromkeys(tool.name for tool in self.listing.tools)
        own |= {RESOURCES: None} if self.listing.resources else {}
        own |= {PROMPTS: None} if self.listing.prompts else {}
        return tool_names(self.settings.name, own, taken)

    @property
    def left_out(self) -> int:
        """Number of tools that are left out: too many, or too large."""
        return self.listing.left_out if self.listing is not None else 0

    def unknown_tools(self) -> list[str]:
        """Return names in `enabledTools` without a tool: typos, or tools of an older version."""
        known = {"*", *(name for pair in self._names().items() for name in pair)}
        return sorted(self.settings.enabled_tools - known) if self.listing is not None else []

    async def load_listing(self) -> None:
        """Load the stored listing. Never raises."""
        self.listing = await asyncio.to_thread(self._file.load)
        if self.listing is None:
            self.is_slow = await asyncio.to_thread(self._file.was_slow, self._clock.now())

    async def record_slowness(self) -> None:
        """Record that a turn waited in vain: for a while none waits for it again, in any process. Never raises."""
        self.is_slow = True
        await asyncio.to_thread(self._file.record_slowness)

    def start(self) -> "asyncio.Task[McpConnection] | None":
        """Start connecting, unless connected or failed a moment ago. The task may fail; nobody has to await it."""
        if self._opening is None and not self._closed and self.state.phase is not Phase.READY:
            if self._clock.monotonic() < self._next_try:
                return None
            self._opening = asyncio.create_task(self._open(), name=f"mcp {self.settings.name}")
            self._opening.add_done_callback(self._on_opened)
        return self._opening

    def _on_opened(self, opening: "asyncio.Task[McpConnection]") -> None:
        self._opening = None
        if not opening.cancelled():
            opening.exception()  # logged, and raised in the callers; mark it as retrieved

    async def connect(self) -> McpConnection:
        """Wait until connected; a cancelled call leaves the server starting. Raises ServerFailedError with the reason
        and what to do.
        """
        while not self._closed:
            if self._connection is not None and self._connection.is_open:
                return self._connection
            pause = self._next_try - self._clock.monotonic()
            if self._opening is None and pause > _MAX_WAIT_S:
                reason = self._describe_unreachable(self._reason)
                raise ServerFailedError(f"{reason} It is tried again in {pause:.0f} s.")
            if self._opening is None and pause > 0:
                await asyncio.sleep(pause)
            if (opening := self.start()) is not None:
                await asyncio.wait((opening,))
                if not opening.cancelled():
                    return opening.result()
        raise ServerFailedError(f"The MCP server {self.settings.name} is closed: nanobot is shutting down.")

    async def relist(self) -> None:
        """List the tools again, if the server reported a change. Never raises, and does not wait long.

        After a report without a change, or a slow listing, reports are ignored for a pause that doubles up to a minute.
        """
        connection, previous, started = self._connection, self.listing, self._clock.monotonic()
        if not self._changed or connection is None or not connection.is_open or started < self._next_relist:
            return
        self._changed = False
        try:
            async with asyncio.timeout(self._timeouts.first_listing_s):
                await self._list(connection)
        except Exception as error:  # isolate servers
            self._changed = True
            reason = error_text(error)
            logger.warning("The MCP server %s did not list its changed tools: %s", self.settings.name, reason)
        finished = self._clock.monotonic()
        is_worth_it = self.listing is not previous and finished - started < _QUICK_LISTING_S
        self._relist_pause_s = 0.0 if is_worth_it else _next_pause(self._relist_pause_s)
        self._next_relist = finished + self._relist_pause_s

    async def ask(self, request: Callable[["Client"], Awaitable[T]], *, repeatable: bool = False) -> T:
        """Send a request. One that was lost before it reached the server, or is repeatable, is sent once more.

        Raises ServerFailedError if the server is not available, OutcomeUnknownError if the connection was lost during
        the request, and otherwise what `request` raises: MCPError is the server's own answer.
        """
        self._busy += 1
        try:
            return await self._ask(request, repeatable=repeatable)
        finally:
            self._busy -= 1
            self._schedule_stop()

    def retire(self) -> None:
        """The config has it no more: stop it after a moment without a call. A running turn may still use it."""
        self._retired = True
        self._schedule_stop()

    async def close(self) -> None:
        """Stop the server, if it runs. Never raises, and does not wait long."""
        self._closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        self._drop_connection()
        await asyncio.gather(*(connection.close() for connection in self._unclosed))

    # -- requests --------------------------------------------------------------------------------------------------

    async def _ask(self, request: Callable[["Client"], Awaitable[T]], *, repeatable: bool) -> T:
        for last in (False, True):
            connection = await self.connect()
            try:
                return await request(connection.client)
            except Exception as error:  # any error may mean that the connection is lost; else it is raised again
                loss = await self._check_lost(connection, error)
                if loss is None:
                    raise
                if last or not (repeatable or loss.not_done):
                    if loss.not_done:
                        raise ServerFailedError(self._describe_unreachable(loss.reason)) from error
                    raise OutcomeUnknownError(
                        f"The connection to the MCP server {self.settings.name} was lost during the call "
                        f"({loss.reason}). It may or may not have been done: check before you call again."
                    ) from error
                logger.info("The MCP server %s was lost (%s); asking it again.", self.settings.name, loss.reason)
        raise AssertionError("the second try returns or raises")

    async def _check_lost(self, connection: McpConnection, error: Exception) -> "_ConnectionLost | None":
        """Return what a lost connection means for the request; None if the connection is fine. Closes a lost one."""
        from mcp.shared.exceptions import MCPError
        from mcp.types import CONNECTION_CLOSED

        closed = isinstance(error, MCPError) and error.code == CONNECTION_CLOSED
        report = connection.report
        if not closed and connection.is_open and not report.session_lost:
            return None
        if not report.session_lost:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CAUSE_WAIT_S):
                    await connection.closed.wait()
        if self._connection is connection:
            self._drop_connection()
        if report.session_lost:
            return _ConnectionLost("it lost our session", not_done=True)
        reason = await self._describe_failure(connection.cause or error, report)
        return _ConnectionLost(reason, not_done=_was_never_sent(connection.cause))

    # -- connecting ------------------------------------------------------------------------------------------------

    async def _open(self) -> McpConnection:
        self._drop_connection()
        use_legacy = self.listing is not None and self.listing.is_legacy
        report = ServerReport()
        connection = McpConnection(report, self._on_tools_changed)
        self._unclosed = {connection, *(other for other in self._unclosed if not other.closed.is_set())}
        streams = open_streams(self.settings, self._folder, self._open_client, report, connection.start_closing)
        try:
            async with asyncio.timeout(self._timeouts.to_connect_s):
                await self._check()
                await connection.open(streams, use_legacy=use_legacy)
                await self._list(connection)
        except Exception as error:  # isolate servers
            connection.start_closing()
            self._pause_s = _next_pause(self._pause_s)
            self._next_try = self._clock.monotonic() + self._pause_s
            if use_legacy and self.listing is not None:
                self.listing = None  # it may have been upgraded: try the newest handshake next
            log = logger.info if self._reason else logger.warning
            self._reason = await self._describe_failure(connection.cause or error, report)
            log("The MCP server %s cannot be used: %s", self.settings.name, self._reason)
            raise ServerFailedError(self._describe_unreachable(self._reason)) from error
        except BaseException:
            connection.start_closing()
            raise
        if self._reason:
            logger.info("The MCP server %s is back.", self.settings.name)
        self._reason, self._pause_s, self._next_try = "", 0.0, 0.0
        self._connection = connection
        self._schedule_stop()
        return connection

    def _drop_connection(self) -> None:
        """Close the connection in the background: a program may take seconds to end."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.start_closing()

    async def _check(self) -> None:
        """Check what can be known before anything is imported or started. Raises NanobotError."""
        if self.settings.transport is None:
            raise ServerFailedError(
                f"tools.mcpServers.{self.settings.name} names neither a command nor a url that fits its type."
            )
        if self.settings.transport is Transport.STDIO:
            await resolve_program(self.settings, server_environment(os.environ, self.settings), self._folder)
            await asyncio.to_thread(self._make_folder)

    def _make_folder(self) -> None:
        if not self.settings.cwd:
            make_private_folder(self._folder)
        elif not (self._folder.is_absolute() and self._folder.is_dir()):
            raise ServerFailedError(
                f"tools.mcpServers.{self.settings.name}.cwd is {self.settings.cwd!r}, which is not a folder. Give the "
                "full path of an existing folder, or remove the setting."
            )

    async def _list(self, connection: McpConnection) -> None:
        self._changed = False
        listing = await fetch_listing(connection.client)
        if listing != self.listing:
            self.listing = listing
            await asyncio.to_thread(self._file.save, listing)

    def _on_tools_changed(self) -> None:
        self._changed = True

    def _schedule_stop(self) -> None:
        """Stop a program that was not used for a while."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        may_stop = self.settings.transport is Transport.STDIO or self._retired
        if may_stop and not self._busy and not self._closed:
            idle_s = min(self._timeouts.idle_s, _RETIRED_IDLE_S) if self._retired else self._timeouts.idle_s
            self._idle_timer = asyncio.get_running_loop().call_later(idle_s, self._drop_connection)

    # -- texts -----------------------------------------------------------------------------------------------------

    async def _describe_failure(self, error: Exception, report: ServerReport) -> str:
        """Explain the failure: what went wrong, and what the server itself reported."""
        text = error_text(error)
        if isinstance(error, TimeoutError):
            text = f"it did not answer in time ({self._timeouts.to_connect_s:g} s)"
        elif _was_never_sent(error) and not isinstance(error, NoSuchHostError):
            text = f"nothing answers at {self.settings.location}"
        elif self._connection is None and report.http_status >= _MIN_ERROR_STATUS:  # the SDK reports all of them alike
            text = f"{self.settings.location} answers {report.http_status}; look at the url and the headers"
        reported = await report.describe() if self.settings.transport is Transport.STDIO else ""
        return "; ".join(part for part in (text, reported) if part)[:1000]

    def _describe_unreachable(self, reason: str) -> str:
        return f"The MCP server {self.settings.name} cannot be reached: {reason.rstrip('.')}."


@dataclass(frozen=True, slots=True)
class _ConnectionLost:
    reason: str
    not_done: bool
    """Whether the server certainly did not begin."""


def _next_pause(pause_s: float) -> float:
    return min(max(pause_s * 2, FIRST_PAUSE_S), MAX_PAUSE_S)


def _was_never_sent(cause: Exception | None) -> bool:
    import httpx2

    return isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout | NoSuchHostError)
