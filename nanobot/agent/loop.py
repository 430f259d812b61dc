"""The agent loop: take a message, queue it in its session's lane, run its turn."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from nanobot.agent import events
from nanobot.agent.command import is_from_owner, parse_command
from nanobot.agent.commands.table import SlashCommands
from nanobot.agent.delivery import GOAL_DELIVERY, Delivery, DeliveryPolicy, tool_hint
from nanobot.agent.events import EventSink, TurnEvent, TurnOutcome, TurnResult
from nanobot.agent.hooks import Hook
from nanobot.agent.lanes import Lanes, Slots
from nanobot.agent.pipeline.pipeline import RESUMES_LATER, SEND_AGAIN_LATER, Pipeline
from nanobot.agent.pipeline.turn import Turn, TurnDeps, TurnEnding, TurnOptions, Waiting, new_turn
from nanobot.agent.recovery import InterruptedTurn, MessageOutcome, find_interrupted_turn, plan_recovery
from nanobot.bus.events import InboundMessage, OutboundMessage
from nanobot.bus.journal import InboundState
from nanobot.bus.queue import MessageBus
from nanobot.errors import StorageError
from nanobot.messages.types import BACKGROUND_ORIGINS, Origin
from nanobot.utils.aio import is_being_cancelled
from nanobot.utils.text import count_noun

log = logging.getLogger(__name__)

Progress = Callable[[str], None]

STOP_REPLY_S = 0.9
"""`/stop` is answered within this time, also when the turn takes longer to end."""
MAX_IN_LANE = 20
"""Messages of a session that have a turn, which runs or waits."""

_RECEIPT = "Noted. I am still working and will read this as soon as I can."
_JOINED_TURN_ENDED = "The turn that your message had joined ended without an answer. Send the message again."
_JOURNAL_STATES = {TurnOutcome.REFUSED: InboundState.REFUSED, TurnOutcome.FAILED: InboundState.FAILED}
"""Other outcomes are journaled as answered."""


@dataclass(frozen=True, slots=True)
class LoopPolicy:
    """How messages are queued and answered."""

    max_concurrent_turns: int
    steering: bool
    """Whether a message that arrives while its session's turn runs may join that turn."""
    delivery: Callable[[str], DeliveryPolicy]
    """The delivery policy of a channel, by its name."""


