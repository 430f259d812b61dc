"""The agent loop: take a message, find its lane, run its turn.

Reading order: loop -> pipeline (one turn) -> run/runner (one run) -> run/tool_calls (one step).
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from nanobot.agent.delivery import Delivery, DeliveryPolicy, hint
from nanobot.agent.idle import IdleWatch
from nanobot.agent.lanes import Lanes
from nanobot.agent.pipeline import Parts, Pipeline, Turn, new_turn
from nanobot.agent.slash_commands import SlashCommands, parse_command
from nanobot.agent.turn import EventSink, TextEnded, ToolStarted, TurnEnded, TurnEvent, TurnOutcome, TurnResult
from nanobot.bus.events import InboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.messages.types import Origin

Progress = Callable[[str], None]


class AgentLoop:
    """Turns messages into replies: `run` for those from the bus, `run_turn` for who waits for the result."""

    def __init__(
        self,
        bus: MessageBus,
        parts: Parts,
        *,
        most_at_once: int = 64,
        delivery: DeliveryPolicy | None = None,
        idle: IdleWatch | None = None,
    ) -> None:
        self.bus = bus
        self._parts = parts
        self._pipeline = Pipeline(parts)
        self._lanes = Lanes(most_at_once)
        self._delivery = delivery or DeliveryPolicy()
        self._idle = idle
        self._running: dict[str, tuple[Turn, asyncio.Task[TurnResult]]] = {}
        self._stopping = asyncio.Event()

    @property
    def commands(self) -> SlashCommands:
        """The slash commands this agent understands."""
        return self._parts.commands

    async def run(self) -> None:
        """Serve messages from the bus until `stop`, or until the bus closes. Each gets one reply at its own address.

        Turns that run when it ends are cancelled; what was said is kept.
        """
        self._stopping.clear()
        async with asyncio.TaskGroup() as turns:
            stopping = turns.create_task(self._stopping.wait())
            while True:
                taking = asyncio.ensure_future(self.bus.consume_inbound())
                await asyncio.wait((taking, stopping), return_when=asyncio.FIRST_COMPLETED)
                message = taking.result() if taking.done() else None
                if message is None:
                    taking.cancel()
                    break
                turns.create_task(self._serve(message))
            stopping.cancel()

    async def stop(self) -> None:
        """Take no more messages, stop the turns that run; those that wait for their lane are told to come back."""
        self._stopping.set()
        for key in [*self._running]:
            await self.stop_turn(key)

    async def run_turn(self, message: InboundMessage, sink: EventSink | None = None) -> TurnResult:
        """Run one message's turn in its session's lane and return how it ended.

        Never raises for a failure of a model or a tool. Cancelling stops the turn; what was said is kept.
        """
        key = message.session_key
        command = parse_command(message.content)
        if command is not None and command.name in SlashCommands.AT_ONCE:
            return await self._at_once(message, command.name, sink)
        try:
            if self._idle is not None:
                await self._idle.turn_begins(key)
            return await self._in_lane(key, message, sink)
        finally:
            if self._idle is not None:
                self._idle.turn_ended(key)

    def lane(self, session_key: str) -> AbstractAsyncContextManager[None]:
        """The session's lane, for work of ours between its turns."""
        return self._lanes.enter(session_key)

    async def _in_lane(self, key: str, message: InboundMessage, sink: EventSink | None) -> TurnResult:
        async with self._lanes.enter(key):
            if self._stopping.is_set():
                return _ended(sink, TurnOutcome.STOPPED, "nanobot is stopping; send the message again later.")
            turn = new_turn(message, sink, self._parts)
            task = asyncio.create_task(self._pipeline.run(turn))
            self._running[key] = (turn, task)
            self._parts.vitals.running.add(key)
            try:
                return await task
            except asyncio.CancelledError:
                if not turn.stop_requested or turn.phase_seconds or _is_cancelled():
                    raise
                return _ended(sink, TurnOutcome.STOPPED, "")  # stopped before its first phase
            finally:
                self._parts.vitals.running.discard(key)
                del self._running[key]

    async def stop_turn(self, session_key: str) -> bool:
        """Stop a session's running turn and wait until it has ended; False where none runs."""
        running = self._running.get(session_key)
        if running is None:
            return False
        turn, task = running
        turn.stop_requested = True
        task.cancel()
        await asyncio.wait([task])
        return True

    async def process_direct(
        self,
        content: str,
        session_key: str = "cli:direct",
        channel: str = "cli",
        chat_id: str = "direct",
        on_progress: Progress | None = None,
    ) -> str:
        """Ask and wait: the text of the reply. `on_progress` is told what is said and called on the way."""
        message = InboundMessage.from_owner(channel, chat_id, content, session_key=session_key, origin=Origin.CLI)

        def sink(event: TurnEvent) -> None:
            if on_progress is None:
                return
            if isinstance(event, TextEnded) and not event.final:
                on_progress(event.text)
            elif isinstance(event, ToolStarted):
                on_progress(hint(event.name, event.arguments))

        result = await self.run_turn(message, sink if on_progress else None)
        return result.text

    async def _serve(self, message: InboundMessage) -> None:
        await self.run_turn(message, Delivery(self.bus, message.address, self._delivery, message.message_id))

    async def _at_once(self, message: InboundMessage, name: str, sink: EventSink | None) -> TurnResult:
        """A priority command: outside the lane, while the session's turn may be running."""
        key = message.session_key
        if name == "stop":
            stopped = await self.stop_turn(key)
            text = "Stopped." if stopped else "Nothing is running."
        else:
            text = await self._parts.commands.status_of(self._parts.sessions.get_or_create(key))
        return _ended(sink, TurnOutcome.ANSWERED, text)


def _ended(sink: EventSink | None, outcome: TurnOutcome, text: str) -> TurnResult:
    """The end of a turn that never entered the pipeline."""
    if sink is not None:
        sink(TurnEnded(seq=0, outcome=outcome, text=text))
    return TurnResult(outcome, text)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
