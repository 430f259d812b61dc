"""The bot of a running gateway as a ChatBackend: each request uses its own connection to the control socket."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanobot.agent.events import Answer, EventSink, TurnEnded, TurnOutcome, TurnResult, event_from_json
from nanobot.bus.events import InboundMessage
from nanobot.cli.chat.backends import Joining, OnBackgroundStart, SessionInfo, Show
from nanobot.cli.chat.inbound import current_folder, output_lines, parse_shell_command
from nanobot.errors import NanobotError
from nanobot.net.gateway_socket import GatewayConnection, GatewayError, connect, settings_in

if TYPE_CHECKING:
    from nanobot.agent.commands.sessions import Conversation

_GATEWAY_ENDED = "The gateway ended during this turn. The text so far is kept; your next message or chat continues it."
_GATEWAY_GONE = (
    "The gateway does not answer any more. Exit and start `nanobot agent` again; it continues this session, with or "
    "without a gateway."
)
GATEWAY_BACK = "The gateway is back."
_RETRY_S = 1.0
_RETRIES = 5
"""A gateway that does not answer that often has not just restarted."""


class GatewayGoneError(GatewayError):
    """No gateway is running any more."""


class GatewayBackend:
    """Runs everything in the gateway, which alone writes the sessions."""

    def __init__(self, state: Path, about: Mapping[str, Any], *, retry_s: float = _RETRY_S) -> None:
        """`about` describes the bot and the session; see `find_backend`. A lost gateway is tried every `retry_s`."""
        self._state = state
        self._retry_s = retry_s
        self._about = about
        self._running: GatewayConnection | None = None
        self._sends: set[asyncio.Task[None]] = set()

    @property
    def session_key(self) -> str:
        """The session this backend was opened for."""
        return str(self._about["session"])

    @property
    def name(self) -> str:
        return str(self._about["name"])

    @property
    def workspace(self) -> Path:
        return Path(str(self._about["workspace"]))

    def commands(self) -> Mapping[str, str]:
        return dict(self._about["commands"])

    def skills(self) -> Mapping[str, str]:
        """Available skills when the chat was opened."""
        return dict(self._about["skills"])

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[GatewayConnection]:
        """Connect to the gateway. Raises GatewayGoneError if none is running."""
        async with connect(self._state) as connection:
            if connection is None:
                raise GatewayGoneError(_GATEWAY_GONE)
            yield connection

    async def session_info(self, session_key: str) -> SessionInfo:
        async with self._connect() as connection:
            reply = await connection.request({"do": "model", "session": session_key})
        model = str(reply["name"]), int(reply["window"]), str(reply["provider"])
        return SessionInfo(*model, int(reply["messages"]), float(reply["idle_s"]), int(reply["window_used"]))

    async def conversations(self, session_key: str) -> "list[Conversation]":
        from nanobot.agent.commands.sessions import Conversation  # slow to import

        async with self._connect() as connection:
            reply = await connection.request({"do": "sessions", "session": session_key})
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
        request = {"do": "turn", "text": message.content, "session": message.session_key, "media": message.media}
        request["folder"] = message.folder
        async with self._connect() as connection:
            await connection.send({**request, "shows": show is not None, "answers": attended})
            return await self._run_until_end(connection, sink, waiting, show)

    async def resume(self, session_key: str, sink: EventSink, *, attended: bool = False) -> None:
        async with self._connect() as connection:
            await connection.send({"do": "resume", "session": session_key, "answers": attended})
            await self._run_until_end(connection, sink)

    async def stop_turn(self, session_key: str) -> bool:
        if self._running is None:
            return False
        await self._running.send({"do": "stop"})
        return True

    def set_waiting_lines(self, messages: Sequence[InboundMessage]) -> None:
        lines = [{"text": message.content, "media": message.media} for message in messages]
        self._send_to_turn({"do": "waiting", "lines": lines})

    def answer(self, question: str, answer: Answer) -> None:
        self._send_to_turn({"do": "answer", "question": question, "answer": answer})

    def _send_to_turn(self, frame: dict[str, Any]) -> None:
        if self._running is not None:
            sending = asyncio.ensure_future(self._running.send(frame))
            self._sends.add(sending)
            sending.add_done_callback(self._sends.discard)

    async def shell(self, line: str, session_key: str) -> tuple[list[str], bool]:
        """Run a `!command` in the gateway."""
        command, problem = parse_shell_command(line, is_on=bool(self._about["exec"]))
        if problem:
            return [problem], False
        request = {"do": "exec", "command": command, "session": session_key, "folder": current_folder()}
        async with self._connect() as connection:
            reply = await connection.request(request)
        return output_lines(str(reply["text"])), not reply["error"]

    async def check_for_terminal(self, line: str, session_key: str) -> str:
        command, problem = parse_shell_command(line, is_on=bool(self._about["exec"]))
        if problem:
            return problem
        request = {"do": "exec", "command": command, "session": session_key, "folder": current_folder()}
        async with self._connect() as connection:
            return str((await connection.request({**request, "terminal": True}))["text"])

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
                    await connection.send({"do": "listen", "session": session_key})
                    with suppress(GatewayError):
                        while (frame := await connection.receive()) is not None:
                            if frame.get("type") == "message":
                                yield str(frame.get("text", ""))
            was_lost = True
            await asyncio.sleep(self._retry_s)

    @property
    def is_consolidating(self) -> bool:
        """Always False: the gateway keeps running."""
        return False

    async def wait_for_consolidation(self) -> None:
        """Nothing to do."""

    async def jobs_problem(self) -> str:
        """Empty: the gateway runs the jobs."""
        return ""

    async def wait_for_background(self, session_key: str, on_start: OnBackgroundStart, show: Show) -> None:
        async with connect(self._state) as connection:
            if connection is None:
                return
            await connection.send({"do": "background", "session": session_key})
            while (frame := await connection.receive()) is not None and frame.get("type") != "delivered":
                if frame.get("type") == "working":
                    on_start([str(task_name) for task_name in frame.get("running", ())])
                elif frame.get("type") == "message":
                    show(str(frame.get("text", "")))

    async def _run_until_end(
        self,
        connection: GatewayConnection,
        sink: EventSink | None,
        waiting: Joining | None = None,
        show: Show | None = None,
    ) -> TurnResult:
        if sink is not None:  # without a sink it is a command beside the turn
            self._running = connection
        try:
            return await self._read_events(connection, sink, waiting, show)
        except asyncio.CancelledError:
            await connection.send({"do": "stop"})
            with suppress(TimeoutError, NanobotError):
                async with asyncio.timeout(_RETRY_S):
                    await self._read_events(connection, sink, waiting, show)
            raise
        finally:
            if self._running is connection:
                self._running = None

    async def _read_events(
        self, connection: GatewayConnection, sink: EventSink | None, waiting: Joining | None, show: Show | None
    ) -> TurnResult:
        while (frame := await connection.receive()) is not None:
            if frame.get("type") == "nothing":
                return TurnResult(TurnOutcome.ANSWERED, "")
            if frame.get("type") == "joined" and waiting is not None:
                waiting(int(frame["count"]))
                continue
            if frame.get("type") == "message" and show is not None:
                show(str(frame.get("text", "")))
                continue
            event = event_from_json(frame)
            if event is not None and sink is not None:
                sink(event)
            if isinstance(event, TurnEnded):
                return TurnResult(event.outcome, event.text, event.error, event.turn_id)
        raise GatewayError(_GATEWAY_ENDED)


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
