"""The agent loop: take a message, find its lane, run its turn.

Reading order: loop -> pipeline (one turn) -> run/runner (one run) -> run/tool_calls (one step).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from nanobot.agent.delivery import OF_GOALS, Delivery, DeliveryPolicy, hint
from nanobot.agent.earlier import sort_out
from nanobot.agent.hooks import Hook
from nanobot.agent.idle import IdleWatch
from nanobot.agent.intake import Intake
from nanobot.agent.lanes import Lanes
from nanobot.agent.pipeline.left_over import Fate, LeftOver, left_over_turns
from nanobot.agent.pipeline.phases import COME_BACK, GOES_ON_LATER, Pipeline
from nanobot.agent.pipeline.work import Ending, Parts, Turn, Waiting, new_turn
from nanobot.agent.slash_commands import Command, SlashCommands, is_from_owner, parse_command
from nanobot.agent.turn import (
    EventSink,
    Notice,
    NoticeKind,
    TextEnded,
    ToolStarted,
    TurnEnded,
    TurnEvent,
    TurnOutcome,
    TurnResult,
)
from nanobot.bus.events import InboundMessage, OutboundMessage
from nanobot.bus.journal import InboundState
from nanobot.bus.queue import MessageBus
from nanobot.errors import StorageError
from nanobot.messages.types import Origin
from nanobot.utils.text import counted

log = logging.getLogger(__name__)

Progress = Callable[[str], None]

STOP_S = 0.9
"""How long a person who says stop waits for an answer at most."""

_RECEIPT = "Noted. I am still at work; I read this as soon as I can."
_GIVEN_UP = "The turn that your message had joined was given up. Send the message again."
_OF_NOBODY = (Origin.CRON, Origin.HEARTBEAT, Origin.SUBAGENT, Origin.GOAL)
"""Why messages exist that no person has just said: they join no turn, and keep nobody's from joining."""
_STATES = {TurnOutcome.REFUSED: InboundState.REFUSED, TurnOutcome.FAILED: InboundState.FAILED}
"""What the journal calls these ends; all others are answers."""


@dataclass(frozen=True, slots=True)
class LoopPolicy:
    """How messages meet. `join`: one that comes while its session works joins the turn that runs."""

    most_at_once: int = 64
    join: bool = True
    delivery: Callable[[str], DeliveryPolicy] = field(default_factory=lambda: lambda channel: DeliveryPolicy())
    """What people on the channel of that name are sent."""


