"""The transports to a server, all of the SDK: a program's stdin and stdout, streamable HTTP, and the older SSE.

https://modelcontextprotocol.io/specification/2025-11-25/basic/transports

A program runs under `process_guard`; on Windows the SDK's job objects end what it started. The owner chooses a URL,
wherever it leads. Redirects are followed within its origin only (the SDK ensures it), so the configured headers reach
nobody else; proxies of the environment are not used.
"""

import asyncio
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from pydantic import ValidationError

from nanobot.agent.tools.mcp import process_guard
from nanobot.agent.tools.mcp.process_guard import EXIT_CODE_PREFIX
from nanobot.config.schema import McpServerConfig
from nanobot.errors import NanobotError
from nanobot.net.egress import NetworkPolicy
from nanobot.utils.files import make_private_folder
from nanobot.utils.processes import child_environment

if TYPE_CHECKING:
    import httpx2
    from mcp.client._transport import TransportStreams
    from mcp.shared.message import SessionMessage

MAX_EVENT_BYTES = 64 * 1024 * 1024
_STDERR_TAIL_BYTES = 4096
_EXIT_WAIT_S = 0.3
_NOISE = re.compile(rf"npm notice|npm error( \d+)?$|npm error A complete log|{EXIT_CODE_PREFIX}")
"""Besides our own, lines that npm prints around its reason: many servers are started by npx."""
_STORAGE_VARIABLES = frozenset({"XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"})
"""Where a server stores things between starts."""
_SESSION_LOST = frozenset({400, 404, 410})
"""Responses of servers to an unknown session id. The specification says 404; 400 is common too."""


class InvalidServerError(NanobotError):
    """A server cannot be started with these settings."""


class ServerReport:
    """What is known of a connection besides its messages: HTTP status, stderr, invalid lines and exit code."""

    def __init__(self) -> None:
        self.http_status = 0
        """The last one of a server with a URL."""
        self.session_lost = False
        """Whether the server does not know our session any more, so that it did nothing of the last request."""
        self.garbage = ""
        """The first line on stdout that is not a message."""
        self._stderr = b""
        self._ended = threading.Event()

    @contextmanager
    def collect_stderr(self) -> Iterator[TextIO]:
        """Return a file for a program's stderr, of which the tail is kept. Close it once the program has it."""
        read_end, write_end = os.pipe()

        def read() -> None:
            with open(read_end, "rb", buffering=0) as stream:
                while data := stream.read(65_536):
                    self._stderr = (self._stderr + data)[-_STDERR_TAIL_BYTES:]
            self._ended.set()

        threading.Thread(target=read, name="mcp server", daemon=True).start()
        with open(write_end, "w", encoding="utf-8") as stream:
            yield stream

    async def describe(self) -> str:
        """Describe a program's end, once all of its stderr is known; empty if there is nothing to report."""
        await asyncio.to_thread(self._ended.wait, _EXIT_WAIT_S)
        lines = [line.strip() for line in self._stderr.decode(errors="replace").splitlines()]
        codes = [line.removeprefix(EXIT_CODE_PREFIX) for line in lines if line.startswith(EXIT_CODE_PREFIX)]
        last = [line for line in lines if line and not _NOISE.match(line)][-5:]
        parts = (
            f"it ended with exit code {codes[-1]}" if codes else "",
            f"it printed what is not a message: {self.garbage!r}" if self.garbage else "",
            f"its last output: {' | '.join(last)}" if last else "",
        )
        return "; ".join(part for part in parts if part)

    def read_invalid_line(self, error: Exception) -> "SessionMessage | None":
        """Return the message if a line is not JSON only by its lone surrogates, as JavaScript writes them."""
        from mcp.shared.message import SessionMessage
        from mcp.types import jsonrpc_message_adapter

        line = error.errors()[0]["input"] if isinstance(error, ValidationError) else ""
        if not isinstance(line, str) or not line.strip():
            return None
        try:
            data = json.dumps(json.loads(line), ensure_ascii=False).encode("utf-16", "surrogatepass")
            return SessionMessage(
                jsonrpc_message_adapter.validate_json(data.decode("utf-16", "replace"), by_name=False)
            )
        except (ValueError, RecursionError):
            self.garbage = self.garbage or line[:200]
            return None


