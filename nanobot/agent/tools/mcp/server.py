"""The life of one server: asleep until it is needed, connected while it is used, and reached anew after it was lost.

Nothing runs beside the calls: a server that failed is tried again when somebody next wants something of it, not before
a pause that grows with each failure. One that hangs, dies or lies costs nothing but its own calls.
"""

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from nanobot.agent.tools.mcp.link import Link
from nanobot.agent.tools.mcp.listing import Listing, ListingFile, listing_of
from nanobot.agent.tools.mcp.names import offered_names
from nanobot.agent.tools.mcp.program import Spoken, program_of, server_environment
from nanobot.agent.tools.mcp.remote import OpenClient, open_client, remote_streams
from nanobot.agent.tools.mcp.settings import ServerSettings, Wire
from nanobot.agent.tools.mcp.stdio import stdio_streams
from nanobot.errors import NanobotError
from nanobot.security.network import NoSuchHostError
from nanobot.utils.clock import Clock

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client._transport import TransportStreams

T = TypeVar("T")

logger = logging.getLogger(__name__)

RESOURCES, PROMPTS = "resources", "prompts"
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
_ERRORS = 400
"""From here on a status of HTTP is one."""
_WORTH_WAITING_S = 3.0
_QUICK_S = 1.0
"""So long a turn waits for tools that have changed, and nobody minds."""
_TO_KNOW_WHY_S = 0.5
"""Why a connection ended is known a moment later than that it did."""
_UNSAFE_IN_FILES = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class McpPatience:
    """How long is waited for what."""

    to_connect_s: float = 60.0
    """For a server to start and to shake hands; a first `npx` has to download it."""
    first_listing_s: float = 3.0
    """How long the first turn waits for servers nobody has met yet."""
    idle_s: float = 600.0
    """After so long without a call a program is let go; the next call starts it again."""


class Phase(StrEnum):
    """How a server is."""

    IDLE = "idle"
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ServerState:
    """How it is, for a person."""

    phase: Phase
    reason: str = ""
    """Why it failed last."""
    retry_in_s: float = 0.0


class ServerFailedError(NanobotError):
    """A server did not do what it was asked. The text is for the model."""


class OutcomeUnknownError(ServerFailedError):
    """The connection was lost while the server was at it."""