class AgentLoop:
    """Turns messages into replies: `run` for those from the bus, `run_turn` for who waits for the result."""

    def __init__(
        self, bus: MessageBus, parts: Parts, policy: LoopPolicy | None = None, idle: IdleWatch | None = None
    ) -> None:
        self.bus = bus
        self._parts = parts
        self._policy = policy or LoopPolicy()
        self._idle = idle
        self._pipeline = Pipeline(parts)
        self._lanes: Lanes[Turn, TurnResult] = Lanes(self._policy.most_at_once)
        self._running: dict[str, tuple[Turn, asyncio.Task[TurnResult]]] = {}
        self._earlier: dict[str, int] = {}
        """By journal key, in which order messages were accepted that an earlier life left."""
        self._stopping = asyncio.Event()
        self._serves = False

    @property
    def is_serving(self) -> bool:
        """Whether it takes messages from the bus."""
        return self._serves and not self._stopping.is_set()

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to end: what is cut off goes on at the next start."""
        return self._stopping.is_set()

    @property
    def commands(self) -> SlashCommands:
        """The slash commands this agent understands."""
        return self._parts.commands

    async def run(self) -> None:
        """Serve messages from the bus until `stop`, or until the bus closes. Each gets one reply at its own address.

        Turns that a crash cut off are taken up first, beside the others.
        """
        self._stopping.clear()
        async with self._serving(), asyncio.TaskGroup() as turns:
            intake = Intake(self.serve)
            for early in await self._take_up_all(turns):
                if self._goes_past(early):
                    turns.create_task(self.serve(early))
                elif intake.lets_in(early):
                    turns.create_task(intake.serve(early))
            turns.create_task(self._take_up_background())
            taking = turns.create_task(self._take_in(intake, turns))
            stopping = turns.create_task(self._stopping.wait())
            await asyncio.wait((taking, stopping), return_when=asyncio.FIRST_COMPLETED)
            taking.cancel()
            stopping.cancel()

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        self._serves = True
        try:
            yield
        finally:
            self._serves = False

    async def _take_in(self, intake: Intake, turns: asyncio.TaskGroup) -> None:
        """Take messages until the bus closes. Cancelling loses none."""
        while (message := await self.bus.consume_inbound()) is not None:
            if self._goes_past(message):
                turns.create_task(self.serve(message))
            elif intake.lets_in(message):
                turns.create_task(intake.serve(message))
            await asyncio.sleep(0)  # thousands may wait: whatever else is ready goes on between two of them

    async def stop(self, patience_s: float = 0.0) -> None:
        """Take no more messages; turns that still run after `patience_s` are cut off and taken up at the next start.

        Those that wait for their lane are told to come back.
        """
        await asyncio.sleep(0)  # a `run` that is only just begun hears of it too
        self._stopping.set()
        running = [task for _, task in self._running.values()]
        if patience_s and running:
            await asyncio.wait(running, timeout=patience_s)
        await asyncio.gather(*[self._end(key, Ending.INTERRUPT) for key in [*self._running]])

    async def serve(self, message: InboundMessage) -> TurnResult:
        """One message as if the bus had brought it, to its end, which the journal is told; its person is answered."""
        result = await self.tell(message, self._delivery(message))
        self._settle(message, result)
        return result

    def _settle(self, message: InboundMessage, result: TurnResult) -> None:
        if not result.later:
            self.bus.settle(message, _STATES.get(result.outcome, InboundState.ANSWERED), result.error or "")

    async def run_turn(
        self,
        message: InboundMessage,
        sink: EventSink | None = None,
        *,
        waiting: Waiting | None = None,
        attended: bool = False,
        hooks: Sequence[Hook] = (),
        model: str | None = None,
    ) -> TurnResult:
        """Ask: run one message's turn in its session's lane and return how it ended.

        Never raises for a failure of a model or a tool. Cancelling stops the turn; what was said is kept. `waiting` is
        asked at each tool boundary for messages of the same chat that join the turn, at most so many. `attended` says
        that who sees the events speaks for the owner, and answers what the turn asks. `hooks` and `model` are for this
        turn alone. Raises TypeError for what is no hook.
        """
        turn = new_turn(message, sink, self._parts)
        turn.attended, turn.model = attended, model
        turn.hook_wall = turn.hook_wall.and_these(hooks)
        if waiting is not None and self._policy.join:
            turn.waiting = waiting
        return await self._answer(turn, may_join=False)

    async def tell(self, message: InboundMessage, sink: EventSink | None = None) -> TurnResult:
        """The same for a message nobody waits for: while its session works in the same chat, it may join that turn.

        The person gets a receipt then. A message that has joined ends as the turn does, and adds no text to it.
        """
        turn = new_turn(message, sink, self._parts)
        may_join = self._policy.join and message.origin not in _OF_NOBODY
        return await self._answer(turn, may_join=may_join and parse_command(message.content) is None)

    async def resume(
        self, session_key: str, sink: EventSink | None = None, *, attended: bool = False
    ) -> TurnResult | None:
        """Take up the turn of this session that was cut off, from where it stopped; None where there is none."""
        left = await asyncio.to_thread(left_over_turns, self._parts.turns_folder)
        try:
            return await self._take_up(left[session_key], sink, attended=attended) if session_key in left else None
        finally:
            await self._take_up_background(session_key)

    async def stop_turn(self, session_key: str) -> bool:
        """Stop a session's running turn and wait until it has ended; False where none runs. What waits goes on."""
        return await self._end(session_key, Ending.STOP)

    def lane(self, session_key: str) -> AbstractAsyncContextManager[object]:
        """The session's lane, for work of ours between its turns; it takes no place at the gate and keeps no message
        from joining the turn before it.
        """
        return self._lanes.enter(session_key, steps_aside=True)

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

    async def _answer(self, turn: Turn, *, may_join: bool) -> TurnResult:
        try:
            if not turn.resumes and self._goes_past(turn.message):
                return await self._at_once(turn)
            return await self._in_its_time(turn, may_join=may_join)
        finally:
            turn.let_go()

    async def _in_its_time(self, turn: Turn, *, may_join: bool) -> TurnResult:
        key = turn.message.session_key
        try:
            if self._idle is not None:
                await self._idle.turn_begins(key)
            return await self._in_lane(turn, may_join=may_join)
        except asyncio.CancelledError:
            if not turn.progress.over:  # its caller gave up before it could begin
                turn.emit(TurnEnded(outcome=TurnOutcome.STOPPED, text=""))
            raise
        finally:
            if self._idle is not None:
                self._idle.turn_ended(key)

    async def _in_lane(self, turn: Turn, *, may_join: bool) -> TurnResult:
        key = turn.message.session_key

        def on_wait() -> None:
            if may_join:
                turn.emit(Notice(text=_RECEIPT, kind=NoticeKind.RECEIPT))

        of_nobody = turn.message.origin in _OF_NOBODY
        async with self._lanes.enter(key, turn if may_join else None, on_wait, steps_aside=of_nobody) as place:
            if place.taken_by is None:
                return _put_off(turn) if self._stopping.is_set() else await self._run_in_lane(turn)
            await asyncio.wait([place.taken_by])
        if turn.joins is None or not any(one is turn.message for one in turn.joins.unread):
            return _ended_with(turn, place.taken_by)
        turn.joins = None
        return await self._in_lane(turn, may_join=False)  # told already, and to be judged as what begins a turn

    async def _run_in_lane(self, turn: Turn) -> TurnResult:
        key = turn.message.session_key
        task = asyncio.create_task(self._at_the_gate(turn))
        self._running[key] = (turn, task)
        self.bus.begin(turn.message, turn.turn_id)
        self._parts.vitals.running.add(key)
        if self._policy.join:
            turn.waiting = self._waiting_for(turn, task)
        try:
            return await task
        except asyncio.CancelledError:
            if turn.ending is None or _is_cancelled():
                raise
            return _put_off(turn) if turn.ending is Ending.INTERRUPT else _ended(turn, TurnOutcome.STOPPED, "")
        finally:
            self._parts.vitals.running.discard(key)
            del self._running[key]

    async def _at_the_gate(self, turn: Turn) -> TurnResult:
        async with self._lanes.gate:
            if turn.resumes or parse_command(turn.message.content) is None:
                return await self._pipeline.run(turn)
            # no session knows of a command, so the journal has to: what was answered before it, and that it was
            await self.bus.kept()
            result = await self._pipeline.run(turn)
            await self.bus.kept()
            return result

    def _waiting_for(self, turn: Turn, task: asyncio.Task[TurnResult]) -> Waiting:
        """What may join this turn: messages that wait in its lane for the same chat, then those its caller holds."""
        elsewhere = turn.waiting

        def take(most: int) -> Sequence[InboundMessage]:
            key, address = turn.message.session_key, turn.message.address
            there = self._lanes.take_along(key, most, task, lambda other: other.message.address == address)
            for other in there:
                other.joins = turn
                turn.taken_along.append(other.message)
            return [*(other.message for other in there), *elsewhere(most - len(there))]

        return take

    async def _end(self, session_key: str, ending: Ending) -> bool:
        running = self._running.get(session_key)
        if running is None:
            return False
        turn, task = running
        if turn.ending is not Ending.STOP:  # what a person stopped is not taken up again
            turn.ending = ending
        task.cancel()
        await asyncio.wait([task])
        return True

    def _goes_past(self, message: InboundMessage) -> bool:
        """Whether a message does not wait for its lane: a priority command, or the answer its lane waits for."""
        answering = self._parts.answering
        return _at_once(message) is not None or (answering is not None and answering.is_answer(message))

    async def _at_once(self, turn: Turn) -> TurnResult:
        """What goes past the lane, while the session's turn may be running."""
        key, name = turn.message.session_key, _at_once(turn.message)
        if name is None and self._parts.answering is not None:
            return _ended(turn, TurnOutcome.ANSWERED, self._parts.answering.take(turn.message))
        if name == "stop":
            return _ended(turn, TurnOutcome.ANSWERED, await self._stop_now(turn.message))
        try:
            session = self._parts.sessions.get_or_create(key)
            command = parse_command(turn.message.content) or Command("")
            text = await self._parts.commands.answer(command, session, turn.message, attended=turn.attended)
        except StorageError as error:
            return _ended(turn, TurnOutcome.FAILED, str(error))
        return _ended(turn, TurnOutcome.ANSWERED, text)

    async def _stop_now(self, said: InboundMessage) -> str:
        """Stop what runs there, unless it is younger than this word; what a person is told, soon in any case."""
        session_key = said.session_key
        running = self._running.get(session_key)
        if running is None or not self._was_there(running[0], said):
            stopped = await self._stop_background(said)
            return f"Stopped: {' and '.join(stopped)}." if stopped else await self._nothing_here(session_key)
        if not _may_stop(said, running[0].message):
            return "Somebody else asked for what runs here; only they or an owner may stop it."
        tools = running[0].progress.running_tools
        what = f" {' and '.join(dict.fromkeys(tools))} ended with it." if tools else ""
        stopping = asyncio.create_task(self._end(session_key, Ending.STOP))
        background = asyncio.create_task(self._stop_background(said))
        _, slow = await asyncio.wait([stopping, background], timeout=STOP_S)
        if slow:
            return "Stopping; something does not let go of it yet."
        too = " and ".join(background.result())
        return f"Stopped.{what}" + (f" {too[0].upper()}{too[1:]} too." if too else "")

    async def _nothing_here(self, session_key: str) -> str:
        """What stands against a stop that found nothing to end."""
        goals = self._parts.goals
        return (await goals.elsewhere(session_key) if goals is not None else "") or "Nothing is running."

    async def _stop_background(self, said: InboundMessage) -> list[str]:
        """Stop what works for the session beside its turns; what that was, in a few words each."""
        goals, children = self._parts.goals, self._parts.children
        goal = await goals.stop_of(said) if goals is not None else ""
        labels = await children.stop_of(said) if children is not None else ()
        return [*([f"the goal ({goal})"] if goal else []), *([_several(labels)] if labels else [])]

    def _was_there(self, turn: Turn, said: InboundMessage) -> bool:
        """Whether this turn's message had been accepted when this was said, perhaps before a crash."""
        place = self._earlier.get(said.journal_key or "")
        if place is None:  # said in this life, where a stop never waits: whatever runs was there before
            return True
        began = self._earlier.get(turn.message.journal_key or "")
        return turn.resumes if began is None else began < place

    async def _take_up_all(self, turns: asyncio.TaskGroup) -> list[InboundMessage]:
        """Take up what an earlier life left; the messages among it that no turn has taken on yet, oldest first."""
        unsettled = self.bus.unsettled()
        self._earlier = {message.journal_key or "": place for place, message in enumerate(unsettled)}
        earlier = await asyncio.to_thread(sort_out, self._parts.turns_folder, self._parts.sessions, unsettled)
        for message, fate in earlier.over:
            self._end_at_last(message, fate)
        for one in earlier.turns:
            turns.create_task(self._go_on(one, earlier.joined.get(one.turn_id, [])))
        return earlier.anew

    def _end_at_last(self, message: InboundMessage, fate: Fate) -> None:
        """The crash came between the end of its turn and the sending of the reply. What was sent is not sent again."""
        if not message.quiet:
            text = fate.answer or _GIVEN_UP
            to = message.address
            reply = OutboundMessage(to.channel, to.chat_id, text, message.message_id, turn_id=fate.turn_id)
            reply.thread_id, reply.answers = to.thread_id, message.journal_key
            self.bus.post_outbound(reply)
        self.bus.settle(message, InboundState.ANSWERED if fate.answer else InboundState.FAILED)

    async def _go_on(self, left: LeftOver, joined: Sequence[InboundMessage]) -> None:
        result = await self._take_up(left, self._delivery(left.message), joined=len(joined))
        for message in (left.message, *joined):
            self._settle(message, result)

    async def _take_up_background(self, session_key: str | None = None) -> None:
        """Go on with what an earlier life left beside its turns, of one session or of all. Never raises."""
        for one in (self._parts.goals, self._parts.children):
            if one is not None:
                await one.take_up(session_key)

    async def _take_up(
        self, left: LeftOver, sink: EventSink | None, *, attended: bool = False, joined: int = 0
    ) -> TurnResult:
        turn = new_turn(left.message, sink, self._parts, turn_id=left.turn_id)
        turn.resumes, turn.attended, turn.joined = True, attended, joined
        return await self._answer(turn, may_join=False)

    def _delivery(self, message: InboundMessage) -> Delivery | None:
        if message.quiet:
            return None
        policy = OF_GOALS if message.origin is Origin.GOAL else self._policy.delivery(message.channel)
        return Delivery(self.bus, message, policy)


