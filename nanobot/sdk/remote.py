"""The bot of a running gateway, through its local socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from nanobot.agent.events import Answer, ApprovalAsked, EventSink, TurnEnded, event_from_json
from nanobot.errors import NanobotError
from nanobot.net.gateway_socket import GatewayConnection, GatewayError, connect
from nanobot.sdk.request import RunRequest

_STOP_S = 2.0
"""How long a turn that was stopped has to report its end."""
_NOT_RUNNING = "No gateway is running: nothing answers in {state}. Start one with `nanobot gateway`."
_LOST = "The gateway ended during this turn. What was done so far is in the session; the next run continues it."


class RemoteBot:
    """Runs turns in the gateway. Each has a connection of its own."""

    def __init__(self, state: Path, workspace: Path) -> None:
        self.workspace = workspace
        self._state = state
        self._asking: dict[str, GatewayConnection] = {}
        """The connections of open approval questions."""
        self._answering: set[asyncio.Task[None]] = set()

    async def run_turn(self, request: RunRequest, sink: EventSink) -> None:
        """Run the turn. Raises GatewayError if the gateway is gone or refuses, and ValueError for tools and hooks."""
        if request.tools or request.hooks:
            raise ValueError(
                "The gateway cannot call functions of this program: use tools= and Hook objects with from_config or "
                "local. Functions that watch events work."
            )
        output = request.output
        frame: dict[str, Any] = {
            "do": "turn",
            "text": request.message,
            "session": request.session,
            "media": request.paths,
            "answers": request.attended or request.approve is not None,
            "options": {
                "instructions": request.instructions,
                "model": request.model,
                "budget_usd": request.budget_usd,
                "ephemeral": request.ephemeral,
                "schema": output.schema if output is not None else None,
            },
        }
        async with connect(self._state) as connection:
            if connection is None:
                raise GatewayError(_NOT_RUNNING.format(state=self._state))
            await connection.send(frame)
            try:
                await self._read_events(connection, sink)
            except asyncio.CancelledError:
                await connection.send({"do": "stop"})
                with suppress(TimeoutError, NanobotError):
                    async with asyncio.timeout(_STOP_S):
                        await self._read_events(connection, sink)
                raise

    async def stop(self, session: str) -> bool:
        """Stop the session's running turn. Return False if none runs."""
        async with connect(self._state) as connection:
            if connection is None:
                raise GatewayError(_NOT_RUNNING.format(state=self._state))
            return bool((await connection.request({"do": "stop turn", "session": session})).get("stopped"))

    def answer(self, question: str, answer: Answer) -> bool:
        """Answer a question of a run of this bot. Return False if it is not open."""
        connection = self._asking.pop(question, None)
        if connection is None:
            return False
        task = asyncio.create_task(connection.send({"do": "answer", "question": question, "answer": answer}))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)
        return True

    async def _read_events(self, connection: GatewayConnection, sink: EventSink) -> None:
        while (frame := await connection.receive()) is not None:
            event = event_from_json(frame)
            if event is None:
                continue
            if isinstance(event, ApprovalAsked):
                self._asking[event.question] = connection
            sink(event)
            if isinstance(event, TurnEnded):
                return
        raise GatewayError(_LOST)


@asynccontextmanager
async def open_remote(state: Path) -> AsyncIterator[RemoteBot]:
    """Find the gateway of this state folder. Raises GatewayError if none is running."""
    async with connect(state) as connection:
        if connection is None:
            raise GatewayError(_NOT_RUNNING.format(state=state))
        workspace = Path(str(connection.hello["workspace"]))
    yield RemoteBot(state, workspace)
