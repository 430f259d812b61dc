"""The turns of subagents: the same pipeline as other turns, with their own tools, prompt and limits."""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from nanobot.agent.approval.taint_policies import TaskTaint
from nanobot.agent.commands.context import TurnModels
from nanobot.agent.delivery import Delivery, DeliveryPolicy
from nanobot.agent.engine.spec import Model
from nanobot.agent.events import ApprovalAnswered, ApprovalAsked, EventSink, TurnEvent, TurnOutcome, TurnResult
from nanobot.agent.pipeline.interrupted import find_interrupted_turn, find_outcomes
from nanobot.agent.pipeline.phases import Pipeline
from nanobot.agent.pipeline.roll_over import RollOver
from nanobot.agent.pipeline.turn import Turn, TurnDeps, TurnEnding, new_turn, nothing_to_compact
from nanobot.agent.scope import Scope
from nanobot.agent.subagent.environment import SubagentEnvironment, TaskAudience
from nanobot.agent.subagent.roles import ROLES, TaskRole
from nanobot.agent.subagent.task_goals import TaskGoals, make_notes
from nanobot.agent.subagent.tasks import Task
from nanobot.agent.subagent.team import MAX_READ_PER_TURN, TeamService
from nanobot.agent.subagent.texts import SubagentPrompt
from nanobot.agent.taint import provenance_of
from nanobot.agent.tools.base import Tool, ToolResult, takes
from nanobot.agent.tools.builtin import ToolPolicies, build_tools
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.tools.shell import ExecTool
from nanobot.agent.tools.spawn import EXCLUDED_TOOLS
from nanobot.agent.tools.tell import TellTool
from nanobot.bus.events import InboundMessage
from nanobot.errors import StorageError
from nanobot.messages.types import Origin, Provenance, least_trusted
from nanobot.session.manager import Session