@asynccontextmanager
async def open_streams(
    name: str,
    config: McpServerConfig,
    folder: Path,
    network: NetworkPolicy,
    report: ServerReport,
    on_end: Callable[[], None],
) -> AsyncIterator["TransportStreams"]:
    """Connect to the server; a program starts in `folder`. `on_end` is called when the server hangs up, also while
    nothing is requested.

    Raises InvalidServerError, OSError, and what the SDK or its client raises, then or later, maybe in a group.
    """
    import anyio
    from mcp.shared.message import SessionMessage

    if config.transport is None:
        raise InvalidServerError(f"tools.mcpServers.{name} names neither a command nor a url that fits its type.")
    if config.transport == "stdio":
        transport = _start_program(name, config, folder, report)
    else:
        transport = _connect_to_url(config, network, report)
    async with transport as (source, outbox):
        sink, inbox = anyio.create_memory_object_stream[SessionMessage | Exception](0)

        async def relay() -> None:
            try:
                async with sink:
                    async for item in source:
                        message = report.read_invalid_line(item) if isinstance(item, Exception) else item
                        if message is not None:
                            await sink.send(message)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass
            finally:
                on_end()

        relaying = asyncio.create_task(relay())
        try:
            yield inbox, outbox
        finally:
            relaying.cancel()
            await asyncio.gather(relaying, return_exceptions=True)
            sink.close()
            inbox.close()


# -- programs -----------------------------------------------------------------------------------------------------


def server_environment(inherited: Mapping[str, str], config: McpServerConfig) -> dict[str, str]:
    """Return a server's environment: the harmless part of ours, and what the config adds."""
    return {**child_environment(inherited, _STORAGE_VARIABLES), **(config.env or {})}


def find_program(config: McpServerConfig, env: Mapping[str, str], folder: Path) -> str | None:
    """Return the path of the server's program, or None; a relative one starts at the working directory. Blocks."""
    command = str(folder / config.command) if os.path.dirname(config.command) else config.command  # noqa: PTH120
    return shutil.which(command, path=env.get("PATH", os.defpath))


def _prepare_program(name: str, config: McpServerConfig, env: Mapping[str, str], folder: Path) -> str:
    """Make the working directory and return the path of the program. Blocks. Raises InvalidServerError."""
    if not config.cwd:
        make_private_folder(folder)
    elif not (folder.is_absolute() and folder.is_dir()):
        raise InvalidServerError(
            f"tools.mcpServers.{name}.cwd is {config.cwd!r}, which is not a folder. Give the full path of an existing "
            "folder, or remove the setting."
        )
    program = find_program(config, env, folder)
    if program is None:
        raise InvalidServerError(
            f"There is no program {config.command!r}. Install it, or give its full path in "
            f"tools.mcpServers.{name}.command."
        )
    return program


@asynccontextmanager
async def _start_program(
    name: str, config: McpServerConfig, folder: Path, report: ServerReport
) -> AsyncIterator["TransportStreams"]:
    from mcp.client.stdio import StdioServerParameters, stdio_client

    env = server_environment(os.environ, config)
    command = [await asyncio.to_thread(_prepare_program, name, config, env, folder), *config.args]
    if sys.platform != "win32":
        command = [sys.executable, "-I", "-S", process_guard.__file__, *command]
    program = StdioServerParameters(
        command=command[0], args=command[1:], env=env, cwd=folder, encoding_error_handler="replace"
    )
    with report.collect_stderr() as stderr:
        async with stdio_client(program, errlog=stderr) as streams:
            stderr.close()
            yield streams


# -- URLs ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _connect_to_url(
    config: McpServerConfig, network: NetworkPolicy, report: ServerReport
) -> AsyncIterator["TransportStreams"]:
    """Connect over the checked transport: to this server and nowhere else nearby."""
    from mcp.client.sse import sse_client
    from mcp.client.streamable_http import streamable_http_client

    from nanobot.net.mcp_transport import open_mcp_client  # brings httpx2

    async def check(response: "httpx2.Response") -> None:
        request, status = response.request, response.status_code
        if request.method == "POST" or config.transport == "sse":  # else a GET asks for notifications: optional
            report.http_status = status
        if request.method == "POST" and status in _SESSION_LOST and "mcp-session-id" in request.headers:
            report.session_lost = True

    client = await open_mcp_client(network, config.url, config.headers or {})
    client.event_hooks["response"].append(check)
    if config.transport == "sse":  # it closes the client

        def client_factory(*_: Any, **__: Any) -> "httpx2.AsyncClient":
            return client

        async with sse_client(config.url, httpx_client_factory=client_factory) as streams:
            yield streams
        return
    async with (
        client,
        streamable_http_client(config.url, http_client=client, max_sse_event_size=MAX_EVENT_BYTES) as streams,
    ):
        yield streams
