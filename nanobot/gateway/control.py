"""Control: the local socket by which commands on this machine talk through the running gateway.

Same sessions, one writer: a chat at the terminal asks here for its turns, and sees their events as they happen. Who may
open the socket is the owner. A client that leaves stops its turn; what was said is kept.
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
from nanobot.config.paths import Places
from nanobot.gateway.listener import Listener
from nanobot.gateway.report import Watch
from nanobot.gateway.requests import Requests, Talk
from nanobot.gateway.terminal import TerminalChannel
from nanobot.gateway.wire import LONGEST_LINE, LONGEST_PATH, PROTOCOL, Frame, port_file, settings_in, socket_file
from nanobot.gateway.wishes import Wishes
from nanobot.runtime import Runtime
from nanobot.utils.files import make_private_folder, write_atomic

log = logging.getLogger(__name__)

HELLO_S = 5.0
"""How long a client has to say what it wants."""


class ControlServer(Listener):
    """Serves the socket."""

    def __init__(
        self, places: Places, runtime: Runtime, watch: Watch, wishes: Wishes, terminal: TerminalChannel
    ) -> None:
        super().__init__()
        self._places = places
        self._workspace = runtime.workspace
        self._requests = Requests(runtime, watch, wishes, terminal)
        self._token: str | None = None
        self._talks: set[Talk] = set()

    async def _listen(self) -> asyncio.Server:
        """On a socket in the state folder, else on loopback. We hold the gateway's lock: what lies there is stale."""
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
        return f"the control socket cannot be opened ({error}); `nanobot agent` works by itself meanwhile"

    def _closed(self) -> None:
        """Nothing of it is left in the state folder."""
        for talk in self._talks:
            talk.hang_up()
        for file in (socket_file(self._places.state), port_file(self._places.state)):
            with suppress(OSError):
                file.unlink(missing_ok=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if _is_walled_off(writer.get_extra_info("socket")):
            log.warning("A command tried to open the gateway's socket, and was turned away.")
            writer.close()
            return
        talk = Talk(reader, writer)
        self._talks.add(talk)
        try:
            async with asyncio.timeout(HELLO_S):
                if self._token is None or await self._knows_token(talk):
                    talk.tell(self._hello())
                    request = await talk.hear()
                else:
                    request = None
            if request is not None:
                await self._requests.answer(request, talk)
        except (OSError, TimeoutError, ValueError) as error:  # it left, it dawdled, or it spoke another language
            log.debug("a client of the control socket is let go: %r", error)
        finally:
            self._talks.discard(talk)
            await talk.close()

    async def _knows_token(self, talk: Talk) -> bool:
        said = await talk.hear() or {}
        return hmac.compare_digest(str(said.get("token", "")).encode(), (self._token or "").encode())

    def _hello(self) -> Frame:
        return {
            "type": "hello",
            "protocol": PROTOCOL,
            "version": __version__,
            "pid": os.getpid(),
            "workspace": str(self._workspace),
            "settings": settings_in(os.environ),
        }


def _is_walled_off(caller: socket.socket) -> bool:
    """Whether it is a command of the agent's, which has no owner's word. Where Landlock alone stands it finds the
    socket; but it has given up calls to the kernel that we have not, for good, and Linux tells of both.
    """
    if sys.platform != "linux" or caller.family != socket.AF_UNIX:
        return False
    pid: int = struct.unpack("3i", caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return pid != 0 and _calls_given_up(pid) > _calls_given_up(os.getpid())  # 0: from a container that we cannot see


def _calls_given_up(pid: int) -> float:
    """How many filters of seccomp it has, see proc_pid_status(5); of who is gone already, more than anybody."""
    try:
        told = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return math.inf
    found = re.search(r"^Seccomp_filters:\s*(\d+)", told, re.MULTILINE)
    return int(found[1]) if found else 0


def _private_socket(path: Path) -> socket.socket:
    """A socket at this place that nobody else can open, from its first moment on. Raises OSError."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(OSError):  # Linux makes it with this mode; elsewhere the folder, which is ours alone, keeps it
            os.fchmod(made.fileno(), 0o600)
        made.bind(str(path))
        os.chmod(path, 0o600)
    except BaseException:
        made.close()
        raise
    return made
