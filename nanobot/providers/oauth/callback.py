"""A web server for one visit: the browser comes back to this machine with the answer of an authority.

RFC 8252, 7.3: it listens on the loopback address alone, for as long as a login takes. An answer that does not carry the
state of our question is nobody's: it is refused, and the true one is still waited for.
"""

import asyncio
import html
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from nanobot.providers.oauth.errors import LoginFailedError

_LONGEST_REQUEST = 32 * 1024
_READ_S = 10.0
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>nanobot</title>
<body style="font-family: system-ui; margin: 15vh auto; max-width: 32em"><h1>nanobot</h1><p>{text}</p></body></html>"""
_WELCOME = "Received. You may close this page and go back to the terminal."
_STRANGE = "This answer belongs to no login that is under way here. Begin again in the terminal."


class StrangeAnswerError(ValueError):
    """An answer that is not to our question."""


@dataclass(frozen=True, slots=True)
class Question:
    """What an answer must fit: the place it comes to, and the state it carries."""

    path: str
    state: str = field(repr=False)

    def code_in(self, query: str) -> str:
        """The code an answer brings. Raises StrangeAnswerError, or LoginFailedError where the authority said no."""
        words = {name: values[0] for name, values in parse_qs(query).items()}
        if words.get("state") != self.state:
            raise StrangeAnswerError("The state does not fit.")
        if "error" in words:
            said = words.get("error_description") or words["error"]
            raise LoginFailedError(f"The login was refused: {' '.join(said.split())[:300]}. Try again.")
        if not words.get("code"):
            raise StrangeAnswerError("There is no code in it.")
        return words["code"]

    def code_typed(self, text: str) -> str:
        """The code in what somebody pasted: the whole address the browser went to, its query, or the code alone.

        Raises as `code_in` does.
        """
        text = text.strip()
        if "=" in text:
            return self.code_in(text.partition("?")[2] or text)
        if "://" in text or not text.isascii() or any(mark in text for mark in "?# "):  # an address, or a sentence
            raise StrangeAnswerError("There is no code in it.")
        return text


class Callback:
    """The server while it runs."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._code: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.port = 0

    async def code(self) -> str:
        """Wait for the browser. Raises LoginFailedError where the authority said no."""
        return await asyncio.shield(self._code)

    async def listen(self, ports: Sequence[int]) -> asyncio.Server | None:
        """Listen on the first of these ports that is free; None where none is."""
        for port in ports:
            with suppress(OSError):
                server = await asyncio.start_server(self._visit, "127.0.0.1", port, limit=_LONGEST_REQUEST)
                self.port = server.sockets[0].getsockname()[1]
                return server
        return None

    def forget(self) -> None:
        """Nobody waits any more."""
        if self._code.done() and not self._code.cancelled():
            self._code.exception()
        self._code.cancel()

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
            pass  # not a visit that could be answered; the next one may be
        finally:
            writer.close()

    def _answer(self, first_line: str) -> tuple[str, str]:
        """Status and words for one visit; what it brought is kept."""
        method, target, *_ = [*first_line.split(" "), "", ""]
        parts = urlsplit(target)
        if method != "GET" or parts.path != self._question.path:
            return "404 Not Found", "There is nothing here."
        try:
            code = self._question.code_in(parts.query)
        except StrangeAnswerError:
            return "400 Bad Request", _STRANGE
        except LoginFailedError as refused:
            if not self._code.done():
                self._code.set_exception(refused)
            return "200 OK", str(refused)
        if not self._code.done():
            self._code.set_result(code)
        return "200 OK", _WELCOME


@asynccontextmanager
async def waiting_for(question: Question, ports: Sequence[int]) -> AsyncIterator[Callback | None]:
    """A server that waits for the answer; None where no port is free, so that the answer must be pasted."""
    callback = Callback(question)
    server = await callback.listen(ports)
    try:
        yield callback if server is not None else None
    finally:
        if server is not None:
            server.close()
        callback.forget()
