"""Finds model servers on this machine and their models.

All are probed at once, each for a third of a second. Only a list of models in the shape of the OpenAI reference (`GET
/v1/models`) counts, so another web server on one of these ports is not mistaken for one. Plain sockets, since importing
httpx would cost a fresh machine 100 ms to find nothing.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from nanobot.config.provider_table import PROVIDERS

PROBE_S = 0.3
_MAX_RESPONSE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LocalServer:
    """Where a local provider listens by default."""

    provider: str
    display_name: str
    api_base: str


# As a number: resolving `localhost` takes a thread and may yield ::1, where these servers do not listen.
DEFAULT_SERVERS = tuple(
    LocalServer(spec.name, spec.display_name, (spec.default_api_base or "").replace("localhost", "127.0.0.1"))
    for spec in PROVIDERS
    if spec.is_local
)


@dataclass(frozen=True, slots=True)
class FoundServer:
    """A server that responded, with at least one model."""

    server: LocalServer
    models: tuple[str, ...]

    @property
    def reason(self) -> str:
        return f"{self.server.display_name} answers on {urlsplit(self.server.api_base).netloc}"


def default_servers(environ: Mapping[str, str]) -> tuple[LocalServer, ...]:
    """The default servers; Ollama at the address in OLLAMA_HOST if that is set."""
    host = environ.get("OLLAMA_HOST", "").strip()
    if not host:
        return DEFAULT_SERVERS
    url = host if "://" in host else f"http://{host}"
    parts = urlsplit(url)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80 if "://" in host else 11434)
    except ValueError:
        return DEFAULT_SERVERS
    address = parts.hostname or "127.0.0.1"
    address = "127.0.0.1" if address in ("0.0.0.0", "::") else address  # noqa: S104 Ollama's listen address, not ours
    address = f"[{address}]" if ":" in address else address
    ollama = LocalServer("ollama", "Ollama", f"{parts.scheme}://{address}:{port}/v1")
    return tuple(ollama if server.provider == "ollama" else server for server in DEFAULT_SERVERS)


async def find_local_server(servers: Sequence[LocalServer]) -> FoundServer | None:
    """The first of these servers that lists a model, in the given order. Never raises."""
    models_by_server = await asyncio.gather(*(list_models(server.api_base) for server in servers))
    for server, models in zip(servers, models_by_server, strict=True):
        if models:
            return FoundServer(server, models)
    return None


async def list_models(api_base: str, *, timeout_s: float = PROBE_S) -> tuple[str, ...]:
    """The chat models at this base URL; empty if there is no model server. Never raises."""
    with suppress(*_NO_LIST):
        return await _list_models(api_base, timeout_s)
    return ()


async def is_model_server(api_base: str, *, timeout_s: float = PROBE_S) -> bool:
    """Whether a server lists models at this base URL, or would with a key. Never raises."""
    try:
        return bool(await _list_models(api_base, timeout_s))
    except _KeyNeededError:
        return True
    except _NO_LIST:
        return False


class _KeyNeededError(ValueError):
    pass


_NO_LIST = (OSError, EOFError, asyncio.LimitOverrunError, ValueError, LookupError, TypeError, RecursionError)


async def _list_models(api_base: str, timeout_s: float) -> tuple[str, ...]:
    async with asyncio.timeout(timeout_s):
        body = await _get(f"{api_base.rstrip('/')}/models")
    data = json.loads(body)
    names = [entry["id"] for entry in data["data"] if isinstance(entry["id"], str) and entry["id"]]
    return tuple(name for name in names if "embed" not in name.lower())


async def _get(url: str) -> bytes:
    """The body of a 200 response. Raises OSError or ValueError for anything else."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
    try:
        request = f"GET {parts.path} HTTP/1.0\r\nHost: {parts.netloc}\r\nAccept: application/json\r\n\r\n"
        writer.write(request.encode("ascii"))
        head = await reader.readuntil(b"\r\n\r\n")
        status = head.split(b" ", 2)[1]
        if status != b"200":
            raise _KeyNeededError if status == b"401" else ValueError(head[:80])
        # HTTP/1.0 means no chunks and a body that ends with the connection; some servers keep it open anyway.
        lines = head.decode("latin-1").lower().split("\r\n")
        length = next((line.partition(":")[2] for line in lines if line.startswith("content-length:")), None)
        if length is not None:
            return await reader.readexactly(min(int(length), _MAX_RESPONSE_BYTES))
        body = await reader.read(_MAX_RESPONSE_BYTES) if not any("chunked" in line for line in lines) else b""
        while "chunked" in "".join(lines) and (size := int((await reader.readline()).split(b";")[0], 16)):
            body += await reader.readexactly(min(size, _MAX_RESPONSE_BYTES))
            await reader.readline()
        return body
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()
