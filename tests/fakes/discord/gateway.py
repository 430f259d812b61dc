"""The gateway: sessions that a bot identifies or resumes, over sockets that break on demand.

https://discord.com/developers/docs/events/gateway and, for the close codes,
https://discord.com/developers/docs/topics/opcodes-and-status-codes
"""

import asyncio
import json
import zlib
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSMsgType, web

from tests.fakes.discord.world import APPLICATION, BOT, GUILD, TOKEN, Json, World, user

DISPATCH, HEARTBEAT, IDENTIFY, RESUME, RECONNECT, INVALID, HELLO, ACK = 0, 1, 2, 6, 7, 9, 10, 11
GUILDS, GUILD_MESSAGES, DIRECT_MESSAGES, CONTENT = 1 << 0, 1 << 9, 1 << 12, 1 << 15
PRIVILEGED = 1 << 1 | 1 << 8 | CONTENT
_KNOWN = (1 << 26) - 1


@dataclass(slots=True)
class Session:
    """What one bot is told, in its order; kept, so that it can be told again."""

    id: str
    intents: int
    told: list[Json] = field(default_factory=list)
    socket: "Socket | None" = None

    async def tell(self, event: str, data: Json) -> None:
        """Dispatch an event; it waits where nobody listens."""
        self.told.append({"op": DISPATCH, "s": len(self.told) + 1, "t": event, "d": data})
        if self.socket is not None:
            await self.socket.send(self.told[-1])


class Socket:
    """One connection. A deaf one hears nothing more, and says nothing."""

    def __init__(self, request: web.Request, ws: web.WebSocketResponse) -> None:
        self.ws = ws
        self.deaf = False
        self._request = request
        compress = request.query.get("compress")
        self._zlib = zlib.compressobj() if compress == "zlib-stream" else None

    async def send(self, payload: Json) -> None:
        """One payload, as the query of the connection asked for it."""
        text = json.dumps(payload)
        if self.deaf or self.ws.closed:
            return
        try:
            if self._zlib is None:
                await self.ws.send_str(text)
            else:
                await self.ws.send_bytes(self._zlib.compress(text.encode()) + self._zlib.flush(zlib.Z_SYNC_FLUSH))
        except ConnectionError:
            pass  # cut meanwhile: a resume asks for it again

    async def receive(self) -> Json | None:
        """The next payload; None at the end."""
        message = await self.ws.receive()
        while self.deaf and (transport := self._request.transport) is not None and not transport.is_closing():
            await asyncio.sleep(0.01)
        return json.loads(message.data) if message.type is WSMsgType.TEXT else None


class Gateway:
    """All sessions, and what is wrong with the gateway at the moment."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.url = ""
        self.token = TOKEN
        self.heartbeat_s = 0.1
        self.sessions: dict[str, Session] = {}
        self.sockets: set[Socket] = set()
        self.identified = asyncio.Event()
        self.forbidden = 0
        """Privileged intents that are switched off in the portal."""
        self.log: list[str] = []
        """What bots asked for: identify, resume; and the URL of each connection."""
        self.hangs_up = False
        """Whether it hangs up before it says hello."""

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        """One connection, from hello to its end."""
        if request.query.get("v") != "10" or request.query.get("encoding") != "json":
            raise web.HTTPBadRequest
        if request.query.get("compress") not in (None, "zlib-stream"):
            raise web.HTTPBadRequest
        self.log.append(str(request.rel_url))
        ws = web.WebSocketResponse(autoclose=False)
        await ws.prepare(request)
        if self.hangs_up:
            await ws.close(code=4000)
            return ws
        socket = Socket(request, ws)
        self.sockets.add(socket)
        session: Session | None = None
        try:
            await socket.send({"op": HELLO, "d": {"heartbeat_interval": int(self.heartbeat_s * 1000)}})
            while (asked := await socket.receive()) is not None:
                op = asked["op"]
                if op == HEARTBEAT:
                    await socket.send({"op": ACK})
                elif op in (IDENTIFY, RESUME) and session is None:
                    session = await (self._identify if op == IDENTIFY else self._resume)(socket, asked["d"])
                else:
                    await ws.close(code=4005 if op == IDENTIFY else 4001)
            if not ws.closed:
                await ws.close()
        finally:
            self.sockets.discard(socket)
            if session is not None and session.socket is socket:
                session.socket = None
        return ws

    async def tell(self, event: str, data: Json, *, needs: int = 0) -> None:
        """Dispatch to all who asked for such events."""
        for session in [*self.sessions.values()]:
            if session.intents & needs == needs:
                await session.tell(event, data)

    async def say(self, op: int, data: Any = None) -> None:
        """Say something to all connections that is no event: op 7 or op 9."""
        for socket in [*self.sockets]:
            await socket.send({"op": op, "d": data})

    async def close(self, code: int) -> None:
        """Close all connections with this code."""
        for socket in [*self.sockets]:
            await socket.ws.close(code=code)

    async def _identify(self, socket: Socket, asked: Json) -> Session | None:
        self.log.append("identify")
        intents = asked["intents"]
        refusal = 4004 if asked["token"] != self.token else 4013 if intents & ~_KNOWN else 0
        refusal = refusal or (4014 if intents & self.forbidden else 0)
        if refusal:
            await socket.ws.close(code=refusal)
            return None
        session = Session(f"session{len(self.sessions)}", intents, socket=socket)
        self.sessions = {session.id: session}  # a bot that identifies anew is told nothing in its old session
        ready = {
            "v": 10, "user": user(BOT), "guilds": [{"id": GUILD, "unavailable": True}], "session_id": session.id,
            "resume_gateway_url": self.url, "application": {"id": APPLICATION, "flags": 0},
        }  # fmt: skip
        await session.tell("READY", ready)
        if intents & GUILDS:
            await session.tell("GUILD_CREATE", self.world.guild())
        self.identified.set()
        return session

    async def _resume(self, socket: Socket, asked: Json) -> Session | None:
        self.log.append("resume")
        if asked["token"] != self.token:
            await socket.ws.close(code=4004)
            return None
        session = self.sessions.get(asked["session_id"])
        if session is None:
            await socket.send({"op": INVALID, "d": False})
            return None
        heard = asked["seq"]
        while heard < len(session.told):  # more may come meanwhile
            await socket.send(session.told[heard])
            heard += 1
        session.socket = socket
        await session.tell("RESUMED", {})
        return session