class McpServer:
    """One server, shared by everybody of this process."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        memory: Path,
        workspace: Path,
        clock: Clock,
        patience: McpPatience | None = None,
        client: OpenClient = open_client,
    ) -> None:
        """`memory` is the folder in which listings are remembered."""
        self.settings = settings
        self.listing: Listing | None = None
        """What it offers, as far as is known: from now, or from the last time."""
        self.is_slow = False
        """Whether it kept somebody waiting a while ago, and in vain."""
        file = memory / f"{_UNSAFE_IN_FILES.sub('_', settings.name)[:80]}-{settings.fingerprint}.json"
        self._file = ListingFile(file, settings.fingerprint)
        self._workspace = workspace
        self._clock = clock
        self._patience = patience or McpPatience()
        self._client = client
        self._link: Link | None = None
        self._status = 0
        """How an address answered what it was last asked, as HTTP says it."""
        self._opening: asyncio.Task[Link] | None = None
        self._spoken = Spoken()
        self._reason = ""
        self._pause_s = 0.0
        self._next_try = 0.0
        self._changed = False
        self._fresh_pause_s = 0.0
        self._next_freshening = 0.0
        self._busy = 0
        self._idle: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def state(self) -> ServerState:
        """How it is now."""
        if self._link is not None and not self._link.gone.is_set():
            return ServerState(Phase.READY)
        if self._opening is not None:
            return ServerState(Phase.STARTING, self._reason)
        if self._reason:
            return ServerState(Phase.FAILED, self._reason, max(self._next_try - self._clock.monotonic(), 0.0))
        return ServerState(Phase.IDLE)

    def offered(self, taken: AbstractSet[str] = frozenset()) -> dict[str, str]:
        """What it has and its owner wants, by its own name, and the name it goes by here; none of these is taken.

        Its resources and its prompts, where it has some, are a tool each. Nothing of a stranger.
        """
        return {tool: name for tool, name in self._names(taken).items() if self.settings.offers(tool, name)}

    def _names(self, taken: AbstractSet[str] = frozenset()) -> dict[str, str]:
        """All that it has, wanted or not, and the name that each would go by."""
        if self.listing is None:
            return {}
        own = dict.fromkeys(tool.name for tool in self.listing.tools)
        own |= {RESOURCES: None} if self.listing.resources else {}
        own |= {PROMPTS: None} if self.listing.prompts else {}
        return offered_names(self.settings.name, own, taken)

    @property
    def left_out(self) -> int:
        """How many of its tools are left out: too many, or too large."""
        return self.listing.left_out if self.listing is not None else 0

    def unknown_tools(self) -> list[str]:
        """Names in `enabledTools` that it has nothing for: a slip, or a tool of an older version of it."""
        known = {"*", *(name for pair in self._names().items() for name in pair)}
        return sorted(self.settings.enabled_tools - known) if self.listing is not None else []

    async def recall(self) -> None:
        """Take up what is remembered of it. Never raises."""
        self.listing = await asyncio.to_thread(self._file.load)
        if self.listing is None:
            self.is_slow = await asyncio.to_thread(self._file.was_slow, self._clock.now())

    async def note_slowness(self) -> None:
        """It kept a turn waiting: for a while nobody waits for it again, another process neither. Never raises."""
        self.is_slow = True
        await asyncio.to_thread(self._file.note_slowness)

    def start(self) -> asyncio.Task[Link] | None:
        """Begin to connect, unless it is or is about to be, or failed a moment ago. The task may fail; nobody has to
        wait for it."""
        if self._closed or self.state.phase is Phase.READY:
            return None
        if self._opening is None:
            if self._clock.monotonic() < self._next_try:
                return None
            self._opening = asyncio.create_task(self._open(), name=f"mcp {self.settings.name}")
            self._opening.add_done_callback(self._opened)
        return self._opening

    async def connect(self) -> None:
        """Be connected. Raises ServerFailedError with the reason and what to do."""
        await self._linked()

    async def freshen(self) -> None:
        """Ask for its tools again, if it said that they have changed. Never raises, and does not wait long.

        One that cries wolf, or keeps the turn waiting, is believed again after a pause that doubles up to a minute.
        """
        link, known, began = self._link, self.listing, self._clock.monotonic()
        if not self._changed or link is None or link.gone.is_set() or began < self._next_freshening:
            return
        self._changed = False
        try:
            async with asyncio.timeout(self._patience.first_listing_s):
                await self._list(link)
        except Exception as error:  # the wall of a connection
            self._changed = True
            why = str(error) or type(error).__name__
            logger.warning("The MCP server %s did not tell its changed tools: %s", self.settings.name, why)
        ended = self._clock.monotonic()
        is_worth_it = self.listing is not known and ended - began < _QUICK_S
        self._fresh_pause_s = 0.0 if is_worth_it else _next_pause(self._fresh_pause_s)
        self._next_freshening = ended + self._fresh_pause_s

    async def ask(self, request: Callable[["Client"], Awaitable[T]], *, repeatable: bool = False) -> T:
        """Ask the server. What was lost before the server had it, or may be done twice, is asked once more.

        Raises ServerFailedError where the server cannot be had, OutcomeUnknownError where it was lost on the way, and
        else what `request` does: MCPError is what the server itself answered.
        """
        self._busy += 1
        try:
            return await self._ask(request, repeatable=repeatable)
        finally:
            self._busy -= 1
            self._rest()

    async def close(self) -> None:
        """End it, if it runs. Never raises, and does not wait long."""
        self._closed = True
        if self._idle is not None:
            self._idle.cancel()
        opening, link = self._opening, self._link
        if opening is not None:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
        if link is not None:
            await link.close()

    # -- asking ----------------------------------------------------------------------------------------------------

    async def _ask(self, request: Callable[["Client"], Awaitable[T]], *, repeatable: bool) -> T:
        for last in (False, True):
            link = await self._linked()
            try:
                return await request(link.client)
            except Exception as error:
                lost = await self._lost(link, error)
                if lost is None:
                    raise
                if last or not (repeatable or lost.not_done):
                    if lost.not_done:
                        raise ServerFailedError(self._sentence(lost.reason)) from error
                    raise OutcomeUnknownError(
                        f"The connection to the MCP server {self.settings.name} was lost during the call "
                        f"({lost.reason}). It may or may not have been done: look before you call again."
                    ) from error
                logger.info("The MCP server %s was lost (%s); asking it again.", self.settings.name, lost.reason)
        raise AssertionError("the second try returns or raises")

    async def _lost(self, link: Link, error: Exception) -> "_Loss | None":
        """Whether the connection is over, and what that says about the request; the link is let go then."""
        from mcp.shared.exceptions import MCPError
        from mcp.types import CONNECTION_CLOSED

        closed = isinstance(error, MCPError) and error.code == CONNECTION_CLOSED
        if not (closed or link.refused or link.gone.is_set()):
            return None
        if not link.refused:
            with suppress(TimeoutError):
                async with asyncio.timeout(_TO_KNOW_WHY_S):
                    await link.gone.wait()
        if self._link is link:
            self._link = None
        await link.close()
        if link.refused:
            return _Loss("it forgot our session", not_done=True)
        return _Loss(await self._because(link.cause or error), not_done=_was_never_sent(link.cause))

    # -- connecting ------------------------------------------------------------------------------------------------

    async def _linked(self) -> Link:
        if self._closed:
            raise ServerFailedError(f"The MCP server {self.settings.name} is closed: nanobot is about to end.")
        if self._link is not None and not self._link.gone.is_set():
            return self._link
        pause = self._next_try - self._clock.monotonic()
        if self._opening is None and pause > 0:
            if pause > _WORTH_WAITING_S:
                raise ServerFailedError(f"{self._sentence(self._reason)} It is tried again in {pause:.0f} s.")
            await asyncio.sleep(pause)
        opening = self.start()
        if opening is None:
            return await self._linked()
        try:
            return await asyncio.shield(opening)
        except ServerFailedError:
            raise
        except asyncio.CancelledError:
            if not opening.cancelled():
                raise
            raise ServerFailedError(f"The MCP server {self.settings.name} is closed.") from None

    async def _open(self) -> Link:
        old = self.listing is not None and self.listing.old
        self._spoken, self._status = Spoken(), 0
        link = Link(self._streams, self._note_change, old=old)
        try:
            async with asyncio.timeout(self._patience.to_connect_s):
                await self._check()
                await link.open()
                await self._list(link)
        except Exception as error:  # the wall of a connection
            await link.close()
            self._pause_s = _next_pause(self._pause_s)
            self._next_try = self._clock.monotonic() + self._pause_s
            if old and self.listing is not None:
                self.listing = None  # maybe it is newer now: then another handshake is right
            first = not self._reason
            self._reason = await self._because(link.cause or error)
            log = logger.warning if first else logger.info
            log("The MCP server %s cannot be used: %s", self.settings.name, self._reason)
            raise ServerFailedError(self._sentence(self._reason)) from error
        except BaseException:
            await link.close()
            raise
        if self._reason:
            logger.info("The MCP server %s is back.", self.settings.name)
        self._reason, self._pause_s, self._next_try = "", 0.0, 0.0
        self._link = link
        self._rest()
        return link

    def _opened(self, opening: "asyncio.Task[Link]") -> None:
        self._opening = None
        if not opening.cancelled():
            opening.exception()  # whoever waits for it is told; it is no surprise for the others

    async def _check(self) -> None:
        """What can be known before anything is imported or started. Raises NanobotError."""
        if self.settings.wire is None:
            raise ServerFailedError(
                f"tools.mcpServers.{self.settings.name} names neither a command nor a url that fits its type."
            )
        if self.settings.wire is Wire.STDIO:
            await program_of(self.settings, server_environment(os.environ, self.settings))

    def _streams(self, link: Link) -> AbstractAsyncContextManager["TransportStreams"]:
        if self.settings.wire is Wire.STDIO:
            return stdio_streams(self.settings, self._workspace, self._spoken, link.hung_up)
        return remote_streams(self.settings, self._client, link.hung_up, link.forgotten, self._answered)

    async def _list(self, link: Link) -> None:
        self._changed = False
        listing = await listing_of(link.client)
        if listing != self.listing:
            self.listing = listing
            await asyncio.to_thread(self._file.save, listing)

    def _answered(self, status: int) -> None:
        self._status = status

    def _note_change(self) -> None:
        self._changed = True

    def _rest(self) -> None:
        """A program nobody has asked for a while is let go."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if not self._busy and self.settings.wire is Wire.STDIO and not self._closed:
            self._idle = asyncio.get_running_loop().call_later(self._patience.idle_s, self._fall_asleep)

    def _fall_asleep(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.leave()

    # -- words -----------------------------------------------------------------------------------------------------

    async def _because(self, error: Exception) -> str:
        """Why, for whoever has to mend it: what went wrong, and what the server itself said."""
        said = str(error) or type(error).__name__
        if isinstance(error, TimeoutError):
            said = f"it did not answer in time ({self._patience.to_connect_s:g} s)"
        elif _was_never_sent(error) and not isinstance(error, NoSuchHostError):
            said = f"nothing answers at {self.settings.place}"
        elif self._link is None and self._status >= _ERRORS:  # the SDK says of each of them the same
            said = f"{self.settings.place} answers {self._status}; look at the url and the headers"
        spoken = await self._spoken.last_words() if self.settings.wire is Wire.STDIO else ""
        return "; ".join(part for part in (said, spoken) if part)[:1000]

    def _sentence(self, reason: str) -> str:
        return f"The MCP server {self.settings.name} cannot be reached: {reason.rstrip('.')}."


@dataclass(frozen=True, slots=True)
class _Loss:
    reason: str
    not_done: bool
    """Whether the server certainly never began."""


def _next_pause(pause_s: float) -> float:
    return min(max(pause_s * 2, FIRST_PAUSE_S), LONGEST_PAUSE_S)


def _was_never_sent(cause: Exception | None) -> bool:
    import httpx2

    return isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout | NoSuchHostError)
