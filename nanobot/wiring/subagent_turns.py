"""The turns of subagents: through the same pipeline as everybody's, with tools, prompt and limits of their own."""

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from nanobot.agent.delivery import Delivery, DeliveryPolicy
from nanobot.agent.desk import Models
from nanobot.agent.pipeline.left_over import fates_of, message_of
from nanobot.agent.pipeline.phases import Pipeline
from nanobot.agent.pipeline.roll_over import RollOver
from nanobot.agent.pipeline.work import Ending, Parts, Turn, new_turn
from nanobot.agent.roles import SHEETS, Role
from nanobot.agent.run.handing_on import HandingOn
from nanobot.agent.run.outside import provenance_of
from nanobot.agent.run.spec import Model
from nanobot.agent.task_words import SubagentPrompt
from nanobot.agent.tasks import Task
from nanobot.agent.teammates import MOST_READ, Teammates
from nanobot.agent.tools.base import Tool, ToolResult
from nanobot.agent.tools.builtin import ToolPolicies, build_tools
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.tools.schema import takes
from nanobot.agent.tools.shell import ExecTool
from nanobot.agent.tools.spawn import WITHHELD
from nanobot.agent.tools.tell import TellTool
from nanobot.agent.turn import ApprovalAnswered, ApprovalAsked, EventSink, TurnEvent, TurnOutcome, TurnResult
from nanobot.bus.events import InboundMessage
from nanobot.errors import StorageError
from nanobot.messages.types import Origin, Provenance, least_trusted
from nanobot.session.checkpoint import Checkpoint
from nanobot.wiring.surroundings import Answerers, Surroundings
from nanobot.wiring.task_goals import TaskGoals, make_notes


class TaskTurns:
    """Runs them."""

    def __init__(self, around: Surroundings, parts: Parts, handing_on: HandingOn, team: Teammates) -> None:
        self._around = around
        self._handing_on = handing_on
        self._team = team
        self._tasks: dict[str, Task] = {}
        """By session, those that run."""
        self._tools = parts.tools
        self._parts = replace(
            parts,
            turns_folder=parts.turns_folder / "subagents",
            hooks=(handing_on, *around.hooks(Answerers(around.answering, self._tasks.get))),
            scope_of=lambda message: self._tasks[message.session_key].scope,
            roll_over=RollOver(),
            saved=around.look,
            children=None,
            goals=TaskGoals(parts.goals, self._tasks.get, team, around.policies.paths)
            if parts.goals is not None
            else None,
        )
        self._pipelines: dict[tuple[Role, bool, bool], Pipeline] = {}
        """By role, whether it may have subagents of its own, and whether it is one of a team."""

    async def begin(self, task: Task, words: str, watch: EventSink) -> "_Trial | _Ended":
        """Begin a try, or go on with it."""
        self._tasks[task.session_key] = task
        in_team = self._team.has(task)
        try:
            if task.goal:
                await asyncio.to_thread(make_notes, self._around.policies.paths, task.scope, task.goal)
            if in_team:
                await self._team.begins(task, await asyncio.to_thread(self._keys_read, task))
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
        if in_team:
            turn.waiting, turn.most_joining, turn.joins_early = partial(self._team.take, task), MOST_READ, True
        return _Trial(turn, self._seen_through(task, turn))

    async def seen(self, task: Task) -> Provenance:
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

    async def _seen_through(self, task: Task, turn: Turn) -> TurnResult:
        vitals, key = self._parts.vitals, task.session_key
        vitals.running.add(key)
        try:
            return await self._pipeline_for(task).run(turn)
        finally:
            turn.let_go()
            vitals.running.discard(key)
            self._tasks.pop(key, None)

    def _pipeline_for(self, task: Task) -> Pipeline:
        role, may_spawn, in_team = task.role, task.depth < self._around.defaults.subagent_depth, self._team.has(task)
        pipeline = self._pipelines.get((role, may_spawn, in_team))
        if pipeline is None:
            parts, around, steps = self._parts, self._around, self._steps_of(role)
            only = SHEETS[role].tools
            more = [self._tools.get("spawn") if may_spawn else None, TellTool(self._team) if in_team else None]
            parts = replace(
                parts,
                models=_Limited(parts.models, steps),
                prompt=SubagentPrompt(
                    parts.workspace, steps, lambda scope: around.context.runtime_context(scope=scope), role, in_team
                ),
                tools=_tools(around.policies, self._tools, more) if only is None else _some(around.policies, only),
            )
            pipeline = self._pipelines[role, may_spawn, in_team] = Pipeline(parts)
        return pipeline

    def _steps_of(self, role: Role) -> int:
        return min(SHEETS[role].steps, self._around.defaults.max_tool_iterations)

    def _left(self, task: Task) -> tuple[str, InboundMessage] | None:
        """The turn that a crash cut off, and its message."""
        left = Checkpoint(self._parts.turns_folder, task.session_key).load()
        message = message_of(left.accepted[-1].message) if left.accepted else None
        return (left.turn_id, message) if message is not None else None

    def _ended(self, task: Task) -> TurnResult | None:
        """How this try ended, where the crash came before that was written down."""
        rows = self._parts.sessions.get_or_create(task.session_key).since(0)
        fate = fates_of(rows, {_key_of(task)}).get(_key_of(task))
        if fate is None or not fate.answer:
            return None
        mine = [row for row in rows if row.get("turn_id") == fate.turn_id and row["role"] == "assistant"]
        error = mine[-1].get("error")
        steps, most = sum(bool(row.get("tool_calls")) for row in mine), self._steps_of(task.role)
        if error in _OUTCOMES:
            return TurnResult(_OUTCOMES[error], fate.answer, turn_id=fate.turn_id)
        outcome = TurnOutcome.FAILED if error else TurnOutcome.PARTIAL if steps >= most else TurnOutcome.ANSWERED
        return TurnResult(outcome, fate.answer, error, fate.turn_id)

    def _keys_read(self, task: Task) -> set[str]:
        """The keys of the messages that its subagent has read."""
        rows = self._parts.sessions.get_or_create(task.session_key).since(0)
        return {row["inbound"] for row in rows if "inbound" in row}

    def _prepared(self, task: Task) -> None:
        """Its session says whose it is, and asks the model that the parent's asks."""
        sessions = self._parts.sessions
        session = sessions.get_or_create(task.session_key)
        if "subagent" in session.metadata:
            return
        asker = sessions.get_or_create(task.parent).metadata.get("model")
        session.metadata["subagent"] = {"label": task.label, "parent": task.parent, "scope": task.scope.chat}
        if asker is not None:
            session.metadata["model"] = asker
        sessions.save(session)

    def _sink(self, task: Task, watch: EventSink, message: InboundMessage) -> EventSink:
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


def _message(task: Task, words: str) -> InboundMessage:
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


def _key_of(task: Task) -> str:
    return f"{task.session_key}:{task.tries}"


def _tools(policies: ToolPolicies, main: ToolRegistry, more: Iterable[Tool | None]) -> ToolRegistry:
    """The tools of a subagent: its own of the built-in ones and these, and those of others that come and go."""
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
    for tool in filter(None, more):
        registry.register(tool)
    registry.add_source(_Others(main, frozenset(registry.names)))
    return registry


def _some(policies: ToolPolicies, names: Collection[str]) -> ToolRegistry:
    """The built-in tools of these names and no others, wherever they would come from."""
    registry = build_tools(policies)
    for name in set(registry.names).difference(names):
        registry.unregister(name)
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
