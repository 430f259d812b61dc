"""What clients of the local socket ask for, each in a method: turns and their events, messages, how the gateway is."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from nanobot.agent.tools.base import ToolContext
from nanobot.agent.tools.shell import typed_by_owner
from nanobot.agent.turn import Answer, TurnEvent
from nanobot.bus.events import DeliveryFailedError, InboundMessage, OutboundKind, OutboundMessage
from nanobot.errors import NanobotError
from nanobot.gateway.report import Watch
from nanobot.gateway.terminal import TerminalChannel
from nanobot.gateway.wire import Frame, decoded, encoded
from nanobot.gateway.wishes import Wishes
from nanobot.messages.types import Origin, text_of
from nanobot.runtime import Runtime

SEND_S = 60.0
"""How long `send` waits for the platform's word."""
_UNREAD = 64 * 1024 * 1024
"""Bytes that may wait for a client that does not read; then it has left."""


class Talk:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def tell(self, frame: Frame) -> None:
        """Say it. Never raises and never waits; a client that does not read any more is let go."""
        transport = self._writer.transport
        if transport.is_closing():
            return
        self._writer.write(encoded(frame))
        if transport.get_write_buffer_size() > _UNREAD:
            transport.abort()

    def tell_event(self, event: TurnEvent) -> None:
        """A sink of turn events."""
        self.tell(event.to_json())

    async def hear(self) -> Frame | None:
        """What the client says next; None where it left. Raises ValueError for what is no frame."""
        line = await self._reader.readline()
        return decoded(line) if line.endswith(b"\n") else None

    def hang_up(self) -> None:
        """End it now: whoever waits for the client hears that it left."""
        self._writer.close()

    async def close(self) -> None:
        """Let go of it. Never raises."""
        with suppress(OSError):
            self._writer.close()
            await self._writer.wait_closed()


