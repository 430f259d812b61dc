"""Installs the WhatsApp bridge, runs it as a child process that ends when we do, and talks to it over a WebSocket.

Its frames are JSON. To the bridge: `auth {token}` first, then `send {id, to, text, quoted?}`, `send_media {id, to,
filePath, mimetype, fileName, ptt}`, `edit {id, to, text}`, `react {id, to, sender, emoji}`, `typing {to, on}`, `read
{ids, to, sender}`, `ack {id}`, `pair {phone}`. From it: `status {status, version, me, lid}`, `message`, `sent {id,
to}`, `failed {id, error, code}`, `qr {qr}`, `code {code}`, `logged_out {code}`. Bridges of earlier releases know
`auth`, `send`, `send_media`, `message`, `status`, `qr`, and answer every request with a `sent` that names no id.
"""

import asyncio
import hashlib
import logging
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from websockets.asyncio.client import ClientConnection

from nanobot.channels.errors import ChannelSetupError, ErrorCodes, NotConnectedError, SendError
from nanobot.channels.incoming import Payload
from nanobot.channels.sockets import RequestSocket, open_socket, read_messages
from nanobot.utils.files import make_private_folder
from nanobot.utils.processes import Child, child_process

log = logging.getLogger(__name__)

SOURCE = Path(__file__).parent / "bridge"
OLDEST_NODE = 20
_FILES = ("bridge.mjs", "package.json", "package-lock.json")
_VARIABLES = (
    "PATH", "HOME", "LANG", "TMPDIR", "SYSTEMROOT", "APPDATA", "LOCALAPPDATA", "USERPROFILE", "NODE_EXTRA_CA_CERTS",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
"""What the bridge and npm get of our environment, besides npm's own settings."""
_VERSION_S, _INSTALL_S, _START_S, _STOP_S = 10.0, 600.0, 30.0, 2.0
_MISCONFIGURED = 78
"""The exit status of a bridge whose owner has to change something."""
_CONFIRM_S = 30.0
_SILENT_S = 5.0
"""A bridge that says nothing for so long is of an earlier release, and connected."""
_LARGEST_FRAME = 16 * 1024 * 1024
_BAD_TOKEN = (1008, 4001, 4003)
"""Close codes of a bridge that does not take the token."""
_NOT_CONNECTED = 503
_CODES = ErrorCodes(
    "WhatsApp", dict.fromkeys((400, 401, 403, 404, 406, 463, 479), "{text}"), limited=(429,), pause_s=30
)


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name in _VARIABLES or name.startswith("npm_config_")}


async def find_node() -> str:
    """The path of a Node.js that is new enough. Raises ChannelSetupError, which says how to get one."""
    node, found = shutil.which("node"), "it is not installed"
    if node is not None:
        version = (await _run([node, "--version"], Path.home(), _VERSION_S)).strip()
        if version.removeprefix("v").partition(".")[0].isdigit():
            if int(version.removeprefix("v").partition(".")[0]) >= OLDEST_NODE:
                return node
            found = f"this is {version}"
    raise ChannelSetupError(
        f"WhatsApp needs Node.js {OLDEST_NODE} or later ({found}). Get it from https://nodejs.org, or with your "
        "package manager (`brew install node`, `winget install OpenJS.NodeJS.LTS`, `apt install nodejs npm`)."
    )


async def install_bridge(folder: Path) -> Path:
    """Install the bridge of this release below the folder, unless it is there. Raises ChannelSetupError."""
    contents = b"".join([(SOURCE / name).read_bytes() for name in _FILES])
    target = folder / f"bridge-{hashlib.sha256(contents).hexdigest()[:12]}"
    if target.is_dir():
        return target
    npm = shutil.which("npm")
    if npm is None:
        raise ChannelSetupError("WhatsApp needs npm, which comes with Node.js. Install it, then try again.")
    log.info("whatsapp: installing the bridge, once; this takes a minute")
    make_private_folder(folder)
    partial = Path(mkdtemp(prefix="installing-", dir=folder))
    try:
        for name in _FILES:
            shutil.copyfile(SOURCE / name, partial / name)
        await _run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--omit=peer"], partial, _INSTALL_S)
        await asyncio.to_thread(_replace, partial, target)
    finally:
        await asyncio.to_thread(shutil.rmtree, partial, ignore_errors=True)
    return target


def _replace(partial: Path, target: Path) -> None:
    """Move the new bridge to its place, and remove those of earlier releases and half-installed ones."""
    if not target.is_dir():  # another process was faster
        partial.replace(target)
    abandoned = [one for one in target.parent.glob("installing-*") if one.stat().st_mtime < time.time() - _INSTALL_S]
    for old in {*target.parent.glob("bridge-*"), *abandoned} - {target}:
        shutil.rmtree(old, ignore_errors=True)


