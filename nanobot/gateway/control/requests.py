"""The requests of the local socket: turns and their events, outbound messages, health, stop and restart."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from nanobot.agent.events import Answer
from nanobot.agent.feed import Feed, FeedClosedError, stored_view
from nanobot.agent.recovery import find_interrupted_turn
from nanobot.bus.events import DeliveryFailedError, InboundMessage, OutboundKind, OutboundMessage
from nanobot.config.paths import DataPaths
from nanobot.errors import NanobotError
from nanobot.gateway.control.backend import LocalBackend, chat_of, terminal_message, transcribe_attachments
from nanobot.gateway.control.terminal import TerminalChannel
from nanobot.gateway.report import HealthReporter
from nanobot.gateway.shutdown import ShutdownRequests
from nanobot.messages.types import Origin
from nanobot.net.gateway_socket import Connection, Frame
from nanobot.runtime.build import Runtime

ABANDONED_S = 2.0
"""A turn is stopped this time after its client has left."""
SEND_S = 60.0
"""How long `send` waits for the platform's answer."""
_UNKNOWN = "The gateway does not know the request {name!r}. It may be an older version: `nanobot gateway restart`."


class ControlRequests:
    """Handles requests. The protocol is in `net.gateway_socket`."""

    def __init__(
        self,
        runtime: Runtime,
        feed: Feed,
        reporter: HealthReporter,
        shutdown: ShutdownRequests,
        terminal: TerminalChannel,
        new_link: Callable[[], Awaitable[str]],
        api_urls: Callable[[], list[str]],
    ) -> None:
        """`new_link` returns a one-time link to the page; raises NanobotError. `api_urls`: where the API is."""
        self._api_urls = api_urls
        self._new_link = new_link
        self._runtime = runtime
        self._bot = LocalBackend(runtime)
        self._feed = feed
        self._followers: Counter[str] = Counter()
        """Connections of the clients that have sent a message, by the id of its turn."""
        self._tasks: set[asyncio.Task[object]] = set()
        self._reporter = reporter
        self._shutdown = shutdown
        self._terminal = terminal
        self._answers: dict[str, Callable[[Frame], Awaitable[Frame]]] = {
            "about": self._about,
            "session": self._session,
            "sessions": self._sessions,
            "exec": self._exec,
            "check exec": self._check_exec,
            "waiting": self._waiting,
            "answer": self._answer_question,
            "stop turn": self._stop_turn,
            "send": self._send,
            "report": self._report,
            "mcp server": self._mcp_server,
            "web link": self._web_link,
            "api urls": self._send_api_urls,
            "stop gateway": self._stop_gateway,
            "restart gateway": self._restart_gateway,
        }
        """Requests with one frame as answer."""
        self._streams: dict[str, Callable[[Frame, Connection], Awaitable[None]]] = {
            "turn": self._turn,
            "resume": self._resume,
            "listen": self._listen,
            "background": self._background,
        }

    async def answer(self, request: Frame, client: Connection) -> None:
        """Handle a request; errors are sent to the client. Raises OSError if the client is gone."""
        name = str(request.get("do"))
        try:
            if (answer := self._answers.get(name)) is not None:
                client.send(await answer(request))
            elif (stream := self._streams.get(name)) is not None:
                await stream(request, client)
            else:
                raise NanobotError(_UNKNOWN.format(name=name))
        except NanobotError as error:
            client.send({"type": "error", "text": str(error), "code": error.exit_code})
        except (KeyError, TypeError, ValueError) as error:
            client.send({"type": "error", "text": f"The request is incomplete: {error!r}."})

    async def _about(self, request: Frame) -> Frame:
        """What a terminal chat shows: the bot, its commands and skills, and the session."""
        bot, is_continuing = self._bot, bool(request.get("continue"))
        return {
            "session": await asyncio.to_thread(bot.session_of, request["session"], continue_latest=is_continuing),
            "name": self._runtime.config.agents.defaults.bot_title,  # may have changed
            "workspace": str(bot.workspace),
            "commands": bot.commands(),
            "skills": await asyncio.to_thread(bot.skills),
        }

    async def _session(self, request: Frame) -> Frame:
        return asdict(await self._bot.session_info(str(request["session"])))

    async def _sessions(self, request: Frame) -> Frame:
        """The conversations that a terminal chat of this session may reopen."""
        return {"sessions": [asdict(item) for item in await self._bot.conversations(str(request["session"]))]}

    async def _exec(self, request: Frame) -> Frame:
        """Run a shell command that the user typed, with the agent's tool and its guards."""
        command, session, folder = (str(request[name]) for name in ("command", "session", "folder"))
        text, ok = await self._bot.shell(command, session, folder)
        return {"text": text, "ok": ok}

    async def _check_exec(self, request: Frame) -> Frame:
        return {"refusal": await self._bot.check_for_terminal(str(request["command"]), str(request["folder"]))}

    async def _turn(self, request: Frame, client: Connection) -> None:
        """Accept a message, heard once however often it is sent, and follow its turn.

        A turn that its client has left is stopped soon after, unless the client comes back.
        """
        key, turn_id = str(request["session"]), str(request["turn"])
        self._followers[turn_id] += 1
        try:
            if not self._is_open(key, turn_id) and self._feed.view(turn_id) is None:
                await self._runtime.bus.publish_inbound(await self._message(request, key, turn_id))
            with self._forward_messages(key, client) if request.get("shows") else nullcontext():
                await self._follow(request, key, turn_id, client, partial(self._is_open, key, turn_id))
        finally:
            self._followers[turn_id] -= 1
            if not self._followers[turn_id]:
                del self._followers[turn_id]
                if self._is_open(key, turn_id):
                    asyncio.get_running_loop().call_later(ABANDONED_S, self._stop_abandoned, key, turn_id)
                else:
                    self._terminal.waiting_lines.pop(turn_id, None)

    async def _message(self, request: Frame, key: str, turn_id: str) -> InboundMessage:
        media = [str(path) for path in request.get("media", ())]
        text = await transcribe_attachments(self._runtime.config, str(request["text"]), media)
        options: Frame | None = request.get("options")  # of a program
        if options is None:
            message = terminal_message(text, key, media, str(request.get("folder", "")))
        else:  # in the session of a chat, its jobs and reports go to that chat
            channel, _, chat_id = key.partition(":")
            if channel not in self._runtime.config.channels.enabled_by_name():
                channel, chat_id = "sdk", "direct"
            message = InboundMessage.from_owner(channel, chat_id, text, session_key=key, origin=Origin.API, media=media)
        attended = bool(request.get("attended"))
        return replace(message, message_id=turn_id, turn_id=turn_id, attended=attended, request=options or {})

    async def _resume(self, request: Frame, client: Connection) -> None:
        """Follow the turn that a terminal or program has begun in a session, or resume an interrupted one."""
        key = str(request["session"])
        running = (view.started for view in self._feed.views(key))
        turn_id = next((started.turn_id for started in running if started.turn_id == started.message_id), "")
        if not turn_id:
            folder = DataPaths(self._runtime.data_dir).turns
            interrupted = await asyncio.to_thread(find_interrupted_turn, folder, key)
            turn_id = interrupted.turn_id if interrupted is not None else ""
        resuming: asyncio.Task[object] | None = None
        if not self._is_open(key, turn_id):  # the loop resumes what was journaled
            resuming = self._start(self._runtime.loop.resume(key, attended=bool(request.get("attended"))))
            if not turn_id:
                await asyncio.wait([resuming])
                client.send({"type": "nothing"})
                return

        def is_open() -> bool:
            return self._is_open(key, turn_id) if resuming is None else not resuming.done()

        await self._follow(request, key, turn_id, client, is_open)

    async def _follow(
        self, request: Frame, key: str, turn_id: str, client: Connection, is_open: Callable[[], bool]
    ) -> None:
        """Send the events of a turn until it ends or the client leaves. It may begin as long as it `is_open`."""

        async def send() -> None:
            view = await self._feed.wait_view(turn_id, is_open)
            if view is None:
                session = await asyncio.to_thread(self._runtime.sessions.read, key)
                view = stored_view(session, turn_id, Origin.CLI) if session is not None else None
            if view is None:
                raise NanobotError(f"The session {key} has no turn {turn_id}.")
            async for frame in self._feed.follow_turn(view, str(request.get("seen", ""))):
                client.send(frame)

        with suppress(FeedClosedError):  # the client comes back
            await _run_for_client(send(), client)

    def _is_open(self, key: str, turn_id: str) -> bool:
        return self._runtime.bus.is_open(key, turn_id)

    def _stop_abandoned(self, key: str, turn_id: str) -> None:
        if turn_id not in self._followers:
            self._terminal.waiting_lines.pop(turn_id, None)
            if self._is_open(key, turn_id) and not self._runtime.loop.is_stopping:
                self._start(self._runtime.loop.stop_turn(key, turn_id))

    def _start(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
        """Run work that goes on when its client leaves."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _waiting(self, request: Frame) -> Frame:
        """Replace the lines that wait in a terminal, which its turn may take."""
        if request["turn"] in self._followers:
            self._terminal.waiting_lines[request["turn"]] = [
                terminal_message(line["text"], line["session"], line["media"], line["folder"])
                for line in request["lines"]
            ]
        return {}

    async def _answer_question(self, request: Frame) -> Frame:
        """Answer an approval question as the owner."""
        return {"answered": self._runtime.questions.answer(str(request["question"]), Answer(request["answer"]))}

    async def _listen(self, request: Frame, client: Connection) -> None:
        """Send outbound messages to a terminal chat until the client leaves."""
        with self._forward_messages(str(request["session"]), client, for_all=True):
            await _wait_left(client)

    async def _background(self, request: Frame, client: Connection) -> None:
        """Wait for the background work of a session, and send outbound messages to its chat meanwhile."""
        key, background = str(request["session"]), self._runtime.background
        with self._forward_messages(key, client):
            if running := background.list_running(key):
                client.send({"type": "working", "running": running})
            await _run_for_client(background.wait_until_delivered(key), client)
        client.send({"type": "delivered"})

    def _forward_messages(self, key: str, client: Connection, *, for_all: bool = False) -> AbstractContextManager[None]:
        """Send the client the outbound messages to the session's chat until the block ends."""

        def show(text: str) -> None:
            client.send({"type": "message", "text": text})

        return self._terminal.shown_by(chat_of(key), show, for_all=for_all)

    async def _send(self, request: Frame) -> Frame:
        """Send a message to a chat or a person, and answer with its platform ids."""
        name, to = str(request["channel"]), str(request["to"])
        if self._reporter.channels.manager.get(name) is None:
            if broken := self._reporter.channels.broken.get(name):
                raise NanobotError(f"{name} cannot send: {broken}")
            running = ", ".join(self._reporter.channels.names) or "none"
            raise NanobotError(
                f"This gateway runs no channel {name!r} (running: {running}). Set channels.{name}.enabled."
            )
        if request.get("person"):
            to = await self._reporter.channels.manager.chat_with(name, to) or to
        message = OutboundMessage(
            name, to, str(request["text"]), media=[str(path) for path in request.get("media", ())],
            kind=OutboundKind.NOTICE, thread_id=request.get("thread"),
        )  # fmt: skip
        receipt = await self._runtime.bus.publish_outbound(message)
        try:
            async with asyncio.timeout(SEND_S):
                ids = await receipt.wait()
        except TimeoutError as error:
            raise DeliveryFailedError(
                f"{name} did not accept the message within {SEND_S:.0f} s. It stays queued and is sent when possible."
            ) from error
        return {"ids": list(ids)}

    async def _report(self, request: Frame) -> Frame:
        return await self._reporter.report()

    async def _mcp_server(self, request: Frame) -> Frame:
        """Connect to an MCP server if needed, and send the tools it offers."""
        servers = self._runtime.servers
        server = servers.find(str(request["name"])) if servers is not None else None
        if server is None:
            return {"known": False}
        await server.connect()
        counts = {"tools": len(server.offered_names()), "leftOut": server.left_out, "unknown": server.unknown_tools()}
        return {"known": True, **counts}

    async def _web_link(self, request: Frame) -> Frame:
        return {"url": await self._new_link()}

    async def _send_api_urls(self, request: Frame) -> Frame:
        return {"urls": self._api_urls()}

    async def _stop_turn(self, request: Frame) -> Frame:
        """Stop a turn, or the running turn of a session, also one of another client."""
        key, turn_id = str(request["session"]), request.get("turn")
        return {"stopped": await self._runtime.loop.stop_turn(key, turn_id)}

    async def _stop_gateway(self, request: Frame) -> Frame:
        self._shutdown.stop()
        return {}

    async def _restart_gateway(self, request: Frame) -> Frame:
        self._shutdown.restart()
        return {}


async def _run_for_client(work: Awaitable[object], client: Connection) -> None:
    """Run `work` until it ends or the client leaves."""
    running = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_wait_left(client))
    try:
        await asyncio.wait((running, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        running.cancel()
        leaving.cancel()
        await asyncio.wait((running, leaving))
    if not running.cancelled():
        running.result()


async def _wait_left(client: Connection) -> None:
    with suppress(OSError, ValueError):
        while await client.receive() is not None:
            pass