class Requests:
    """Answers them. `wire` has the language."""

    def __init__(self, runtime: Runtime, watch: Watch, wishes: Wishes, terminal: TerminalChannel) -> None:
        self._runtime = runtime
        self._watch = watch
        self._wishes = wishes
        self._terminal = terminal
        self._known: dict[str, Callable[[Frame, Talk], Awaitable[None]]] = {
            "about": self._about,
            "model": self._model,
            "turn": self._turn,
            "resume": self._resume,
            "exec": self._exec,
            "listen": self._listen,
            "background": self._background,
            "send": self._send,
            "report": self._report,
            "meet server": self._meet_server,
            "stop gateway": self._stop_gateway,
            "restart gateway": self._restart_gateway,
        }

    async def answer(self, request: Frame, talk: Talk) -> None:
        """Do what is asked. A refusal is an answer too; raises OSError and ValueError where the client is gone."""
        act = self._known.get(str(request.get("do")))
        if act is None:
            talk.tell(
                {"type": "error", "text": f"The gateway does not know {request.get('do')!r}. Is it an older one?"}
            )
            return
        try:
            await act(request, talk)
        except NanobotError as error:
            talk.tell({"type": "error", "text": str(error), "code": error.exit_code})
        except (KeyError, TypeError) as error:
            talk.tell({"type": "error", "text": f"The request is not whole: {error!r}."})

    async def _about(self, request: Frame, talk: Talk) -> None:
        """What a chat shows of the bot, and which session it is in."""
        runtime = self._runtime
        skills = await asyncio.to_thread(runtime.context.skills.skills)
        talk.tell(
            {
                "type": "about",
                "session": await asyncio.to_thread(self._session_of, request),
                "name": runtime.config.agents.defaults.bot_name,
                "workspace": str(runtime.workspace),
                "commands": runtime.loop.commands.names(),
                "exec": runtime.tools.has("exec"),
                "skills": {skill.name: skill.description for skill in skills if skill.available},
            }
        )

    async def _model(self, request: Frame, talk: Talk) -> None:
        """The model a session asks."""
        session = await asyncio.to_thread(self._runtime.sessions.get_or_create, str(request["session"]))
        model = await self._runtime.models.get(session.metadata.get("model"))
        told = {"name": model.name, "window": model.limits.window_tokens}
        talk.tell({"type": "model", **told, "provider": model.provider_name, "reason": model.reason})

    async def _exec(self, request: Frame, talk: Talk) -> None:
        """A shell command of the person's own, through the agent's tool and all that guards it."""
        runtime, key = self._runtime, str(request["session"])
        address = _from_terminal("", key).address
        command = str(request["command"])
        context = ToolContext(key, address, turn_id="", workspace=runtime.workspace, clock=runtime.clock)
        result = await runtime.tools.call("exec", {"command": command}, typed_by_owner(command, context))
        talk.tell({"type": "ran", "text": text_of(result.content), "error": bool(result.error)})

    async def _turn(self, request: Frame, talk: Talk) -> None:
        """A message's turn, with its events; lines that wait meanwhile may join it.

        With `shows`, what is sent to this chat meanwhile is told too: the client does not listen for it besides.
        """
        key = self._session_of(request)
        media = [str(path) for path in request.get("media", ())]
        waiting: list[InboundMessage] = []

        def joining(most: int) -> Sequence[InboundMessage]:
            taken = waiting[:most]
            del waiting[:most]
            if taken:
                talk.tell({"type": "joined", "count": len(taken)})
            return taken

        async def turn() -> None:
            text = await self._heard(str(request["text"]), media)
            message, attended = _from_terminal(text, key, media), bool(request.get("answers"))
            await self._runtime.loop.run_turn(message, talk.tell_event, waiting=joining, attended=attended)

        def told(frame: Frame) -> None:
            if frame.get("do") == "answer":
                self._answered(frame)
                return
            waiting[:] = [
                _from_terminal(str(line["text"]), key, line.get("media", ())) for line in frame.get("lines", ())
            ]

        with self._shown(key, talk) if request.get("shows") else nullcontext():
            await _until_it_ends(turn(), talk, told)

    async def _resume(self, request: Frame, talk: Talk) -> None:
        """The turn of a session that was cut off, if there is one."""

        async def turn() -> None:
            key, attended = self._session_of(request), bool(request.get("answers"))
            if await self._runtime.loop.resume(key, talk.tell_event, attended=attended) is None:
                talk.tell({"type": "nothing"})

        await _until_it_ends(turn(), talk, self._answered)

    def _answered(self, frame: Frame) -> None:
        """Who sits at a terminal answers what their turn has asked. Raises ValueError for what is no answer."""
        if frame.get("do") == "answer":
            self._runtime.questions.answer(str(frame.get("question")), Answer(str(frame.get("answer"))))

    async def _listen(self, request: Frame, talk: Talk) -> None:
        """What comes for a chat at the terminal, until it leaves."""
        with self._shown(str(request["session"]), talk):
            talk.tell({"type": "listening"})
            while await talk.hear() is not None:
                pass

    async def _background(self, request: Frame, talk: Talk) -> None:
        """Until nothing works for a session any more, with what comes for its chat meanwhile."""
        key, background = self._session_of(request), self._runtime.background
        with self._shown(key, talk):
            if at_work := background.at_work(key):
                talk.tell({"type": "working", "at_work": at_work})
            await _until_it_ends(background.all_shown(key), talk, self._answered)
        talk.tell({"type": "told"})

    def _shown(self, key: str, talk: Talk) -> AbstractContextManager[None]:
        """Tell the client what is sent to the chat of this session, until the block ends."""
        return self._terminal.shown_by(_chat_of(key), lambda text: talk.tell({"type": "message", "text": text}))

    async def _send(self, request: Frame, talk: Talk) -> None:
        """A message out, to a chat or to a person; the platform's ids of it."""
        name, to = str(request["channel"]), str(request["to"])
        if self._watch.roster.manager.get(name) is None:
            raise NanobotError(self._no_channel(name))
        if request.get("person"):
            to = await self._watch.roster.manager.chat_with(name, to) or to
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
                f"{name} has not taken it within {SEND_S:.0f} s. It waits in the journal and is sent when it can be."
            ) from error
        talk.tell({"type": "sent", "ids": list(ids)})

    def _no_channel(self, name: str) -> str:
        broken = self._watch.roster.broken.get(name)
        if broken:
            return f"{name} cannot send: {broken}"
        here = ", ".join(self._watch.roster.names) or "none"
        return f"There is no channel {name!r} in this gateway; there is {here}. Set channels.{name}.enabled."

    async def _report(self, request: Frame, talk: Talk) -> None:
        """How the gateway is."""
        talk.tell({"type": "report", **await self._watch.report()})

    async def _meet_server(self, request: Frame, talk: Talk) -> None:
        """Whether an MCP server of this gateway answers, which is started or reached if it is not yet."""
        servers = self._runtime.servers
        server = servers.named(str(request["name"])) if servers is not None else None
        if server is None:
            talk.tell({"type": "server", "known": False})
            return
        await server.connect()
        told = {"tools": len(server.offered()), "leftOut": server.left_out, "unknown": server.unknown_tools()}
        talk.tell({"type": "server", "known": True, **told})

    async def _stop_gateway(self, request: Frame, talk: Talk) -> None:
        talk.tell({"type": "leaving"})
        self._wishes.stop()

    async def _restart_gateway(self, request: Frame, talk: Talk) -> None:
        talk.tell({"type": "leaving"})
        self._wishes.restart()

    def _session_of(self, request: Frame) -> str:
        """The session that is asked for; with `continue`, the terminal's newest."""
        newest = self._runtime.sessions.latest(_is_terminals) if request.get("continue") else None
        return str(newest or request.get("session") or "cli:direct")

    async def _heard(self, text: str, media: Sequence[str]) -> str:
        """The text with what is said in the recordings among the attachments."""
        if not media:
            return text
        from nanobot.providers.transcription import choose_transcriber, is_recording, with_transcriptions

        if not any(map(is_recording, media)):
            return text
        chosen = choose_transcriber(self._runtime.config, os.environ)
        try:
            return await with_transcriptions(text, [*media], chosen)
        finally:
            if chosen.transcriber is not None:
                await chosen.transcriber.close()


async def _until_it_ends(turn: Awaitable[None], talk: Talk, told: Callable[[Frame], None]) -> None:
    """Run a turn; stop it when the client says so or leaves. What else the client says is `told`."""
    running = asyncio.ensure_future(turn)
    hearing = asyncio.ensure_future(_hear(talk, told))
    try:
        await asyncio.wait((running, hearing), return_when=asyncio.FIRST_COMPLETED)
    finally:
        running.cancel()  # it has ended, or nobody wants it any more; then what was said is kept
        hearing.cancel()
        await asyncio.wait((running, hearing))
    if not running.cancelled():
        running.result()


async def _hear(talk: Talk, told: Callable[[Frame], None]) -> None:
    """Until the client says stop, or leaves."""
    with suppress(OSError, ValueError):
        while (frame := await talk.hear()) is not None and frame.get("do") != "stop":
            told(frame)


def _from_terminal(text: str, key: str, media: Sequence[str] = ()) -> InboundMessage:
    paths = [str(Path(path)) for path in media]
    return InboundMessage.from_owner("cli", _chat_of(key), text, session_key=key, origin=Origin.CLI, media=paths)


def _chat_of(session_key: str) -> str:
    return session_key.removeprefix("cli:") or "direct"


def _is_terminals(key: str) -> bool:
    return key.startswith("cli:") or ":" not in key
