"""Subagents: their turns go through the same pipeline as everybody's, with parts of their own; their reports come in by
the bus, or where nobody takes from it, straight into the loop.

Nothing of it is made before the first task, so that a turn without one does not wait for it.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from nanobot.agent.answering import Answering
from nanobot.agent.delivery import Delivery, DeliveryPolicy
from nanobot.agent.pipeline.left_over import fates_of, is_taken_on, message_of
from nanobot.agent.pipeline.phases import Pipeline
from nanobot.agent.pipeline.work import Ending, Parts, Turn, new_turn
from nanobot.agent.run.handing_on import HandingOn
from nanobot.agent.run.hooks import PlannedCall
from nanobot.agent.run.outside import provenance_of
from nanobot.agent.run.runner import Model
from nanobot.agent.slash_commands import CommandEntry, Models, is_from_owner
from nanobot.agent.tools.base import Tool, ToolResult
from nanobot.agent.tools.builtin import ToolPolicies, build_tools
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.tools.schema import takes
from nanobot.agent.tools.shell import ExecTool
from nanobot.agent.turn import ApprovalAnswered, ApprovalAsked, EventSink, TurnEvent, TurnOutcome, TurnResult
from nanobot.bus.events import InboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.config.paths import Places
from nanobot.config.schema import Config
from nanobot.errors import NanobotError, StorageError
from nanobot.messages.types import ChatMessage, Origin, Provenance, least_trusted, text_of
from nanobot.session.checkpoint import Checkpoint
from nanobot.utils.clock import timestamp

if TYPE_CHECKING:
    from nanobot.agent.context import ContextBuilder
    from nanobot.agent.loop import AgentLoop
    from nanobot.agent.run.hooks import ToolHook
    from nanobot.agent.slash_commands import Asked
    from nanobot.agent.subagent import SubagentManager
    from nanobot.agent.tasks import Task

log = logging.getLogger(__name__)

STEPS = 15
"""Model calls that a subagent has."""
WITHHELD = frozenset({"message", "spawn", "cron"})
"""Tools that subagents have not: they speak to nobody, and make no work that outlives them."""
_LOOK_S = 0.02
_SHOWN_S = 5.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What subagents share with the turns that ask for them."""

    config: Config
    places: Places
    bus: MessageBus
    context: "ContextBuilder"
    policies: ToolPolicies
    hooks: Callable[["Answerers"], Sequence["ToolHook"]]
    """The hooks around their tool calls, asking where this says."""
    answering: Answering


