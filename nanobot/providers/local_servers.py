"""Finds model servers on this machine and their models.

All are probed at once, each for a third of a second. Only a list of models in the shape of the OpenAI reference (`GET
/v1/models`) counts, so another web server on one of these ports is not mistaken for one. Plain sockets, since importing
httpx would cost a fresh machine 100 ms to find nothing.
"""

import asyncio
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from nanobot.config.provider_table import PROVIDERS

if TYPE_CHECKING:
    from nanobot.config.schema import ProviderConfig

PROBE_S = 0.3
_MAX_RESPONSE_BYTES = 1024 * 1024


def default_servers(
    environ: Mapping[str, str], sections: "Mapping[str, ProviderConfig] | None" = None
) -> dict[str, str]:
    """The base URLs of the local providers: the one in the config, for Ollama that in OLLAMA_HOST, or the default."""
    servers = {}
    for spec in PROVIDERS:
        section = (sections or {}).get(spec.name)
        base = section.api_base if section is not None else None
        if spec.name == "ollama":
            base = base or _ollama_base(environ.get("OLLAMA_HOST", "").strip())
        if spec.is_local:
            # As a number: resolving `localhost` takes a thread and may yield ::1, where these servers do not listen.
            servers[spec.name] = base or (spec.default_api_base or "").replace("localhost", "127.0.0.1")
    return servers


def _ollama_base(host: str) -> str | None:
    """The base URL for a value of OLLAMA_HOST; None if it is none."""
    url = urlsplit(host if "://" in host else f"http://{host}")
    try:
        port = url.port or (11434 if "://" not in host else 443 if url.scheme == "https" else 80)
    except ValueError:
        return None
    address = url.hostname or ""
    address = "127.0.0.1" if address in ("0.0.0.0", "::") else address  # noqa: S104 Ollama's listen address, not ours
    return f"{url.scheme}://{f'[{address}]' if ':' in address else address}:{port}/v1" if address else None


async def running_servers(servers: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The models of the servers that list any, by provider, in the given order. Never raises."""
    listed = await asyncio.gather(*map(list_models, servers.values()))
    return {provider: models for provider, models in zip(servers, listed, strict=True) if models}


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
        length = re.search(rb"\r\ncontent-length: *(\w+)", head, re.IGNORECASE)
        if length is not None:
            return await reader.readexactly(min(int(length[1]), _MAX_RESPONSE_BYTES))
        return await reader.read(_MAX_RESPONSE_BYTES)
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()
