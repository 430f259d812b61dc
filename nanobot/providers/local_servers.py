"""Model servers on this machine: who answers, and with which model.

All are asked at once and none is waited for longer than a third of a second. A web server that happens to listen on
one of these ports is not taken for a model server: only a list of models, in the shape of the OpenAI reference
(`GET /v1/models`), counts. Plain sockets, since httpx would cost a fresh machine 100 ms to find nobody at home.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from nanobot.config.provider_table import PROVIDERS

PROBE_S = 0.3
_LONGEST_ANSWER = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LocalServer:
    """Where a local provider usually listens."""

    provider: str
    display_name: str
    api_base: str


# By its number: asking a resolver for `localhost` takes a thread, and may lead to ::1, where they do not listen.
USUAL_SERVERS = tuple(
    LocalServer(spec.name, spec.display_name, (spec.default_api_base or "").replace("localhost", "127.0.0.1"))
    for spec in PROVIDERS
    if spec.is_local
)


@dataclass(frozen=True, slots=True)
class FoundServer:
    """A server that answered, and the models it has; there is at least one."""

    server: LocalServer
    models: tuple[str, ...]

    @property
    def reason(self) -> str:
        """The finding in words."""
        return f"{self.server.display_name} answers on {urlsplit(self.server.api_base).netloc}"


def usual_servers(environ: Mapping[str, str]) -> tuple[LocalServer, ...]:
    """The usual ones, Ollama where OLLAMA_HOST says it is."""
    host = environ.get("OLLAMA_HOST", "").strip()
    if not host:
        return USUAL_SERVERS
    url = host if "://" in host else f"http://{host}"
    parts = urlsplit(url)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80 if "://" in host else 11434)
    except ValueError:
        return USUAL_SERVERS
    name = parts.hostname or "127.0.0.1"
    name = "127.0.0.1" if name in ("0.0.0.0", "::") else name  # noqa: S104 where Ollama listens, not where we do
    name = f"[{name}]" if ":" in name else name
    moved = LocalServer("ollama", "Ollama", f"{parts.scheme}://{name}:{port}/v1")
    return tuple(moved if server.provider == "ollama" else server for server in USUAL_SERVERS)


async def find_local_server(servers: Sequence[LocalServer], *, timeout_s: float = PROBE_S) -> FoundServer | None:
    """The first of these that answers with a model, in their order. Never raises."""
    answers = await asyncio.gather(*(models_of(server.api_base, timeout_s=timeout_s) for server in servers))
    for server, models in zip(servers, answers, strict=True):
        if models:
            return FoundServer(server, models)
    return None


async def models_of(api_base: str, *, timeout_s: float = PROBE_S) -> tuple[str, ...]:
    """The models that can chat at this base URL; none when nobody answers, or somebody else does. Never raises."""
    try:
        async with asyncio.timeout(timeout_s):
            body = await _get(f"{api_base.rstrip('/')}/models")
        data = json.loads(body)
        names = [entry["id"] for entry in data["data"] if isinstance(entry["id"], str) and entry["id"]]
    except (OSError, EOFError, asyncio.LimitOverrunError, ValueError, LookupError, TypeError, RecursionError):
        return ()
    return tuple(name for name in names if "embed" not in name.lower())


async def _get(url: str) -> bytes:
    """The body of a 200 answer. Raises OSError or ValueError for anything else."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
    try:
        request = f"GET {parts.path} HTTP/1.0\r\nHost: {parts.netloc}\r\nAccept: application/json\r\n\r\n"
        writer.write(request.encode("ascii"))
        head = await reader.readuntil(b"\r\n\r\n")
        if head.split(b" ", 2)[1] != b"200":
            raise ValueError(head[:80])
        # HTTP/1.0 asks for a body without chunks that ends with the connection; some keep it open all the same.
        lines = head.decode("latin-1").lower().split("\r\n")
        length = next((line.partition(":")[2] for line in lines if line.startswith("content-length:")), None)
        if length is not None:
            return await reader.readexactly(min(int(length), _LONGEST_ANSWER))
        body = await reader.read(_LONGEST_ANSWER) if not any("chunked" in line for line in lines) else b""
        while "chunked" in "".join(lines) and (size := int((await reader.readline()).split(b";")[0], 16)):
            body += await reader.readexactly(min(size, _LONGEST_ANSWER))
            await reader.readline()
        return body
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()