@asynccontextmanager
async def run_bridge(node: str, folder: Path, settings: Mapping[str, str]) -> AsyncIterator[None]:
    """Run the bridge, with these environment variables, until the block ends.

    Raises NotConnectedError when it ends by itself, ChannelSetupError if its owner has to change something.
    """
    stdin, ours = (os.fdopen(end, mode) for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True))
    env = {**environment(), **settings, "BRIDGE_OWNED": "1"}
    said: deque[str] = deque(maxlen=1)
    broken: NotConnectedError | None = None
    with stdin, ours:  # the bridge ends when its input does, so also when we are killed
        async with child_process(
            [node, str(folder / "bridge.mjs")], cwd=folder, env=env, stdin=stdin.fileno()
        ) as child:
            reading = [asyncio.create_task(_log_lines(child.stderr, said))]
            listening = asyncio.create_task(child.stdout.readline())  # it says so
            try:
                await asyncio.wait([listening], timeout=_START_S)
                if listening.done() and listening.result():
                    reading.append(asyncio.create_task(_log_lines(child.stdout, deque(maxlen=1))))
                    yield
                    return
            except NotConnectedError as error:
                broken = error
            finally:
                ours.close()
                await _end(child, [listening, *reading])
            if broken is not None and not child.returncode:
                raise broken
            reason = said[0] if said else f"status {child.returncode}"
            if child.returncode == _MISCONFIGURED:
                raise ChannelSetupError(f"The WhatsApp bridge cannot run: {reason}")
            raise NotConnectedError(f"the WhatsApp bridge has ended ({reason})") from broken


async def _end(child: Child, reading: "list[asyncio.Task[Any]]") -> None:
    """Let it sign off, else kill it, and read what it said."""
    ending = asyncio.create_task(child.wait())
    await asyncio.wait([ending], timeout=_STOP_S)
    if not ending.done():
        await child.kill()
    await asyncio.wait([ending, *reading], timeout=_STOP_S)
    for task in (ending, *reading):
        task.cancel()


async def _log_lines(stream: asyncio.StreamReader, last_lines: "deque[str]") -> None:
    while line := await stream.readline():
        last_lines.append(" ".join(line.decode(errors="replace").split())[:300])
        log.debug("whatsapp bridge: %s", last_lines[-1])


async def _run(argv: list[str], folder: Path, timeout_s: float) -> str:
    """Run a program and return its output. Raises ChannelSetupError."""
    command = " ".join([Path(argv[0]).name, *argv[1:]])
    if sys.platform == "win32":
        argv = ["cmd", "/c", *argv]  # npm is a script there
    try:
        async with asyncio.timeout(timeout_s), child_process(argv, cwd=folder, env=environment()) as child:
            output, errors = await asyncio.gather(child.stdout.read(), child.stderr.read())
            status = await child.wait()
    except (OSError, TimeoutError) as error:
        raise ChannelSetupError(f"`{command}` failed: {str(error) or type(error).__name__}") from error
    if status:
        said = " ".join(errors.decode(errors="replace").split())[-600:]
        raise ChannelSetupError(f"`{command}` failed with status {status}: {said or 'it said nothing'}")
    return output.decode(errors="replace")


class Connection(RequestSocket):
    platform = "the WhatsApp bridge"

    def __init__(self, socket: ClientConnection | None = None) -> None:
        super().__init__(socket)
        self._chats: dict[str, str] = {}
        """The chat of each request without an answer, by id."""

    async def events(self) -> AsyncIterator[Payload]:
        """Yield what happens, in order. Raises NotConnectedError at the end, ChannelSetupError for a bad token."""
        try:
            async with asyncio.timeout(_SILENT_S):
                frame = await self.next_frame()
        except TimeoutError:
            yield Payload(type="status", status="connected")
            frame = await self.next_frame()
        while frame is not None:
            yield frame
            frame = await self.next_frame()
        if self.socket is not None and self.socket.close_code in _BAD_TOKEN:
            raise ChannelSetupError(
                "The WhatsApp bridge does not take channels.whatsapp.bridgeToken. Set it to the token the bridge was "
                "started with (BRIDGE_TOKEN)."
            )
        raise NotConnectedError("the connection to the WhatsApp bridge is lost")

    async def request(self, frame: Mapping[str, Any]) -> None:
        """Send a request, which has an `id` and says `to` which chat, and wait until it is done.

        Raises SendError; safe to cancel.
        """
        self._chats[frame["id"]] = frame["to"]
        try:
            # of a file the manager's timeout, which goes by its size
            answer = await self.ask(frame["id"], frame, None if "filePath" in frame else _CONFIRM_S)
        finally:
            del self._chats[frame["id"]]
        code, said = answer.get("code"), answer.line("error")[:300] or "no reason given"
        if answer.text("type") == "sent":
            return
        if code == _NOT_CONNECTED:
            raise NotConnectedError("WhatsApp is not connected")
        if not isinstance(code, int):
            raise SendError(f"WhatsApp: {said}", may_have_arrived=True)
        raise _CODES.error(code, said)

    def answered_by(self, frame: Payload) -> str | None:
        if frame.text("type") not in ("sent", "failed"):
            return None if frame else ""
        if "id" in frame:
            return str(frame.get("id"))
        asked = (one for one, chat in self._chats.items() if chat == frame.get("to"))  # of an earlier release
        return next((one for one in asked if not self.requests[one].done()), "")


@asynccontextmanager
async def connect_bridge(
    url: str, token: str, *, beat_s: float, touch: Callable[[], None]
) -> AsyncIterator[Connection]:
    """Connect and authenticate. Raises NotConnectedError."""
    options = {"ping_interval": None, "max_size": _LARGEST_FRAME}
    async with open_socket(f"the WhatsApp bridge at {url}", url, **options) as socket:
        connection = Connection(socket)
        async with connection.reading(read_messages(socket, touch, beat_s)):
            await connection.tell({"type": "auth", "token": token})
            yield connection
