"""The bot of a running gateway, through its local socket."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from nanobot.agent.events import Answer, ApprovalAsked, EventSink, TurnEvent
from nanobot.agent.remote_turn import RemoteTurn, ask, follow_turn
from nanobot.net.gateway_socket import GatewayError, GatewayGoneError, connect
from nanobot.sdk.request import RunRequest

_NOT_RUNNING = "No gateway is running: nothing answers in {state}. Start one with `nanobot gateway`."


class RemoteBot:
    """Runs turns in the gateway."""

    def __init__(self, state: Path, workspace: Path) -> None:
        self.workspace = workspace
        self._state = state
        self._questions: set[str] = set()
        """Approval questions that are open."""
        self._answering: set[asyncio.Task[None]] = set()

    async def run_turn(self, request: RunRequest, sink: EventSink) -> None:
        """Run the turn. Raises GatewayError if the gateway is gone or refuses, and ValueError for tools and hooks."""
        request.check_remote()
        turn_id = secrets.token_hex(8)

        def watch(event: TurnEvent) -> None:
            if isinstance(event, ApprovalAsked):
                self._questions.add(event.question)
            sink(event)

        frame = {
            "do": "turn",
            "turn": turn_id,
            "text": request.message,
            "session": request.session,
            "media": request.paths,
            "attended": request.is_attended,
            "options": {
                "instructions": request.instructions,
                "model": request.model,
                "budget_usd": request.budget_usd,
                "ephemeral": request.ephemeral,
                "schema": request.output.schema if request.output is not None else None,
            },
        }
        try:
            await follow_turn(self._state, frame, RemoteTurn(watch, turn_id))
        except GatewayGoneError as error:
            raise GatewayError(_NOT_RUNNING.format(state=self._state)) from error

    async def stop(self, session: str) -> bool:
        """Stop the session's running turn. Return False if none runs."""
        return bool((await ask(self._state, {"do": "stop turn", "session": session}))["stopped"])

    def answer(self, question: str, answer: Answer) -> bool:
        """Answer a question of a run of this bot. Return False if it is not open."""
        if question not in self._questions:
            return False
        self._questions.remove(question)

        async def send() -> None:
            with suppress(GatewayError):
                await ask(self._state, {"do": "answer", "question": question, "answer": answer})

        self._answering.add(task := asyncio.create_task(send()))
        task.add_done_callback(self._answering.discard)
        return True


@asynccontextmanager
async def open_remote(state: Path) -> AsyncIterator[RemoteBot]:
    """Find the gateway of this state folder. Raises GatewayError if none is running."""
    async with connect(state) as connection:
        if connection is None:
            raise GatewayError(_NOT_RUNNING.format(state=state))
        workspace = Path(str(connection.hello["workspace"]))
    yield RemoteBot(state, workspace)
