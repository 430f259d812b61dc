"""The server of the local socket, for commands and terminal chats.

Terminal chats request their turns here, so that the gateway is the only writer of its sessions. Whoever can open the
socket is the owner. When a client leaves and does not come back, its turn stops and keeps its partial result.
"""

import asyncio
import hmac
import json
import logging
import math
import os
import re
import secrets
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path

from nanobot import __version__
from nanobot.config.paths import DataPaths
from nanobot.gateway.control.requests import ControlRequests
from nanobot.net.gateway_socket import (
    LONGEST_LINE,
    LONGEST_PATH,
    PROTOCOL,
    Connection,
    Frame,
    port_file,
    settings_in,
    socket_file,
)
from nanobot.net.http_server import Listener
from nanobot.utils.files import make_private_folder, write_atomic
from nanobot.utils.storage_error import os_reason

log = logging.getLogger(__name__)

HELLO_S = 5.0
"""Timeout for a client's request."""


class ControlServer(Listener):
    """Accepts clients of the local socket."""

    def __init__(self, places: DataPaths, workspace: Path, requests: ControlRequests) -> None:
        super().__init__()
        self._places = places
        self._workspace = workspace
        self._requests = requests
        self._token: str | None = None
        self._clients: set[Connection] = set()

    async def _listen(self) -> asyncio.Server:
        """Bind a socket in the state folder, else a port. The caller holds the gateway's lock: old files are stale."""
        make_private_folder(self._places.state)
        path = socket_file(self._places.state)
        path.unlink(missing_ok=True)
        port_file(self._places.state).unlink(missing_ok=True)
        if sys.platform != "win32" and len(os.fsencode(path)) <= LONGEST_PATH:
            with suppress(OSError):  # a file system without sockets
                return await asyncio.start_unix_server(self._answer, sock=_private_socket(path), limit=LONGEST_LINE)
        self._token = secrets.token_hex(32)
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0, limit=LONGEST_LINE)
        port = server.sockets[0].getsockname()[1]
        write_atomic(port_file(self._places.state), json.dumps({"port": port, "token": self._token}))
        return server

    def _problem_of(self, error: OSError) -> str:
        reason = os_reason(error)
        return f"the control socket cannot be opened ({reason}); until then `nanobot agent` runs without the gateway"

    def _on_closed(self) -> None:
        for client in self._clients:
            client.abort()
        for file in (socket_file(self._places.state), port_file(self._places.state)):
            with suppress(OSError):
                file.unlink(missing_ok=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if _is_sandboxed(writer.get_extra_info("socket")):
            log.warning("A sandboxed command tried to connect to the gateway's socket and was rejected.")
            writer.close()
            return
        client = Connection(reader, writer)
        self._clients.add(client)
        try:
            async with asyncio.timeout(HELLO_S):
                if self._token is None or await self._sends_token(client):
                    client.send(self._hello())
                    request = await client.receive()
                else:
                    request = None
            if request is not None:
                await self._requests.answer(request, client)
        except (OSError, TimeoutError, ValueError) as error:  # it disconnected, was too slow, or sent no frame
            log.debug("a client of the control socket is disconnected: %r", error)
        finally:
            self._clients.discard(client)
            await client.close()

    async def _sends_token(self, client: Connection) -> bool:
        frame = await client.receive() or {}
        return hmac.compare_digest(str(frame.get("token", "")).encode(), (self._token or "").encode())

    def _hello(self) -> Frame:
        return {
            "type": "hello",
            "protocol": PROTOCOL,
            "version": __version__,
            "pid": os.getpid(),
            "workspace": str(self._workspace),
            "settings": settings_in(os.environ),
        }


def _is_sandboxed(caller: socket.socket) -> bool:
    """Whether the client is a command of the agent, which must not act as the owner.

    With Landlock alone a command can reach the socket. It has more seccomp filters than this process, and can never
    drop them.
    """
    if sys.platform != "linux" or caller.family != socket.AF_UNIX:
        return False
    pid: int = struct.unpack("3i", caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return pid != 0 and _seccomp_filters(pid) > _seccomp_filters(os.getpid())  # 0: from another pid namespace


def _seccomp_filters(pid: int) -> float:
    """The number of a process's seccomp filters, see proc_pid_status(5); infinity if the process is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return math.inf
    match = re.search(r"^Seccomp_filters:\s*(\d+)", status, re.MULTILINE)
    return int(match[1]) if match else 0


def _private_socket(path: Path) -> socket.socket:
    """Bind a socket that only its owner can open, at any moment. Raises OSError."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(OSError):  # on Linux the file gets this mode; elsewhere the private folder protects it
            os.fchmod(bound.fileno(), 0o600)
        bound.bind(str(path))
        os.chmod(path, 0o600)
    except BaseException:
        bound.close()
        raise
    return bound