class Subagents:
    """The subagents of one runtime, made when the first one is wanted."""

    def __init__(self, around: Surroundings, handing_on: HandingOn) -> None:
        self._around = around
        self._handing_on = handing_on
        self._loop: AgentLoop | None = None
        self._parts: Parts | None = None

    def join(self, loop: "AgentLoop", parts: Parts) -> None:
        """The loop that their reports go to, and the parts of its turns. Said once, before the first turn."""
        self._loop, self._parts = loop, parts

    @cached_property
    def manager(self) -> "SubagentManager":
        """The manager, with everything it stands on."""
        from nanobot.agent.subagent import SubagentManager, SubagentPolicy  # most turns need none of it
        from nanobot.agent.tasks import TaskStore

        loop, parts, around = self._loop, self._parts, self._around
        assert loop is not None and parts is not None  # noqa: S101 joined before the first turn
        defaults = around.config.agents.defaults
        policy = SubagentPolicy(
            defaults.max_concurrent_subagents,
            defaults.subagent_timeout_s,
            defaults.subagent_depth,
            keep_days=defaults.subagent_keep_days,
        )
        turns = _Turns(around, parts, self._handing_on, loop, self.spawner)
        reports = _Reports(around, parts, loop)
        store = TaskStore(around.places.tasks)
        return SubagentManager(store, turns, reports, parts.clock, policy, ending=lambda: loop.is_stopping)

    def spawner(self) -> "SubagentManager":
        """The manager, for the tool."""
        return self.manager

    @property
    def is_made(self) -> bool:
        """Whether this process has had any."""
        return "manager" in self.__dict__

    # --- for the loop

    async def take_up(self, session_key: str | None = None) -> None:
        """Go on with what an earlier life left, of one session or of all. Never raises."""
        if await asyncio.to_thread(self._has_open_tasks):
            await self.manager.take_up(session_key)

    def _has_open_tasks(self) -> bool:
        """Whether anybody's wait on the disk, ended lives' or not."""
        folder = self._around.places.tasks
        return folder.is_dir() and any(folder.glob("*.json"))

    async def stop_of(self, said: InboundMessage) -> list[str]:
        """Stop what works for the session of this word, as far as its sender may; what each of it was called."""
        if not self.is_made:
            return []
        return [task.label for task in await self.manager.stop_of(said.session_key, partial(_may_stop, said))]

    # --- for screens

    async def all_told(self, session_key: str) -> None:
        """Wait until nothing works for this session any more, and the turns that tell of it have ended."""
        if not self.is_made:
            return
        loop, bus = self._loop, self._around.bus
        assert loop is not None  # noqa: S101 else nothing was made
        await self.manager.all_told(session_key)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._around.config.agents.defaults.subagent_timeout_s):
                while bus.inbound_size or any(one.session_key == session_key for one in bus.unsettled()):  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_S)
                async with loop.lane(session_key):
                    pass

    async def all_shown(self, session_key: str) -> None:
        """The same, and until what they said has left for its channel."""
        await self.all_told(session_key)
        bus = self._around.bus
        with suppress(TimeoutError):
            async with asyncio.timeout(_SHOWN_S):
                while bus.outbound_size:  # noqa: ASYNC110 no queue tells that it is empty
                    await asyncio.sleep(_LOOK_S)
                await asyncio.sleep(_LOOK_S)

    def labels_of(self, session_key: str | None = None) -> list[str]:
        """What works for this session, or for any, and what is about to report; each by what a person calls it."""
        return [task.label for task in self.manager.tasks_of(session_key)] if self.is_made else []

    @property
    def command(self) -> CommandEntry:
        """`/tasks`."""
        return CommandEntry(self._tasks, "what subagents work on: /tasks, /tasks stop ID", "[stop ID]")

    async def _tasks(self, asked: "Asked") -> str:
        word, _, name = asked.argument.partition(" ")
        if word.lower() == "stop" and name.strip():
            return await self._stop(asked, name.strip().lower())
        if word and word.lower() != "list":
            return "Say /tasks, or /tasks stop ID."
        return await self._listed(asked)

    async def _listed(self, asked: "Asked") -> str:
        from nanobot.agent import task_words

        if not self.is_made and not await asyncio.to_thread(self._around.places.tasks.is_dir):
            return "No subagent works on anything."
        manager, parts = self.manager, self._parts
        assert parts is not None  # noqa: S101 as above
        everything = is_from_owner(asked.message) and asked.scope.is_owners
        own = asked.session.key
        tasks = [task for task in await manager.all_tasks() if everything or own in (task.parent, task.root)]
        now = parts.clock.now().timestamp()
        lines = [
            task_words.line_of(
                task,
                now,
                cost_usd=None if task.state.is_over else parts.vitals.cost_of(task.session_key) or task.cost_usd,
                doing="" if task.state.is_over else manager.doing(task.id),
                session="" if own in (task.parent, task.root) else task.parent,
            )
            for task in tasks
        ]
        return "\n".join(lines) or "No subagent works on anything."

    async def _stop(self, asked: "Asked", name: str) -> str:
        own = asked.session.key
        found = [task for task in await self.manager.all_tasks() if task.id == name]
        if not found or not (_may_stop(asked.message, found[0])):
            return f"There is no task {name!r} that you could stop. /tasks shows them."
        if await self.manager.stop_task(name, own):
            return f"Stopped: {found[0].label}"
        ended = f"It is over already ({found[0].state})." if found[0].state.is_over else "Another nanobot works on it."
        return f"{ended} Nothing was stopped."

    # --- its end

    async def close(self) -> None:
        """nanobot ends: what runs goes on at the next start."""
        if self.is_made:
            await self.manager.close()

    async def let_go(self) -> None:
        """After the last turn."""
        if self.is_made:
            await self.manager.let_go()


