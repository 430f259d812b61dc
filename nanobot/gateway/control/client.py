"""The bot of a running gateway as a ChatBackend: each request uses its own connection to the control socket."""

import asyncio
import os
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanobot.agent.events import Answer, EventSink, TurnOutcome, TurnResult
from nanobot.agent.remote_turn import RETRIES, RETRY_S, RemoteTurn, follow_turn, socket_frames, stop_turn
from nanobot.bus.events import InboundMessage
from nanobot.gateway.control.backend import ChatBackend, Joining, OnBackgroundStart, SessionInfo, Show
from nanobot.net.gateway_socket import Frame, GatewayError, ask, connect, settings_in

if TYPE_CHECKING:
    from nanobot.agent.commands.sessions import Conversation

GATEWAY_BACK = "The gateway is back."
_RETRIES = 5
"""Of a chat, which then continues without the gateway."""


class GatewayBackend(ChatBackend):
    """Runs everything in the gateway, which alone writes the sessions."""

    def __init__(self, state: Path, about: Mapping[str, Any], *, retry_s: float = RETRY_S) -> None:
        """`about` describes the bot and the session; see `find_backend`. A lost gateway is tried every `retry_s`."""
        self._state = state
        self._retry_s = retry_s
        self._about = about
        self.session_key = str(about.get("session", ""))
        """The session this backend was opened for."""
        self.name = str(about.get("name", ""))
        self.workspace = Path(about.get("workspace", ""))
        self._running: RemoteTurn | None = None
        self._last: RemoteTurn | None = None
        """The turn that was shown last: if the gateway has restarted meanwhile, it goes on."""
        self._sent: asyncio.Task[None] | None = None
        """The last request that was sent in the background."""

    def commands(self) -> Mapping[str, str]:
        return dict(self._about["commands"])

    def skills(self) -> Mapping[str, str]:
        """Available skills when the chat was opened."""
        return dict(self._about["skills"])

    async def session_info(self, session_key: str) -> SessionInfo:
        return SessionInfo(**await ask(self._state, {"do": "session", "session": session_key}))

    async def conversations(self, session_key: str) -> "list[Conversation]":
        from nanobot.agent.commands.sessions import Conversation  # slow to import

        reply = await ask(self._state, {"do": "sessions", "session": session_key})
        return [Conversation(**row) for row in reply["sessions"]]

    async def run_turn(
        self,
        message: InboundMessage,
        sink: EventSink | None = None,
        *,
        waiting: Joining | None = None,
        show: Show | None = None,
        attended: bool = False,
    ) -> TurnResult:
        """Run the turn. Cancelling stops it and waits until it has ended."""

        def on_frame(frame: Frame) -> None:
            match frame:
                case {"type": "lines_joined", "count": int(count)} if waiting is not None:
                    waiting(count)
                case {"type": "message", "text": text} if show is not None:
                    show(text)

        turn_id = secrets.token_hex(8)
        request: Frame = {"do": "turn", "turn": turn_id, "text": message.content, "session": message.session_key}
        request |= {"media": message.media, "folder": message.folder, "attended": attended, "shows": show is not None}
        turn = RemoteTurn(sink or (lambda event: None), turn_id)
        if sink is not None:  # without a sink it is a command beside the turn
            self._last = turn
        return await self._follow(request, turn, on_frame)

    async def resume(self, session_key: str, sink: EventSink, *, attended: bool = False) -> None:
        if self._last is None or self._last.sink != sink:
            self._last = RemoteTurn(sink)
        await self._follow({"do": "resume", "session": session_key, "attended": attended}, self._last)

    async def _follow(
        self, request: Frame, turn: RemoteTurn, on_frame: Callable[[Frame], object] = lambda frame: None
    ) -> TurnResult:
        if turn is self._last:
            self._running = turn
        try:
            ended = await follow_turn(
                turn,
                partial(socket_frames, self._state, request, turn),
                lambda: stop_turn(self._state, request["session"], turn.turn_id),
                on_frame,
                retry_s=self._retry_s,
                retries=RETRIES if request.get("shows") else _RETRIES,
            )
        finally:
            if self._running is turn:
                self._running = None
        if ended is None:
            return TurnResult(TurnOutcome.ANSWERED, "")
        return TurnResult(ended.outcome, ended.text, ended.error, ended.turn_id)

    async def stop_turn(self, session_key: str) -> bool:
        if self._running is None:
            return False
        return await stop_turn(self._state, session_key, self._running.turn_id)

    def set_waiting_lines(self, messages: Sequence[InboundMessage]) -> None:
        if self._running is not None:
            lines = [
                {"text": item.content, "media": item.media, "session": item.session_key, "folder": item.folder}
                for item in messages
            ]
            self._start({"do": "waiting", "turn": self._running.turn_id, "lines": lines})

    def answer(self, question: str, answer: Answer) -> None:
        self._start({"do": "answer", "question": question, "answer": answer})

    def _start(self, request: Frame) -> None:
        """Send a request in the background, after those before it."""
        previous = self._sent

        async def send() -> None:
            if previous is not None:
                await asyncio.wait([previous])
            with suppress(GatewayError):
                await ask(self._state, request)

        self._sent = asyncio.create_task(send())

    async def shell(self, command: str, session_key: str, folder: str) -> tuple[str, bool]:
        request = {"do": "exec", "command": command, "session": session_key, "folder": folder}
        reply = await ask(self._state, request)
        return reply["text"], reply["ok"]

    async def check_for_terminal(self, command: str, folder: str) -> str:
        request = {"do": "check exec", "command": command, "folder": folder}
        return str((await ask(self._state, request))["refusal"])

    async def messages(self, session_key: str) -> AsyncGenerator[str, None]:
        """Messages for this chat, across restarts of the gateway, of which it tells. Ends if it does not come back."""
        failures, was_lost = 0, False
        while failures <= _RETRIES:
            async with connect(self._state) as connection:
                if connection is None:
                    failures += 1
                else:
                    if was_lost:
                        yield GATEWAY_BACK
                    failures = 0
                    connection.send({"do": "listen", "session": session_key})
                    with suppress(GatewayError):
                        while (frame := await connection.receive()) is not None:
                            if frame.get("type") == "message":
                                yield str(frame.get("text", ""))
            was_lost = True
            await asyncio.sleep(self._retry_s)

    async def wait_for_background(self, session_key: str, on_start: OnBackgroundStart, show: Show) -> None:
        async with connect(self._state) as connection:
            if connection is None:
                return
            connection.send({"do": "background", "session": session_key})
            while (frame := await connection.receive()) is not None and frame.get("type") != "delivered":
                if frame.get("type") == "working":
                    on_start([str(task_name) for task_name in frame.get("running", ())])
                elif frame.get("type") == "message":
                    show(str(frame.get("text", "")))


async def find_backend(state: Path, session_key: str | None, *, continue_latest: bool) -> GatewayBackend | None:
    """Connect to the gateway of this state folder; None if none is running.

    Also None if this process's environment has settings that the gateway's has not. Raises GatewayError if the gateway
    refuses.
    """
    async with connect(state) as connection:
        if (
            connection is None
            or not settings_in(os.environ).items() <= dict(connection.hello.get("settings", {})).items()
        ):
            return None
        about = await connection.request({"do": "about", "session": session_key, "continue": continue_latest})
    return GatewayBackend(state, about)