class TaskTurns:
    def __init__(
        self, environment: SubagentEnvironment, deps: TurnDeps, task_taint: TaskTaint, team: TeamService
    ) -> None:
        self._environment = environment
        self._task_taint = task_taint
        self._team = team
        self._tasks: dict[str, Task] = {}
        """The running tasks, by session key."""
        self._worker_tools = deps.tools
        self._deps = replace(
            deps,
            turns_folder=deps.turns_folder / "subagents",
            tool_policies=environment.tool_policies_for(
                TaskAudience(environment.approval_router, self._tasks.get), task_taint
            ),
            scope_of=self._scope_of,
            roll_over=RollOver(),
            on_session_released=environment.on_session_released,
            compact=nothing_to_compact,
            review=False,
            subagents=None,
            goals=TaskGoals(deps.goals, self._tasks.get, team, environment.policies.paths)
            if deps.goals is not None
            else None,
        )
        self._pipelines: dict[tuple[TaskRole, bool, bool], Pipeline] = {}
        """By role, whether it may start subagents, and whether it is in a team."""

    async def begin(self, task: Task, prompt: str, watch: EventSink) -> "TaskAttempt":
        """Start an attempt, or resume an interrupted one."""
        self._tasks[task.session_key] = task
        in_team = self._team.has(task)
        try:
            if task.goal:
                await asyncio.to_thread(make_notes, self._environment.policies.paths, task.scope, task.goal)
            if in_team:
                await self._team.begin_turn(task, await asyncio.to_thread(self._keys_read, task))
            interrupted = await asyncio.to_thread(find_interrupted_turn, self._deps.turns_folder, task.session_key)
            if interrupted is None and (ended := await asyncio.to_thread(self._load_result, task)) is not None:
                self._tasks.pop(task.session_key)
                return TaskAttempt(_ended_future(ended))
            if interrupted is None:
                await asyncio.to_thread(self._prepare_session, task)
        except BaseException:
            self._tasks.pop(task.session_key, None)
            raise
        message = interrupted.message if interrupted is not None else _message(task, prompt)
        turn_id = interrupted.turn_id if interrupted is not None else ""
        turn = new_turn(message, self._sink(task, watch, message), self._deps, turn_id=turn_id)
        turn.resumes, turn.attended = interrupted is not None, task.attended
        if in_team:
            turn.waiting, turn.max_joining, turn.joins_at_start = (
                partial(self._team.take, task),
                MAX_READ_PER_TURN,
                True,
            )
        return TaskAttempt(asyncio.create_task(self._run_turn(task, turn)), turn)

    async def read_provenance(self, task: Task) -> Provenance:
        """Return the least trusted provenance in the subagent's session. Never raises."""
        try:
            session = await asyncio.to_thread(self._deps.sessions.get_or_create, task.session_key)
            rows = await asyncio.to_thread(session.since, 0)
        except StorageError:
            return Provenance.WEB  # unknown, so the least trusted
        return least_trusted(provenance_of(row, task.session_key) for row in rows)

    async def forget(self, session_keys: Sequence[str]) -> None:
        """Delete these sessions. Never raises."""
        for key in session_keys:
            with suppress(StorageError):
                await asyncio.to_thread(self._deps.sessions.delete, key)

    async def _run_turn(self, task: Task, turn: Turn) -> TurnResult:
        key = task.session_key
        with self._deps.status.track_turn(key):
            try:
                return await self._pipeline_for(task).run(turn)
            finally:
                turn.release()
                self._tasks.pop(key, None)

    async def _scope_of(self, message: InboundMessage) -> Scope:
        return self._tasks[message.session_key].scope

    def renew(self) -> None:
        """Apply a changed config: attempts that start from now on use the new tools and limits."""
        self._pipelines.clear()

    def _pipeline_for(self, task: Task) -> Pipeline:
        role, may_spawn, in_team = (
            task.role,
            task.depth < self._environment.defaults.subagent_depth,
            self._team.has(task),
        )
        pipeline = self._pipelines.get((role, may_spawn, in_team))
        if pipeline is None:
            deps, environment, steps = self._deps, self._environment, self._max_steps(role)
            tool_names = ROLES[role].tools
            extra_tools = [
                self._worker_tools.get("spawn") if may_spawn else None,
                TellTool(self._team) if in_team else None,
            ]
            deps = replace(
                deps,
                models=_LimitedModels(deps.models, steps),
                prompt=SubagentPrompt(
                    deps.workspace, steps, lambda scope: environment.context.runtime_context(scope=scope), role, in_team
                ),
                tools=_worker_tools(environment.policies, self._worker_tools, extra_tools)
                if tool_names is None
                else _select_tools(environment.policies, tool_names),
            )
            pipeline = self._pipelines[role, may_spawn, in_team] = Pipeline(deps)
        return pipeline

    def _max_steps(self, role: TaskRole) -> int:
        return min(ROLES[role].steps, self._environment.defaults.max_tool_iterations)

    def _load_result(self, task: Task) -> TurnResult | None:
        """Return the result of this attempt if a crash came before it was saved in the task."""
        rows = self._deps.sessions.get_or_create(task.session_key).since(0)
        ended = find_outcomes(rows, {_attempt_key(task)}).get(_attempt_key(task))
        if ended is None or not ended.answer:
            return None
        assistant_rows = [row for row in rows if row.get("turn_id") == ended.turn_id and row["role"] == "assistant"]
        error = assistant_rows[-1].get("error")
        steps, max_steps = sum(bool(row.get("tool_calls")) for row in assistant_rows), self._max_steps(task.role)
        if error in _OUTCOMES:
            return TurnResult(_OUTCOMES[error], ended.answer, turn_id=ended.turn_id)
        outcome = TurnOutcome.FAILED if error else TurnOutcome.PARTIAL if steps >= max_steps else TurnOutcome.ANSWERED
        retryable = assistant_rows[-1].get("retryable", True)
        return TurnResult(outcome, ended.answer, error, ended.turn_id, retryable=retryable)

    def _keys_read(self, task: Task) -> set[str]:
        """Return the keys of the team messages in its session."""
        rows = self._deps.sessions.get_or_create(task.session_key).since(0)
        return {row["inbound"] for row in rows if "inbound" in row}

    def _prepare_session(self, task: Task) -> None:
        """Create its session with the parent's model."""
        sessions = self._deps.sessions
        session = sessions.get_or_create(task.session_key)
        if "subagent" in session.metadata:
            return
        parent_model = sessions.get_or_create(task.parent).metadata.get("model")
        session.metadata["subagent"] = {"label": task.label, "parent": task.parent, "scope": task.scope.chat}
        if parent_model is not None:
            session.metadata["model"] = parent_model
        sessions.save(session)

    def _sink(self, task: Task, watch: EventSink, message: InboundMessage) -> EventSink:
        """Return the event sink. Approval questions go to the sink of the waiting turn, else to the chat of the
        report.
        """
        chat = Delivery(self._environment.bus, replace(message, journal_key=None), DeliveryPolicy(progress=False))

        def sink(event: TurnEvent) -> None:
            watch(event)
            if not isinstance(event, ApprovalAsked | ApprovalAnswered):
                return
            if isinstance(event, ApprovalAsked):
                event = replace(event, text=f"For my background task ({task.label}):\n{event.text}")
            waiting_sink = self._task_taint.emitter_of(task.turn_id) if task.waited else None
            (waiting_sink or chat)(event)

        return sink