def _at_once(message: InboundMessage) -> str | None:
    """The name of the command that goes past the lane, if this is one."""
    command = parse_command(message.content)
    return command.name if command is not None and command.name in SlashCommands.AT_ONCE else None


def _ended(turn: Turn, outcome: TurnOutcome, text: str) -> TurnResult:
    """The end of a turn that never entered the pipeline."""
    turn.emit(TurnEnded(outcome=outcome, text=text))
    return TurnResult(outcome, text, turn_id=turn.turn_id)


def _put_off(turn: Turn) -> TurnResult:
    """The end of a turn that nanobot's own end came before. What the journal has begins unasked at the next start."""
    later = turn.resumes or turn.message.journal_key is not None
    text = GOES_ON_LATER if turn.resumes else "" if later else COME_BACK
    turn.emit(TurnEnded(outcome=TurnOutcome.STOPPED, text=text, later=later or None))
    return TurnResult(TurnOutcome.STOPPED, text, turn_id=turn.turn_id, later=later)


def _ended_with(turn: Turn, other: asyncio.Future[TurnResult]) -> TurnResult:
    """The end of a message that joined another turn: the reply went where that turn's reply goes, once."""
    if other.cancelled():
        return _ended(turn, TurnOutcome.STOPPED, _GIVEN_UP)
    result = other.result()
    turn.emit(TurnEnded(outcome=result.outcome, text="", error=result.error, later=result.later or None))
    return result


def _several(labels: Sequence[str]) -> str:
    """Subagents, for who has stopped them."""
    return f"{counted(len(labels), 'subagent')} ({', '.join(labels)})"


def _may_stop(said: InboundMessage, asked: InboundMessage) -> bool:
    """Who asked for it and owners may; in a chat of several, nobody else."""
    return is_from_owner(said) or (said.channel, said.sender_id) == (asked.channel, asked.sender_id)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