def _may_stop(said: InboundMessage, task: "Task") -> bool:
    """Who asked for it and owners may; in a chat of several, nobody else."""
    return is_from_owner(said) or (said.channel, said.sender_id) == (task.address.channel, task.sender_id)


class Answerers:
    """Who may answer a subagent's question: who could answer the turn that asked for it."""

    def __init__(self, answering: Answering, task_of: Callable[[str], "Task | None"]) -> None:
        self._answering = answering
        self._task_of = task_of

    async def why_not(self, planned: PlannedCall) -> str | None:
        """Why nobody may answer; None where somebody may."""
        task = self._task_of(planned.context.session_key)
        if task is None:
            return await self._answering.why_not(planned)
        context = replace(planned.context, origin=task.origin, attended=task.attended)
        return await self._answering.why_not(replace(planned, context=context))


class _Turns:
    """Runs them."""

    def __init__(
        self,
        around: Surroundings,
        parts: Parts,
        handing_on: HandingOn,
        loop: "AgentLoop",
        open_spawner: Callable[[], "SubagentManager"],
    ) -> None:
        from nanobot.agent.task_words import SubagentPrompt

        self._around = around
        self._handing_on = handing_on
        self._loop = loop
        self._tasks: dict[str, Task] = {}
        """By session, those that run."""
        steps = min(STEPS, around.config.agents.defaults.max_tool_iterations)
        self._steps = steps
        self._parts = replace(
            parts,
            models=_Limited(parts.models, steps),
            prompt=SubagentPrompt(parts.workspace, steps, lambda scope: around.context.runtime_context(scope=scope)),
            turns_folder=around.places.turns / "subagents",
            hooks=(handing_on, *around.hooks(Answerers(around.answering, self._tasks.get))),
            scope_of=lambda message: self._tasks[message.session_key].scope,
            saved=lambda session, scope: None,
            children=None,
        )
        depth = around.config.agents.defaults.subagent_depth
        spawn = parts.tools.get("spawn")
        self._pipelines = [
            Pipeline(replace(self._parts, tools=_tools(around.policies, parts.tools, spawn if may else None)))
            for may in (level < depth for level in range(1, depth + 1))
        ]

    async def begin(self, task: "Task", words: str, watch: EventSink) -> "_Trial | _Ended":
        """Begin a try, or go on with it."""
        self._tasks[task.session_key] = task
        try:
            left = await asyncio.to_thread(self._left, task)
            if left is None and (ended := await asyncio.to_thread(self._ended, task)) is not None:
                self._tasks.pop(task.session_key)
                return _Ended(ended)
            if left is None:
                await asyncio.to_thread(self._prepared, task)
        except BaseException:
            self._tasks.pop(task.session_key, None)
            raise
        message = left[1] if left is not None else _message(task, words)
        turn = new_turn(message, self._sink(task, watch, message), self._parts, turn_id=left[0] if left else "")
        turn.resumes, turn.attended = left is not None, task.attended
        return _Trial(turn, self._seen_through(task, turn))

    async def seen(self, task: "Task") -> Provenance:
        """What its rows say."""
        try:
            session = await asyncio.to_thread(self._parts.sessions.get_or_create, task.session_key)
            rows = await asyncio.to_thread(session.since, 0)
        except StorageError:
            return Provenance.WEB  # nobody knows what it was
        return least_trusted(provenance_of(row, task.session_key) for row in rows)

    async def forget(self, session_keys: Sequence[str]) -> None:
        """Delete the sessions."""
        for key in session_keys:
            with suppress(StorageError):
                await asyncio.to_thread(self._parts.sessions.delete, key)

    async def _seen_through(self, task: "Task", turn: Turn) -> TurnResult:
        vitals, key = self._parts.vitals, task.session_key
        vitals.running.add(key)
        try:
            return await self._pipelines[task.depth - 1].run(turn)
        finally:
            turn.let_go()
            vitals.running.discard(key)
            self._tasks.pop(key, None)

    def _left(self, task: "Task") -> tuple[str, InboundMessage] | None:
        """The turn that a crash cut off, and its message."""
        left = Checkpoint(self._parts.turns_folder, task.session_key).load()
        message = message_of(left.accepted[-1].message) if left.accepted else None
        return (left.turn_id, message) if message is not None else None

    def _ended(self, task: "Task") -> TurnResult | None:
        """How this try ended, where the crash came before that was written down."""
        rows = self._parts.sessions.get_or_create(task.session_key).since(0)
        fate = fates_of(rows, {_key_of(task)}).get(_key_of(task))
        if fate is None or not fate.answer:
            return None
        mine = [row for row in rows if row.get("turn_id") == fate.turn_id and row["role"] == "assistant"]
        error = mine[-1].get("error")
        steps = sum(bool(row.get("tool_calls")) for row in mine)
        if error in _OUTCOMES:
            return TurnResult(_OUTCOMES[error], fate.answer, turn_id=fate.turn_id)
        outcome = TurnOutcome.FAILED if error else TurnOutcome.PARTIAL if steps >= self._steps else TurnOutcome.ANSWERED
        return TurnResult(outcome, fate.answer, error, fate.turn_id)

    def _prepared(self, task: "Task") -> None:
        """Its session says whose it is, and asks the model that the parent's asks."""
        sessions = self._parts.sessions
        session = sessions.get_or_create(task.session_key)
        if "subagent" in session.metadata:
            return
        asker = sessions.get_or_create(task.parent).metadata.get("model")
        session.metadata["subagent"] = {"label": task.label, "parent": task.parent, "scope": task.scope.chat}
        if asker is not None:
            session.metadata["model"] = asker

    def _sink(self, task: "Task", watch: EventSink, message: InboundMessage) -> EventSink:
        """Who watches, and who is asked: those who watch the turn that waits, else the chat it goes back to."""
        chat = Delivery(self._around.bus, replace(message, journal_key=None), DeliveryPolicy(progress=False))

        def sink(event: TurnEvent) -> None:
            watch(event)
            if not isinstance(event, ApprovalAsked | ApprovalAnswered):
                return
            if isinstance(event, ApprovalAsked):
                event = replace(event, text=f"For what I do in the background ({task.label}):\n{event.text}")
            waiting = self._handing_on.watched_by(task.turn_id) if task.waited else None
            (waiting or chat)(event)

        return sink


