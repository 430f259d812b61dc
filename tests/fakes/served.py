"""Platforms of the contract suite that are servers on loopback: they go away, come back, and cut connections."""

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from inspect import isawaitable
from itertools import count
from pathlib import Path
from typing import Any, Self

from aiohttp import WSMsgType, web

from nanobot.testing.platform import Platform, Shown
from tests.support.eventually import eventually

Json = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class RefusedError(Exception):
    """What a platform answers to a request that it does not serve."""

    def __init__(self, code: int | str, message: str = "refused", status: int = 400, **more: Any) -> None:
        super().__init__(code)
        self.code, self.message, self.status, self.more = code, message, status, more
        self.headers: Mapping[str, str] = {}

    def after(self, name: str, seconds: float | None) -> Self:
        """With a header that says when to try again."""
        self.headers = {} if seconds is None else {name: str(seconds)}
        return self


LINE_S = 75.0
"""A bot whose line was cut again and again waits up to half a minute before it connects, and what it sends first may be
the answer that is lost together with the line."""


@dataclass(eq=False)
class Line:
    """An open WebSocket; `session` is for what the platform knows of it."""

    socket: web.WebSocketResponse
    transport: asyncio.Transport
    session: str = ""
    is_deaf: bool = False
    acknowledgements: list[Json] = field(default_factory=list)


@dataclass(frozen=True)
class Said:
    """What a person sends; `group` is the chat, if it is the platform's group."""

    text: str
    sender: str
    chat: str
    group: str | None
    thread: str | None
    mention: bool
    file: Path | None
    reply_to: str | None
    more: Json


