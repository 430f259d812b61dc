"""Servers on loopback that misbehave as the web does, names that lead to them, and a road that only records."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from nanobot.net.connection import Connection
from nanobot.net.egress import EgressGate, NetworkPolicy, Resolve
from nanobot.net.fetch import Fetcher, FetchLimits
from nanobot.net.urls import WebUrl

Serve = Callable[[str, asyncio.StreamWriter], Awaitable[None]]
"""Answers one request, given its head."""


@dataclass
class Server:
    """Listens on every address of this machine."""

    port: int
    connections: int = 0
    heads: list[str] = field(default_factory=list)


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*head, "", ""]).encode() + body


def saying(body: bytes, *headers: str, status: str = "200 OK") -> Serve:
    async def serve(head: str, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(body, *headers, status=status))

    return serve


def leading_to(location: str) -> Serve:
    return saying(b"", f"Location: {location}", status="302 Found")


@asynccontextmanager
async def serving(serve: Serve, context: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode("latin-1"):
                for line in head.lower().split("\r\n"):
                    if line.startswith("content-length:"):
                        head += (await reader.readexactly(int(line.partition(":")[2]))).decode()
                server.heads.append(head)
                await serve(head, writer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    sock = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    server = Server(sock.getsockname()[1])
    listening = await asyncio.start_server(handle, sock=sock, ssl=context)
    try:
        yield server
    finally:
        listening.close()
        listening.close_clients() if hasattr(listening, "close_clients") else None


def names(table: dict[str, list[str]]) -> Resolve:
    """A server of names that knows these."""

    async def look_up(host: str, port: int, limit_s: float) -> list[str]:
        if host not in table:
            raise OSError(f"nobody knows {host}")
        return table[host]

    return look_up


def at_home(**names_: list[str]) -> EgressGate:
    """A gate that lets loopback through, as an owner may; names lead where they say, each dash a dot."""
    table = {name.replace("_", "."): addresses for name, addresses in names_.items()}
    return EgressGate(NetworkPolicy(whitelist=("127.0.0.0/8",)), resolve=names(table))


@dataclass
class Sent:
    """A request that would have left: `at` is the address it goes to, or None through the `proxy`."""

    server: WebUrl
    proxy: str | None
    at: str | None


class _Recorded(Connection):
    """Answers without a network."""

    def __init__(self, server: WebUrl, answer: tuple[int, dict[str, str], bytes]) -> None:
        self.address = server
        self.status, self.headers, self._body = answer

    async def request(self, method: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        assert "host" not in {name.lower() for name in headers}, "the Host header is that of the address"

    async def receive(self) -> bytes:
        body, self._body = self._body, b""
        return body

    async def aclose(self) -> None:
        pass


@dataclass
class Road:
    """In place of the network: what would have been sent, and where."""

    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    """Status, headers and body."""
    sent: list[Sent] = field(default_factory=list)
    default: bytes = b"hello"

    async def connect(self, server: WebUrl, limit_s: float, proxy: str | None, at: str | None) -> Connection:
        self.sent.append(Sent(server, proxy, at))
        return _Recorded(server, self.answers.pop(0) if self.answers else (200, {}, self.default))

    def fetcher(self, gate: EgressGate, limits: FetchLimits | None = None) -> Fetcher:
        return Fetcher(gate, limits=limits, connect=self.connect)
