"""The plugin keeps what nanobot promises of channels: `python -m pytest test_mattermost.py`, with aiohttp installed.

`FakeMattermost` does what developers.mattermost.com/api-documentation says of the requests that the plugin makes.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.metadata import entry_points
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from nanobot.bus.queue import MessageBus
from nanobot.channels.base import BaseChannel
from nanobot.testing import Check
from nanobot.testing.channels import channel_checks
from nanobot.testing.platform import Platform, Shown

ME, TOKEN = "botbotbotbotbotbotbotbotbo", "tokentokentokentokentokent"


class FakeMattermost(Platform):
    """A server with a private channel for each person, and one of a team."""

    name = "mattermost"
    person, private = "anna", "dm-anna"
    stranger, stranger_chat = "zoe", "dm-zoe"
    group = "town-square"
    thread = "post-0"
    limit = 16_383
    edits = threads = files = dedupes = queues_messages = reacts = types = loses_answers = True
    acknowledges = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._token = TOKEN
        self._channels = {"dm-anna": "D", "dm-zoe": "D", "town-square": "O"}
        self._posts: dict[str, dict[str, Any]] = {}
        self._pending: dict[str, str] = {}
        self._edits: dict[str, int] = {}
        self._files: dict[str, tuple[str, bytes]] = {}
        self._reactions: dict[str, list[str]] = {}
        self._typing: list[str] = []
        self._sockets: list[web.WebSocketResponse] = []
        self._deaf: list[web.WebSocketResponse] = []
        self._refusals: deque[tuple[int, float | None]] = deque()
        self._losses = 0
        self._ids = count(1)
        self._last = ""
        self._port = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator["FakeMattermost"]:
        @web.middleware
        async def guard(request: web.Request, handler: Any) -> web.StreamResponse:
            return await self._guard(request, handler)

        app = web.Application(middlewares=[guard], client_max_size=64 << 20)
        app.add_routes(
            [
                web.get("/api/v4/websocket", self._serve_socket),
                web.get("/api/v4/users/me", self._give_me),
                web.get("/api/v4/users/{user}/channels", self._list_channels),
                web.post("/api/v4/users/{user}/typing", self._type),
                web.get("/api/v4/channels/{channel}/posts", self._list_posts),
                web.post("/api/v4/channels/direct", self._open_direct),
                web.post("/api/v4/posts", self._create_post),
                web.put("/api/v4/posts/{post}/patch", self._patch_post),
                web.post("/api/v4/reactions", self._react),
                web.post("/api/v4/files", self._upload),
                web.get("/api/v4/files/{file}", self._give_file),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        try:
            await self._listen()
            yield self
        finally:
            await self._runner.cleanup()

    def channel(self, bus: MessageBus, **settings: Any) -> BaseChannel:
        (found,) = entry_points(group="nanobot.channels", name=self.name)
        section = {"serverUrl": f"http://127.0.0.1:{self._port}", "token": TOKEN, "allowFrom": [self.person]}
        channel: BaseChannel = found.load()(section | settings, bus)
        vars(channel)["ping_s"] = 0.1
        return channel

    # what people do and see

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
    ) -> str:
        files = [] if file is None else [self._put_file(file)]
        message = f"@nano {text}" if mention else text
        self._last = self._add(sender or self.person, chat or self.private, message, thread or "", files=files)
        await self.repeat_last()
        return self._last

    def _put_file(self, file: Path) -> dict[str, Any]:
        self._files[file.name] = (file.name, file.read_bytes())
        return {"id": file.name, "name": file.name, "mime_type": "image/png", "size": file.stat().st_size}

    def _add(self, user: str, channel: str, message: str, root: str, **metadata: Any) -> str:
        post_id, now = f"post-{next(self._ids)}", int(time.time() * 1000)
        self._posts[post_id] = {
            "id": post_id, "create_at": now, "update_at": now, "user_id": user, "channel_id": channel,
            "root_id": root, "message": message, "type": "", "metadata": metadata,
        }  # fmt: skip
        return post_id

    async def repeat_last(self) -> None:
        post = self._posts[self._last]
        data = {
            "channel_type": self._channels[post["channel_id"]], "post": json.dumps(post),
            "sender_name": f"@{post['user_id']}",
        }  # fmt: skip
        for socket in self._sockets:
            if socket not in self._deaf and not socket.closed:
                with suppress(OSError):  # it breaks just now
                    await socket.send_json({"event": "posted", "data": data, "seq": 1})

    def shown(self, chat: str | None = None) -> list[Shown]:
        mine = [post for post in self._posts.values() if post["user_id"] == ME]
        return [
            Shown(
                post["id"],
                post["message"],
                [self._files[file][0] for file in post["metadata"]["file_ids"]],
                thread_id=post["root_id"] or None,
                edits=self._edits.get(post["id"], 0),
            )
            for post in mine
            if post["channel_id"] == (chat or self.private)
        ]

    def reactions_on(self, message_id: str) -> list[str]:
        return self._reactions.get(message_id, [])

    def typed(self, chat: str | None = None) -> int:
        return self._typing.count(chat or self.private)

    # what goes wrong

    def refuse(self, times: int, *, status: int = 500, retry_after_s: float | None = None) -> None:
        self._refusals.extend([(status, retry_after_s)] * times)

    def lose_answers(self, times: int) -> None:
        self._losses = times

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
        self._deaf = [*self._sockets]

    async def revoke(self) -> None:
        self._token = "another"
        await self.drop()

    async def _listen(self) -> None:
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self._port = self._port or self._runner.addresses[0][1]

    # the server

    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {self._token}":
            return web.json_response({"message": "Invalid or expired session.", "status_code": 401}, status=401)
        writes = request.path.endswith(("/posts", "/patch")) and request.method != "GET"
        if writes and self._refusals:
            status, reset_s = self._refusals.popleft()
            headers = {} if reset_s is None else {"X-Ratelimit-Reset": str(reset_s)}
            return web.json_response({"message": "refused", "status_code": status}, status=status, headers=headers)
        response: web.StreamResponse = await handler(request)
        return response

    async def _serve_socket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self._sockets.append(socket)
        try:
            await socket.send_json({"event": "hello", "data": {}, "seq": 0})
            async for frame in socket:
                if socket not in self._deaf:
                    sent = json.loads(frame.data)
                    await socket.send_json({"status": "OK", "data": {"text": "pong"}, "seq_reply": sent["seq"]})
        except OSError:
            pass
        finally:
            self._sockets.remove(socket)
        return socket

    async def _give_me(self, _: web.Request) -> web.Response:
        return web.json_response({"id": ME, "username": "nano"})

    async def _list_channels(self, _: web.Request) -> web.Response:
        last = {post["channel_id"]: post["create_at"] for post in self._posts.values()}
        listed = [{"id": one, "type": kind, "last_post_at": last.get(one, 0)} for one, kind in self._channels.items()]
        return web.json_response(listed)

    async def _list_posts(self, request: web.Request) -> web.Response:
        since, channel = int(request.query["since"]), request.match_info["channel"]
        posts = [post for post in self._posts.values() if post["channel_id"] == channel and post["update_at"] >= since]
        return web.json_response({"order": [post["id"] for post in posts[::-1]], "posts": {p["id"]: p for p in posts}})

    async def _open_direct(self, request: web.Request) -> web.Response:
        _, other = await request.json()
        return web.json_response({"id": f"dm-{other}", "type": "D"}, status=201)

    async def _create_post(self, request: web.Request) -> web.Response:
        body = await request.json()
        pending = body.get("pending_post_id", "")
        if pending not in self._pending or not pending:
            files = body.get("file_ids", [])
            assert body["channel_id"] in self._channels
            assert len(body["message"]) <= self.limit
            assert body["message"] or files
            post_id = self._add(ME, body["channel_id"], body["message"], body["root_id"], file_ids=files)
            self._pending[pending] = post_id
            if self._losses and request.transport is not None:
                self._losses -= 1
                request.transport.abort()
        return web.json_response(self._posts[self._pending[pending]], status=201)

    async def _patch_post(self, request: web.Request) -> web.Response:
        post = self._posts[request.match_info["post"]]
        post["message"] = (await request.json())["message"]
        self._edits[post["id"]] = self._edits.get(post["id"], 0) + 1
        return web.json_response(post)

    async def _react(self, request: web.Request) -> web.Response:
        body = await request.json()
        self._reactions.setdefault(body["post_id"], []).append(body["emoji_name"])
        return web.json_response(body, status=201)

    async def _type(self, request: web.Request) -> web.Response:
        self._typing.append((await request.json())["channel_id"])
        return web.json_response({"status": "OK"})

    async def _upload(self, request: web.Request) -> web.Response:
        part = (await request.post())["files"]
        assert isinstance(part, web.FileField)
        file_id = f"file-{next(self._ids)}"
        self._files[file_id] = (part.filename, part.file.read())
        return web.json_response({"file_infos": [{"id": file_id}]}, status=201)

    async def _give_file(self, request: web.Request) -> web.Response:
        return web.Response(body=self._files[request.match_info["file"]][1])


@pytest.mark.parametrize("check", channel_checks(FakeMattermost), ids=str)
def test_the_channel(check: Check, tmp_path: Path) -> None:
    check(tmp_path)