_OUTCOMES: dict[str | None, TurnOutcome] = {
    outcome.value: outcome for outcome in (TurnOutcome.PARTIAL, TurnOutcome.STOPPED, TurnOutcome.REFUSED)
}
"""What the last row of a turn calls these ends."""


class _Trial:
    """A turn of a subagent that runs."""

    def __init__(self, turn: Turn, running: Coroutine[Any, Any, TurnResult]) -> None:
        self._turn = turn
        self.done: asyncio.Future[TurnResult] = asyncio.create_task(running)

    def end(self, *, later: bool) -> None:
        """End it soon. What a person stopped is not taken up again."""
        if self._turn.ending is not Ending.STOP:
            self._turn.ending = Ending.INTERRUPT if later else Ending.STOP
        self.done.cancel()


class _Ended:
    """One that had ended already."""

    def __init__(self, result: TurnResult) -> None:
        self.done: asyncio.Future[TurnResult] = asyncio.get_running_loop().create_future()
        self.done.set_result(result)

    def end(self, *, later: bool) -> None:
        """It has."""


class _Limited:
    """Models that are asked fewer times in a turn."""

    def __init__(self, models: Models, steps: int) -> None:
        self._models = models
        self._steps = steps

    async def get(self, wanted: str | None) -> Model:
        """The model, with the limits of a subagent."""
        model = await self._models.get(wanted)
        return replace(model, limits=replace(model.limits, max_steps=self._steps))

    def names(self) -> list[str]:
        """What may be asked for."""
        return self._models.names()