class ServedPlatform(Platform):
    """A platform that is a server: a subclass is its routes and rules, the rest is here.

    Tests see what the bot did in `posts`, `typed_in`, `calls` and `stored` (files), and put what goes wrong into
    `refusals`.
    """

    scheme = "http"
    autoping = True
    secret = ""
    """With which the bot logs in."""
    _runner: web.AppRunner

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.url = ""
        self.posts: list[Any] = []
        self.typed_in: list[str] = []
        self.calls: list[Any] = []
        self.lines: list[Line] = []
        self.stored: dict[str, Any] = {}
        self.tokens: set[str] = set()
        self.refusals: deque[RefusedError] = deque()
        self.lost = 0
        """Answers that are still to be lost."""
        self._port = 0
        self._last = ""
        self._ids = count(1)

    @property
    def server(self) -> Self:
        """For tests that ask for the server behind it."""
        return self

    def app(self) -> web.Application:
        """What is served."""
        app = web.Application(client_max_size=200 << 20)
        app.add_routes(self.routes())
        return app

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        self._runner = web.AppRunner(self.app(), access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        try:
            await self._listen()
            yield self
        finally:
            await self._runner.cleanup()

    async def _listen(self) -> None:
        await web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True).start()
        self._port = int(self._runner.addresses[0][1])
        self.url = f"{self.scheme}://127.0.0.1:{self._port}"

    @abstractmethod
    def routes(self) -> list[web.RouteDef]:
        """All that it serves."""

    @abstractmethod
    async def send_said(self, said: Said) -> str:
        """Tell the bot of a person's message. Return its id."""

    async def says(
        self,
        text: str,
        *,
        sender: str | None = None,
        chat: str | None = None,
        thread: str | None = None,
        mention: bool = False,
        file: Path | None = None,
        reply_to: str | None = None,
        **more: Any,
    ) -> str:
        chat = chat or (self.stranger_chat if sender == self.stranger else self.private)
        group = chat if chat == self.group else None
        if group is not None and not (mention or self.hears_groups):
            return "not for the bot"  # the platform tells it nothing of such a message
        self._last = await self.send_said(
            Said(text, sender or self.person, chat, group, thread, mention, file, reply_to, more)
        )
        return self._last

    def in_chat(self, chat: str) -> list[Any]:
        """The bot's messages in this chat."""
        return [post for post in self.posts if post.chat == chat]

    def shown(self, chat: str | None = None) -> list[Shown]:
        return [self.as_seen(post) for post in self.in_chat(chat or self.private)]

    def as_seen(self, post: Any) -> Shown:
        """A message of the bot as a person sees it."""
        return Shown(post.id, post.text, self.names_of(post))

    def names_of(self, post: Any) -> list[str]:
        """The names of its files."""
        return []

    async def again(self, message_id: str) -> None:
        """Tell the bot of a message once more."""
        raise NotImplementedError

    async def repeat_last(self) -> None:
        await self.again(self._last)

    # what goes wrong

    async def drop(self) -> None:
        assert self._runner.server is not None
        for connection in self._runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.sleep(0)

    async def gone(self, *, gone: bool) -> None:
        if not gone:
            await self._listen()
            return
        for site in [*self._runner.sites]:
            await site.stop()
        await self.drop()

    async def half_open(self) -> None:
        for line in self.lines:
            line.is_deaf = True

    def expire_tokens(self) -> None:
        """Forget all access tokens, as when the secret is reset."""
        self.tokens.clear()

    async def revoke(self) -> None:
        self.secret = "another"
        self.expire_tokens()
        await self.drop()

    def new_token(self) -> str:
        self.tokens.add(token := f"token-{next(self._ids)}")
        return token

    # requests

    def answered(self, handle: Callable[..., Any], *, raw: bool = False) -> Handler:
        """A route: what `handle` returns as JSON, or the refusal it raises.

        It is given the JSON of the request and the parts of the path by name; with `raw`, the request. An answer with
        `again` is never lost.
        """

        async def answer(request: web.Request) -> web.StreamResponse:
            self.note(request)
            try:
                self.check(request)
                if self.is_refusable(request):
                    self.refuse_one()
                if raw:
                    told = await handle(request)
                else:
                    told = handle(await request.json() if request.can_read_body else {}, **request.match_info)
                    told = await told if isawaitable(told) else told
            except RefusedError as error:
                return web.json_response(self.body_of(error), status=error.status, headers=error.headers)
            if isinstance(told, web.StreamResponse):
                return told
            if not told.pop("again", False) and self.lost and self.is_send(request):
                self.lost -= 1
                assert request.transport is not None
                request.transport.abort()
            return web.json_response(told)

        return answer

    def note(self, request: web.Request) -> None:
        """Add it to `calls`."""
        self.calls.append(f"{request.method} {request.path}")

    def refuse_one(self) -> None:
        if self.refusals:
            raise self.refusals.popleft()

    def check(self, request: web.Request) -> None:
        """Raise RefusedError where the bot has not logged in."""

    def is_send(self, request: web.Request) -> bool:
        """Whether it posts a message: its answer can be lost."""
        return False

    def is_refusable(self, request: web.Request) -> bool:
        return self.is_send(request)

    def body_of(self, error: RefusedError) -> Json:
        return {"code": error.code, "message": error.message, **error.more}

    def refusal(self, status: int, retry_after_s: float | None) -> RefusedError:
        """The platform's own form of an error: 500, 429 or 403."""
        raise NotImplementedError

    def refuse(self, times: int, *, status: int = 500, retry_after_s: float | None = None) -> None:
        self.refusals.extend(self.refusal(status, retry_after_s) for _ in range(times))

    def lose_answers(self, times: int) -> None:
        self.lost = times

    # connections

    async def serve_line(self, request: web.Request) -> web.WebSocketResponse:
        """A route: a connection that lasts."""
        socket = web.WebSocketResponse(max_msg_size=64 << 20, autoping=self.autoping)
        await socket.prepare(request)
        assert isinstance(request.transport, asyncio.Transport)
        self.lines.append(line := Line(socket, request.transport))
        try:
            await self.greet(line)
            async for frame in socket:
                if line.is_deaf:
                    continue
                if frame.type is WSMsgType.PING:
                    await socket.pong(frame.data)
                elif frame.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                    await self.receive(line, frame.data)
        except OSError:
            pass
        finally:
            self.lines.remove(line)
        return socket

    async def greet(self, line: Line) -> None:
        """What the platform sends first."""

    async def receive(self, line: Line, frame: Any) -> None:
        """Take a frame of the bot."""

    async def some_line(self) -> Line:
        """Wait until the bot is connected."""
        return await eventually(lambda: next(iter(self.lines), None), LINE_S)

    def typed(self, chat: str | None = None) -> int:
        return self.typed_in.count(chat or self.private)