class AgentLoop:
    """Turns messages into replies: `run` serves the bus, `run_turn` serves a caller that waits for the result."""

    def __init__(self, bus: MessageBus, deps: TurnDeps, policy: LoopPolicy) -> None:
        self.bus = bus
        self.commands = deps.commands
        self._background = deps.commands.work
        self._deps = deps
        self._policy = policy
        self._pipeline = Pipeline(deps)
        self._lanes = Lanes()
        self._slots = Slots(self._policy.max_concurrent_turns)
        self._room: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """Limits how many messages of a session enter its lane; the others wait before, as a message and no turn."""
        self._running: dict[str, Turn] = {}
        deps.status.running = self._running.keys()
        self._unwanted: set[str] = set()
        """Ids of turns that were stopped before they ran."""
        self._recovered_order: dict[str, int] = {}
        """Acceptance order of messages recovered from the journal, by key."""
        self._stopping = asyncio.Event()
        self._is_running = False

    @property
    def is_serving(self) -> bool:
        """Whether the loop takes messages from the bus."""
        return self._is_running and not self._stopping.is_set()

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called: interrupted turns are resumed at the next start."""
        return self._stopping.is_set()

    async def run(self) -> None:
        """Serve messages from the bus until `stop`, or until the bus closes. Each gets one reply at its own address.

        Turns interrupted by a crash are resumed first, concurrently with new messages.
        """
        self._stopping.clear()
        self._is_running = True
        try:
            async with asyncio.TaskGroup() as turns:
                for message in await self._recover_turns(turns):
                    turns.create_task(self.serve(message))
                turns.create_task(self._background.recover())
                consuming = turns.create_task(self._consume(turns))
                stopping = turns.create_task(self._stopping.wait())
                await asyncio.wait((consuming, stopping), return_when=asyncio.FIRST_COMPLETED)
                consuming.cancel()
                stopping.cancel()
        finally:
            self._is_running = False

    async def _consume(self, turns: asyncio.TaskGroup) -> None:
        """Take messages until the bus closes. Cancelling loses none."""
        while (message := await self.bus.consume_inbound()) is not None:
            turns.create_task(self.serve(message))
            await asyncio.sleep(0)  # thousands may be queued: let other tasks run between two of them

    async def stop(self, grace_s: float = 0.0) -> None:
        """Take no more messages. Turns still running after `grace_s` are interrupted and resumed at the next start.

        Messages still queued in a lane start at the next start, or their sender is asked to send them again.
        """
        await asyncio.sleep(0)  # lets a `run` that was scheduled just now start before the event is set
        self._stopping.set()
        running = [turn.task for turn in self._running.values() if not turn.request.profile.is_subagent and turn.task]
        if grace_s and running:
            await asyncio.wait(running, timeout=grace_s)
        await asyncio.gather(*[self._cancel_turn(key, TurnEnding.INTERRUPT) for key in [*self._running]])

    async def serve(self, message: InboundMessage) -> TurnResult:
        """Process a message as if it came from the bus: run its turn, send the reply, settle it in the journal."""
        room = self._room.setdefault(message.session_key, asyncio.Semaphore(MAX_IN_LANE))
        async with nullcontext() if self.bypasses_lane(message) else room:
            result = await self.submit(message, self._delivery(message))
            self._settle(message, result)
        return result

    def _settle(self, message: InboundMessage, result: TurnResult) -> None:
        if not result.later:
            self.bus.settle(message, _JOURNAL_STATES.get(result.outcome, InboundState.ANSWERED), result.error or "")

    async def run_turn(
        self,
        message: InboundMessage,
        sink: EventSink | None = None,
        *,
        waiting: Waiting | None = None,
        attended: bool = False,
        hooks: Sequence[Hook] = (),
        model: str | None = None,
        options: TurnOptions | None = None,
    ) -> TurnResult:
        """Run a turn for this message in its session's lane and return the result.

        Never raises for a failure of a model or a tool. Cancelling stops the turn; text produced so far is kept.
        `waiting` is called at each tool boundary with a maximum and returns messages of the same chat that join the
        turn. `attended`: the reader of the events speaks for the owner and answers approval questions. `hooks`,
        `model` and `options` apply to this turn only; an ephemeral turn needs a session key of its own. Raises
        TypeError for an object that is not a hook.
        """
        await self._read_reminder_answer(message)
        options = options or self._deps.options_of(message)
        options = replace(options, model=model or options.model, waiting=waiting or options.waiting)
        turn = new_turn(message, sink, self._deps, options=options, hooks=hooks, attended=attended)
        return await self._answer(turn, may_join=False)

    async def submit(self, message: InboundMessage, sink: EventSink | None = None) -> TurnResult:
        """Like `run_turn`, for a message whose sender does not wait: it may join the running turn of the same chat.

        The sender gets a receipt then. A message that joined ends with that turn's outcome and an empty text. Who
        follows the turn waits for the answer to this message, so that one does not join.
        """
        await self._read_reminder_answer(message)
        turn = new_turn(message, sink, self._deps)
        may_join = self._policy.steering and not message.is_followed and message.origin not in BACKGROUND_ORIGINS
        return await self._answer(turn, may_join=may_join and turn.request.command is None)

    async def resume(
        self, session_key: str, sink: EventSink | None = None, *, attended: bool = False
    ) -> TurnResult | None:
        """Resume the session's interrupted turn where it stopped. Return None if there is none."""
        interrupted = await asyncio.to_thread(find_interrupted_turn, self._deps.turns_folder, session_key)
        try:
            if interrupted is None:
                return None
            return await self._resume(interrupted, sink, attended=attended)
        finally:
            await self._background.recover(session_key)

    async def stop_turn(self, session_key: str, turn_id: str | None = None) -> bool:
        """Stop a session's running turn and wait for its end. Return False if none runs. Queued messages stay.

        With `turn_id` only that turn is stopped; if it does not run yet, it ends when its time comes.
        """
        running = self._running.get(session_key)
        if turn_id is not None and (running is None or running.turn_id != turn_id):
            if self.bus.is_open(session_key, turn_id):
                self._unwanted.add(turn_id)
            return False
        return await self._cancel_turn(session_key, TurnEnding.STOP)

    def sink_of(self, session_key: str, turn_id: str) -> EventSink | None:
        """Return the event sink of this turn; None if it does not run."""
        running = self._running.get(session_key)
        return running.emit if running is not None and running.turn_id == turn_id else None

    def lane(self, session_key: str) -> AbstractAsyncContextManager[object]:
        """Hold the session's lane for maintenance between its turns.

        It does not count as a running turn, and messages queued behind it may still join the turn before it.
        """
        return self._lanes.enter(session_key, yields_to_steering=True)

    async def process_direct(
        self,
        content: str,
        session_key: str = "cli:direct",
        channel: str = "cli",
        chat_id: str = "direct",
        on_progress: Progress | None = None,
    ) -> str:
        """Run a turn and return the text of its reply. `on_progress` gets interim texts and tool calls."""
        message = InboundMessage.from_owner(channel, chat_id, content, session_key=session_key, origin=Origin.CLI)

        def sink(event: TurnEvent) -> None:
            if on_progress is None:
                return
            if isinstance(event, events.TextEnded) and not event.final:
                on_progress(event.text)
            elif isinstance(event, events.ToolStarted):
                on_progress(tool_hint(event.name, event.arguments))

        result = await self.run_turn(message, sink if on_progress else None)
        return result.text

    async def _answer(self, turn: Turn, *, may_join: bool) -> TurnResult:
        """Answer at once what may overtake the session's lane; queue anything else."""
        router, command, message = self._deps.approval_router, turn.request.command, turn.message
        try:
            if command is not None and command.name == "stop":
                return _end_without_run(turn, TurnOutcome.ANSWERED, await self._handle_stop(message))
            if command is not None and command.name in SlashCommands.AT_ONCE:
                try:
                    session = self._deps.sessions.get_or_create(message.session_key)
                    text = await self.commands.answer(command, session, message, attended=turn.request.attended)
                except StorageError as error:
                    return _end_without_run(turn, TurnOutcome.FAILED, str(error))
                return _end_without_run(turn, TurnOutcome.ANSWERED, text)
            if not turn.request.resumes and router.is_answer(message):
                return _end_without_run(turn, TurnOutcome.ANSWERED, router.handle_answer(message))
            return await self._run_in_lane(turn, may_join=may_join)
        except asyncio.CancelledError:
            if not turn.progress.has_ended:  # cancelled while it was still queued
                turn.emit(events.TurnEnded(outcome=TurnOutcome.STOPPED, text=""))
            raise
        finally:
            turn.release()

    async def _run_in_lane(self, turn: Turn, *, may_join: bool) -> TurnResult:
        key, is_background = turn.message.session_key, turn.message.origin in BACKGROUND_ORIGINS

        def on_wait() -> None:
            if may_join:
                turn.emit(events.Notice(text=_RECEIPT, kind=events.NoticeKind.RECEIPT))

        async with self._lanes.enter(
            key, turn if may_join else None, on_wait, yields_to_steering=is_background
        ) as entry:
            if entry.joined is None:
                if turn.turn_id in self._unwanted:
                    self._unwanted.remove(turn.turn_id)
                    return _end_without_run(turn, TurnOutcome.STOPPED, "")
                return _postpone(turn) if self._stopping.is_set() else await self._run_as_task(turn)
        task = entry.joined.task
        assert task is not None  # noqa: S101 it runs
        await asyncio.wait([task])
        if any(turn.message is other for other in entry.joined.joining.unread):
            # the receipt was sent already; hooks see the message as the start of a turn
            return await self._run_in_lane(turn, may_join=False)
        if task.cancelled():
            return _end_without_run(turn, TurnOutcome.STOPPED, _JOINED_TURN_ENDED)
        result = task.result()  # that turn sends the one reply
        turn.emit(events.TurnEnded(outcome=result.outcome, text="", error=result.error, later=result.later or None))
        return result

    async def _run_as_task(self, turn: Turn) -> TurnResult:
        key, is_subagent = turn.message.session_key, turn.request.profile.is_subagent
        turn.task = asyncio.create_task(self._run_with_slot(turn))
        self._running[key] = turn
        if not is_subagent:
            self.bus.begin(turn.message, turn.turn_id)
        if self._policy.steering:
            turn.joining.waiting = self._waiting_messages(turn)
        try:
            return await turn.task
        except asyncio.CancelledError:
            if turn.ending is None or is_being_cancelled():
                raise
            if turn.ending is TurnEnding.INTERRUPT:
                return _postpone(turn)
            return _end_without_run(turn, TurnOutcome.STOPPED, "")
        finally:
            del self._running[key]

    async def _run_with_slot(self, turn: Turn) -> TurnResult:
        # subagents have a limit of their own: turns that wait for them hold the slots
        is_background = turn.message.origin in BACKGROUND_ORIGINS
        async with nullcontext() if turn.request.profile.is_subagent else self._slots.hold(background=is_background):
            if turn.request.command is None:
                return await self._pipeline.run(turn)
            # commands are not stored in the session, so what came before and the command's end must be journaled
            await self.bus.flush()
            result = await self._pipeline.run(turn)
            await self.bus.flush()
            return result

    def _waiting_messages(self, turn: Turn) -> Waiting:
        """Messages that may join this turn: those queued in its lane for the same chat, then those its caller holds."""
        from_caller = turn.request.options.waiting or turn.joining.waiting

        def take(limit: int) -> Sequence[InboundMessage]:
            queued = [other.message for other in self._lanes.join_waiting(turn, limit)]
            turn.joining.from_lane += queued
            return [*queued, *from_caller(limit - len(queued))]

        return take

    async def _cancel_turn(self, session_key: str, ending: TurnEnding) -> bool:
        turn = self._running.get(session_key)
        if turn is None or turn.task is None:
            return False
        if turn.ending is not TurnEnding.STOP:  # a turn stopped by a person is not resumed
            turn.ending = ending
        turn.task.cancel()
        await asyncio.wait([turn.task])
        return True

    async def _read_reminder_answer(self, message: InboundMessage) -> None:
        """Turn a word that answers the reminder above it into its command."""
        if command := await self._deps.reminder_answer(message):
            message.content = command

    def bypasses_lane(self, message: InboundMessage) -> bool:
        """Whether a message skips the queue: a priority command, or the answer that the running turn waits for."""
        command = parse_command(message.content)
        is_priority = command is not None and command.name in SlashCommands.AT_ONCE
        return is_priority or self._deps.approval_router.is_answer(message)

    async def _handle_stop(self, message: InboundMessage) -> str:
        """Stop the session's turn, unless it started after this message, and return the reply."""
        session_key = message.session_key
        running = self._running.get(session_key)
        if running is None or not self._predates(running, message):
            if stopped := await self._stop_background(message):
                return f"Stopped: {stopped}."
            return await self._background.other_process_note(session_key) or "Nothing is running."
        asked = running.message
        if not is_from_owner(message) and (message.channel, message.sender_id) != (asked.channel, asked.sender_id):
            return "Somebody else asked for what runs here; only they or an owner may stop it."
        tools = running.progress.open.names()
        ended_tools = f" {' and '.join(dict.fromkeys(tools))} ended with it." if tools else ""
        stopping = asyncio.create_task(self._cancel_turn(session_key, TurnEnding.STOP))
        background = asyncio.create_task(self._stop_background(message))
        _, pending = await asyncio.wait([stopping, background], timeout=STOP_REPLY_S)
        if pending:
            return "Stopping; something has not reacted to the stop yet."
        stopped_too = background.result()
        return f"Stopped.{ended_tools}" + (f" {stopped_too[0].upper()}{stopped_too[1:]} too." if stopped_too else "")

    async def _stop_background(self, message: InboundMessage) -> str:
        """Stop the session's goal and subagents. Return a description of what was stopped."""
        goal, labels = await self._background.stop_for(message)
        stopped = [f"the goal ({goal})"] if goal else []
        stopped += [f"{count_noun(len(labels), 'subagent')} ({', '.join(labels)})"] if labels else []
        return " and ".join(stopped)

    def _predates(self, turn: Turn, message: InboundMessage) -> bool:
        """Whether the turn's message was accepted before this one, perhaps before a crash."""
        position = self._recovered_order.get(message.journal_key or "")
        if position is None:  # not recovered: `/stop` is never queued, so every running turn is older
            return True
        turn_position = self._recovered_order.get(turn.message.journal_key or "")
        return turn.request.resumes if turn_position is None else turn_position < position

    async def _recover_turns(self, turns: asyncio.TaskGroup) -> list[InboundMessage]:
        """Resume interrupted turns. Return the recovered messages that no turn has accepted, oldest first."""
        unsettled = self.bus.unsettled()
        self._recovered_order = {message.journal_key or "": position for position, message in enumerate(unsettled)}
        plan = await asyncio.to_thread(plan_recovery, self._deps.turns_folder, self._deps.sessions, unsettled)
        for message, outcome in plan.ended:
            self._send_outcome(message, outcome)
        for interrupted in plan.resumable:
            turns.create_task(self._resume_and_settle(interrupted, plan.joined.get(interrupted.turn_id, [])))
        return plan.unstarted

    def _send_outcome(self, message: InboundMessage, outcome: MessageOutcome) -> None:
        """Send the reply of a turn that ended just before the crash. The outbox drops a reply that went out already."""
        if not (message.quiet or message.is_followed):
            text = outcome.answer or _JOINED_TURN_ENDED
            to = message.address
            reply = OutboundMessage(to.channel, to.chat_id, text, message.message_id, turn_id=outcome.turn_id)
            reply.thread_id, reply.answers = to.thread_id, message.journal_key
            self.bus.post_outbound(reply)
        self.bus.settle(message, InboundState.ANSWERED if outcome.answer else InboundState.FAILED)

    async def _resume_and_settle(self, interrupted: InterruptedTurn, joined: Sequence[InboundMessage]) -> None:
        result = await self._resume(interrupted, self._delivery(interrupted.message), joined=len(joined))
        for message in (interrupted.message, *joined):
            self._settle(message, result)

    async def _resume(
        self, interrupted: InterruptedTurn, sink: EventSink | None, *, attended: bool = False, joined: int = 0
    ) -> TurnResult:
        turn = new_turn(interrupted.message, sink, self._deps, attended=attended, resumes=interrupted.turn_id)
        turn.joining.count = joined
        return await self._answer(turn, may_join=False)

    def _delivery(self, message: InboundMessage) -> Delivery | None:
        if message.quiet or message.is_followed:
            return None
        policy = GOAL_DELIVERY if message.origin is Origin.GOAL else self._policy.delivery(message.channel)
        return Delivery(self.bus, message, policy, self._deps.commands.buttons(message.content))


def _end_without_run(turn: Turn, outcome: TurnOutcome, text: str, *, later: bool = False) -> TurnResult:
    """End a turn that never entered the pipeline."""
    turn.emit(events.TurnEnded(outcome=outcome, text=text, later=later or None))
    return TurnResult(outcome, text, turn_id=turn.turn_id, later=later)


def _postpone(turn: Turn) -> TurnResult:
    """End a turn because nanobot stops. A journaled message is started again at the next start, without a notice."""
    later = turn.request.resumes or turn.message.journal_key is not None
    text = RESUMES_LATER if turn.request.resumes else "" if later else SEND_AGAIN_LATER
    return _end_without_run(turn, TurnOutcome.STOPPED, text, later=later)
