"""A web server for one request: the browser returns to this machine with the OAuth server's answer.

RFC 8252, 7.3: it listens on the loopback address only, while a login is in progress. A request with a wrong state is
rejected, and the server keeps waiting for the right one.
"""

import asyncio
import html
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from nanobot.providers.accounts.errors import LoginFailedError

_MAX_REQUEST_BYTES = 32 * 1024
_READ_S = 10.0
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>nanobot</title>
<body style="font-family: system-ui; margin: 15vh auto; max-width: 32em"><h1>nanobot</h1><p>{text}</p></body></html>"""
_SUCCESS_PAGE = "Received. You may close this page and go back to the terminal."
_UNEXPECTED_PAGE = "This page belongs to no login in progress. Start again in the terminal."


class UnexpectedCallbackError(ValueError):
    """A callback that does not match the login in progress."""


@dataclass(frozen=True, slots=True)
class ExpectedCallback:
    """What a callback must match: path and state."""

    path: str
    state: str = field(repr=False)

    def parse_query(self, query: str) -> str:
        """The code of a callback. Raises UnexpectedCallbackError, or LoginFailedError if login was denied."""
        params = {name: values[0] for name, values in parse_qs(query).items()}
        if params.get("state") != self.state:
            raise UnexpectedCallbackError("Its state does not match.")
        if "error" in params:
            reason = params.get("error_description") or params["error"]
            raise LoginFailedError(f"The login was refused: {' '.join(reason.split())[:300]}. Try again.")
        if not params.get("code"):
            raise UnexpectedCallbackError("It contains no code.")
        return params["code"]

    def parse_input(self, text: str) -> str:
        """The code in pasted text: an address, its query, or just the code. Raises as `parse_query` does."""
        text = text.strip()
        if "=" in text:
            return self.parse_query(text.partition("?")[2] or text)
        if "://" in text or not text.isascii() or any(mark in text for mark in "?# "):  # an address, or a sentence
            raise UnexpectedCallbackError("It contains no code.")
        return text


class Callback:
    def __init__(self, expected: ExpectedCallback) -> None:
        self._expected = expected
        self._code: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.port = 0

    async def code(self) -> str:
        """Wait for the browser. Raises LoginFailedError if the server denied the login."""
        return await asyncio.shield(self._code)

    async def listen(self, ports: Sequence[int]) -> asyncio.Server | None:
        """Listen on the first free port; None if none is free."""
        for port in ports:
            with suppress(OSError):
                server = await asyncio.start_server(self._handle, "127.0.0.1", port, limit=_MAX_REQUEST_BYTES)
                self.port = server.sockets[0].getsockname()[1]
                return server
        return None

    def cancel(self) -> None:
        """Stop waiting."""
        if self._code.done() and not self._code.cancelled():
            self._code.exception()
        self._code.cancel()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_READ_S):
                head = await reader.readuntil(b"\r\n\r\n")
            status, text = self._answer(head.split(b"\r\n", 1)[0].decode("latin-1"))
            body = _PAGE.format(text=html.escape(text)).encode()
            lines = [f"HTTP/1.1 {status}", "Content-Type: text/html; charset=utf-8", f"Content-Length: {len(body)}"]
            lines += ["Cache-Control: no-store", "Referrer-Policy: no-referrer", "Connection: close"]
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # not a valid request; wait for the next one
        finally:
            writer.close()

    def _answer(self, first_line: str) -> tuple[str, str]:
        """Status and page text for one request; keeps the code or the error."""
        method, target, *_ = [*first_line.split(" "), "", ""]
        parts = urlsplit(target)
        if method != "GET" or parts.path != self._expected.path:
            return "404 Not Found", "There is nothing here."
        try:
            code = self._expected.parse_query(parts.query)
        except UnexpectedCallbackError:
            return "400 Bad Request", _UNEXPECTED_PAGE
        except LoginFailedError as error:
            if not self._code.done():
                self._code.set_exception(error)
            return "200 OK", str(error)
        if not self._code.done():
            self._code.set_result(code)
        return "200 OK", _SUCCESS_PAGE


@asynccontextmanager
async def callback_server(expected: ExpectedCallback, ports: Sequence[int]) -> AsyncIterator[Callback | None]:
    """A running callback server; None if no port is free, so that the user must paste the address."""
    callback = Callback(expected)
    server = await callback.listen(ports)
    try:
        yield callback if server is not None else None
    finally:
        if server is not None:
            server.close()
        callback.cancel()