_OUTCOMES: dict[str | None, TurnOutcome] = {
    outcome.value: outcome for outcome in (TurnOutcome.PARTIAL, TurnOutcome.STOPPED, TurnOutcome.REFUSED)
}
"""Outcomes by the `error` value in the last row of a turn."""


class TaskAttempt:
    """An attempt at a task. Without a turn it had ended before the crash."""

    def __init__(self, done: asyncio.Future[TurnResult], turn: Turn | None = None) -> None:
        self.done = done
        self._turn = turn

    def end(self, *, later: bool) -> None:
        """End the turn soon: for good, keeping its text, or so that it resumes at the next start (`later`). A stop by a
        person is final.
        """
        if self._turn is not None and self._turn.ending is not TurnEnding.STOP:
            self._turn.ending = TurnEnding.INTERRUPT if later else TurnEnding.STOP
        self.done.cancel()


def _ended_future(result: TurnResult) -> asyncio.Future[TurnResult]:
    done: asyncio.Future[TurnResult] = asyncio.get_running_loop().create_future()
    done.set_result(result)
    return done


class _LimitedModels:
    """Models with the step limit of a subagent."""

    def __init__(self, models: TurnModels, steps: int) -> None:
        self._models = models
        self._steps = steps

    async def get(self, name: str | None) -> Model:
        return self._limit(await self._models.get(name))

    async def of_session(self, session: Session) -> Model:
        return self._limit(await self._models.of_session(session))

    def _limit(self, model: Model) -> Model:
        return replace(model, limits=replace(model.limits, max_steps=self._steps))


def _message(task: Task, prompt: str) -> InboundMessage:
    """Return the prompt of an attempt as a message with the provenance of the request."""
    return InboundMessage.at(
        task.address,
        task.sender_id,
        prompt,
        session_key=task.session_key,
        origin=Origin.SUBAGENT,
        provenance=task.asker,
        journal_key=_attempt_key(task),
    )


def _attempt_key(task: Task) -> str:
    return f"{task.session_key}:{task.tries}"


def _worker_tools(policies: ToolPolicies, main: ToolRegistry, extra_tools: Iterable[Tool | None]) -> ToolRegistry:
    """Return the tools of a worker: built-in ones, `extra_tools`, and the main agent's dynamic tools."""
    registry = build_tools(policies)
    if policies.exec is not None:
        no_jobs = _NoCron()
        registry.register(
            ExecTool(
                policies.paths,
                policies.exec,
                find_tool=lambda name: no_jobs if name == "cron" else registry.get(name),
                mark_changed=policies.mark_changed,
                watch_reading=policies.watch_reading,
            )
        )
    for tool in filter(None, extra_tools):
        registry.register(tool)
    registry.add_source(_DynamicTools(main, frozenset(registry.names)))
    return registry


def _select_tools(policies: ToolPolicies, names: Collection[str]) -> ToolRegistry:
    """Return only the built-in tools with these names."""
    registry = build_tools(policies)
    for name in set(registry.names).difference(names):
        registry.unregister(name)
    return registry


class _DynamicTools:
    """The main agent's dynamic tools, kept up to date for a subagent."""

    def __init__(self, main: ToolRegistry, own: frozenset[str]) -> None:
        self._main = main
        self._own = own

    async def refresh(self, registry: ToolRegistry) -> None:
        await self._main.refresh()
        tools = {tool.name: tool for tool in self._main if tool.name not in EXCLUDED_TOOLS | self._own}
        for name in registry.names:
            if name not in tools and name not in self._own:
                registry.unregister(name)
        for name, tool in tools.items():
            if registry.get(name) is not tool:
                registry.register(tool)

    async def close(self) -> None:
        """The tools belong to the main agent."""


class _NoCron(Tool):
    """Replaces `cron` for commands that would create a job."""

    name = "cron"
    description = "Creates no jobs."
    parameters = takes()

    async def execute(self, **kwargs: object) -> ToolResult:
        """Refuse."""
        return ToolResult.failed("Subagents cannot create jobs. Say in your report what should be scheduled.")