class _Reports:
    """Brings the ends of tasks into the sessions that asked."""

    def __init__(self, around: Surroundings, parts: Parts, loop: "AgentLoop") -> None:
        self._around = around
        self._parts = parts
        self._loop = loop

    async def deliver(self, task: "Task") -> bool:
        """As a message: through the bus and its journal; else as a turn at once, and then this waits for its end."""
        message = _report(task)
        if self._loop.is_serving:
            await self._around.bus.publish_inbound(message)
            return True
        return not (await self._loop.serve(message)).later

    async def was_told(self, task: "Task") -> bool:
        """Whether a turn has taken it on."""
        folder, sessions = self._around.places.turns, self._parts.sessions
        try:
            return await asyncio.to_thread(is_taken_on, folder, sessions, task.parent, task.journal_key)
        except StorageError as error:
            log.warning("whether the report of %s was told cannot be seen: %s", task.id, error)
            return False

    async def quiet(self, session_key: str) -> None:
        """Until its lane is free."""
        async with self._loop.lane(session_key):
            pass

    async def note(self, task: "Task") -> None:
        """A row of ours, which the model reads at its next turn."""
        row: ChatMessage = {
            "role": "user",
            "content": f"[The person stopped the subagent that worked on: {task.label}. It will not report.]",
            "origin": Origin.SYSTEM,
            "provenance": Provenance.SYSTEM,
            "timestamp": timestamp(self._parts.clock),
        }
        try:
            async with self._loop.lane(task.parent), self._parts.sessions.hold(task.parent) as session:
                last = session.last_message
                if last is not None and text_of(last["content"]) != row["content"]:
                    await self._parts.sessions.append(session, row)
        except NanobotError as error:
            log.warning("the agent cannot be told that subagent %s was stopped: %s", task.id, error)


def _report(task: "Task") -> InboundMessage:
    """The report as the message of a turn: in the session and the chat that asked, by its key known for good."""
    from nanobot.agent import task_words

    here = task.address
    return InboundMessage(
        here.channel,
        task.sender_id or "owner",
        here.chat_id,
        task_words.report(task),
        session_key_override=task.parent,
        thread_id=here.thread_id,
        origin=Origin.SUBAGENT,
        provenance=task.seen,
        quiet=task.quiet,
        journal_key=task.journal_key,
        plainly=task_words.plainly(task),
    )


def _message(task: "Task", words: str) -> InboundMessage:
    """What a subagent is told, by whom it was asked for."""
    here = task.address
    return InboundMessage(
        here.channel,
        task.sender_id or "owner",
        here.chat_id,
        words,
        session_key_override=task.session_key,
        thread_id=here.thread_id,
        origin=Origin.SUBAGENT,
        provenance=task.asker,
        journal_key=_key_of(task),
    )


def _key_of(task: "Task") -> str:
    return f"{task.session_key}:{task.tries}"


def _tools(policies: ToolPolicies, main: ToolRegistry, spawn: Tool | None) -> ToolRegistry:
    """The tools of a subagent: its own of the built-in ones, and those of others that come and go."""
    registry = build_tools(policies)
    if policies.exec is not None:
        no_jobs = _NoJobs()
        registry.register(
            ExecTool(
                policies.paths,
                policies.exec,
                find_tool=lambda name: no_jobs if name == "cron" else registry.get(name),
                mark_changed=policies.mark_changed,
            )
        )
    if spawn is not None:
        registry.register(spawn)
    registry.add_source(_Others(main, frozenset(registry.names)))
    return registry


class _Others:
    """Tools of the agent's that are not built in: shown to subagents as they come and go."""

    def __init__(self, main: ToolRegistry, own: frozenset[str]) -> None:
        self._main = main
        self._own = own

    async def refresh(self, registry: ToolRegistry) -> None:
        """Bring it up to date."""
        await self._main.refresh()
        wanted = {tool.name: tool for tool in self._main if tool.name not in WITHHELD | self._own}
        for name in registry.names:
            if name not in wanted and name not in self._own:
                registry.unregister(name)
        for name, tool in wanted.items():
            if registry.get(name) is not tool:
                registry.register(tool)

    async def close(self) -> None:
        """They are the agent's to close."""


class _NoJobs(Tool):
    """What a command finds that would make a job."""

    name = "cron"
    description = "Makes no jobs."
    parameters = takes()

    async def execute(self, **kwargs: object) -> ToolResult:
        """Refuse."""
        return ToolResult.failed("A subagent makes no jobs. Say in your report what you would have scheduled.")
