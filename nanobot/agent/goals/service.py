"""Goals of a runtime, for the tool, the loop, commands and user interfaces.

The manager is created with the first goal; before that, a check whether the folder exists is the only cost.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from nanobot.agent.commands.context import CommandCall, CommandEntry
from nanobot.agent.commands.table import TYPED, has_other_authors, is_from_owner
from nanobot.agent.events import StepEnded
from nanobot.agent.pipeline.turn import TurnDeps
from nanobot.agent.scope import Scope
from nanobot.agent.subagent.manager import SubagentManager
from nanobot.agent.subagent.team import goal_notes
from nanobot.agent.tools.base import ToolContext
from nanobot.agent.tools.goal import CheckKind, GoalCheck
from nanobot.bus.events import InboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.config.schema import AgentDefaults
from nanobot.errors import NanobotError, StorageError
from nanobot.messages.types import ChatMessage, Origin, Provenance
from nanobot.security.files.paths import PathPolicy

if TYPE_CHECKING:
    from nanobot.agent.goals.goal import Goal, GoalLimits
    from nanobot.agent.goals.manager import GoalManager
    from nanobot.agent.goals.store import GoalStore
    from nanobot.agent.goals.tool_backend import GoalToolBackend
    from nanobot.agent.loop import AgentLoop

_Number = TypeVar("_Number", int, float)
_MAX_NUMBER = 1_000_000
_OPTION = re.compile(r"(?:--|[—–])(\w[\w-]*)(?:=|\s+|$)")
"""One option. Phones replace two hyphens by a dash."""
_QUOTES = {'"': '"', "'": "'", "“": "”", "„": "“", "‘": "’"}
"""Opening and closing quotes, including typographic ones."""
_CHECKS = frozenset(kind.value for kind in CheckKind)
_OFFLINE = "offline"
_NO_MODEL = (
    "No model is set up, so a goal cannot run. Set one up with `nanobot onboard` or a key in the environment, such "
    "as OPENAI_API_KEY."
)
_USAGE = (
    "Use /goal TEXT, with --steps N, --usd N, --check COMMAND, --plan or --review before the text; /goal resume, "
    "/goal stop, or /goal to see its progress."
)


class GoalService:
    """The goals of one runtime. The manager is created on first use."""

    def __init__(
        self,
        folder: Path,
        defaults: AgentDefaults,
        bus: MessageBus,
        paths: Callable[[], PathPolicy],
        subagents: SubagentManager,
    ) -> None:
        """`folder` holds their files; `paths` returns the current file access."""
        self._folder = folder
        self._defaults = defaults
        self._bus = bus
        self._paths = paths
        self._subagents = subagents
        self._loop: AgentLoop | None = None
        self._deps: TurnDeps | None = None

    def join(self, loop: "AgentLoop", deps: TurnDeps) -> None:
        """Set the loop that runs goal turns, once, before the first turn."""
        self._loop, self._deps = loop, deps

    @cached_property
    def manager(self) -> "GoalManager":
        """Created with everything it needs on first use."""
        from nanobot.agent.goals.goal import GoalLimits  # most turns have no goal
        from nanobot.agent.goals.manager import GoalManager, GoalPolicy
        from nanobot.agent.goals.turns import GoalTeam, GoalTurns

        loop, deps, defaults = self._loop, self._deps, self._defaults
        assert loop is not None and deps is not None  # noqa: S101 joined before the first turn
        return GoalManager(
            self._store,
            GoalTurns(self._bus, deps, loop),
            GoalTeam(self._subagents, deps),
            deps.clock,
            GoalPolicy(GoalLimits(defaults.goal_steps, defaults.goal_usd), defaults.review),
            is_stopping=lambda: loop.is_stopping,
        )

    @cached_property
    def _store(self) -> "GoalStore":
        from nanobot.agent.goals.store import GoalStore  # imported on first use

        return GoalStore(self._folder)

    def tool_backend(self) -> "GoalToolBackend":
        """Return the backend of the `goal` tool."""
        from nanobot.agent.goals.tool_backend import GoalToolBackend  # as above

        return GoalToolBackend(self.manager)

    @property
    def is_created(self) -> bool:
        """Whether this process has used goals."""
        return "manager" in self.__dict__

    async def _has_goals(self) -> bool:
        return self.is_created or await asyncio.to_thread(self._folder.is_dir)

    # --- for turns

    def is_wanted(self, session_key: str) -> bool:
        """Whether the next turn of the session's goal should still run."""
        return not self.is_created or self.manager.wants_turn(session_key)

    async def adopt(self, message: InboundMessage, text: str, scope: Scope) -> str:
        """Save the active goal of an earlier release as a waiting goal. Return a notice for the person."""
        from nanobot.agent.goals import texts
        from nanobot.agent.goals.goal import Goal, GoalState

        key, policy = message.session_key, self.manager.policy
        asker = Provenance.OWNER if key.startswith("cli:") else Provenance.PERSON
        goal = Goal("", text, key, message.address, asker, Origin.USER, scope=scope, limits=policy.limits)
        goal.review, goal.state, goal.why = policy.review, GoalState.WAITING, texts.ADOPTED
        try:
            return texts.adopted_notice(goal) if await self.manager.adopt(goal) else ""
        except NanobotError as error:
            return f"The goal of an earlier release could not be saved ({texts.title(goal)}): {error}"

    async def recall(self, session_key: str) -> None:
        """Load the session's goal if it waits for its person. Costs one or two stats if there never was a goal."""
        if self._folder.is_dir() and self._store.has(session_key):
            await self.manager.recall(session_key)

    def note_for(self, message: InboundMessage) -> str:
        """Return the goal's note for the runtime context of this message."""
        if not self.is_created:
            return ""
        note, goal = self.manager.note_for(message), self.goal_of(message.session_key)
        return (
            f"{note}\n\n{self._notes_of(goal)}".strip() if goal is not None and message.origin is Origin.GOAL else note
        )

    def untrusted_rows(self, message: InboundMessage) -> Sequence[ChatMessage]:
        """Return the untrusted content of that note."""
        return self.manager.untrusted_rows(message.session_key) if self.is_created else ()

    def record_usage(self, session_key: str, step: StepEnded) -> None:
        """Count a model call of the session's goal."""
        if self.is_created:
            self.manager.record_usage(session_key, step)

    def stop_reason(self, session_key: str) -> str:
        """Return why no further model call is allowed for the session's goal; empty if one is."""
        return self.manager.stop_reason(session_key) if self.is_created else ""

    def goal_of(self, session_key: str) -> "Goal | None":
        """Return the session's goal if this process owns it."""
        return self.manager.goal_of(session_key) if self.is_created else None

    def on_behalf(self, context: ToolContext) -> ToolContext:
        """Return the context of a goal's turn as that of the turn that set it, to find who may answer its questions."""
        goal = self.goal_of(context.session_key) if context.origin is Origin.GOAL else None
        return context if goal is None else replace(context, origin=goal.origin, attended=goal.attended)

    async def id_of(self, session_key: str) -> str:
        """Return the id of the session's goal, also before it is resumed after a crash; empty if there is none."""
        with suppress(StorageError):
            goal = self.goal_of(session_key) or (
                await self.manager.last(session_key) if await self._has_goals() else None
            )
            return goal.id if goal is not None else ""
        return ""

    def _notes_of(self, goal: "Goal") -> str:
        """Return a line with the folder of the notes of its subagents, if there are any. Costs a stat."""
        notes = goal_notes(self._paths(), goal.scope, goal.id)
        return f"Notes of the goal's subagents: {notes}" if notes else ""

    # --- for the loop and commands

    async def recover(self, session_key: str | None = None) -> None:
        """Resume the unfinished goals of previous processes, of one session or all. Never raises."""
        if await self._has_goals():
            await self.manager.recover(session_key)

    async def stop_for(self, message: InboundMessage) -> str:
        """Stop the session's goal if the sender may. Return its title, or an empty string."""
        if not await self._has_goals():
            return ""
        from nanobot.agent.goals import texts

        with suppress(NanobotError):  # owned by another process
            stopped = await self.manager.stop(message.session_key, partial(_may_stop, message))
            return texts.title(stopped) if stopped is not None else ""
        return ""

    async def forget_session(self, session_key: str) -> str:
        """Stop and delete the session's goal. Return its title. Raises NanobotError."""
        if not await self._has_goals():
            return ""
        from nanobot.agent.goals import texts

        goal = await self.manager.forget(session_key)
        return texts.title(goal) if goal is not None else ""

    async def other_process_note(self, session_key: str) -> str:
        """Return a sentence if another process works on the session's goal, else an empty string. Never raises."""
        with suppress(NanobotError):
            return await self.manager.other_process_note(session_key) if await self._has_goals() else ""
        return ""

    def lines(self, session_key: str) -> list[str]:
        """Return the goal's line for `/status`."""
        goal = self.goal_of(session_key)
        if goal is None:
            return []
        from nanobot.agent.goals import texts

        return [texts.status_line(goal)]

    # --- for user interfaces

    def titles(self, session_key: str | None = None) -> list[str]:
        """Return the titles of the goals that run for this session, or for any."""
        return self.manager.titles(session_key) if self.is_created else []

    async def wait_ended(self, session_key: str) -> None:
        """Wait until no goal of this session runs."""
        if self.is_created:
            await self.manager.wait_ended(session_key)

    # --- the command

    @property
    def command(self) -> CommandEntry:
        return CommandEntry(self._run_command, "work on something until it is done", "TEXT | resume | stop")

    async def _run_command(self, call: CommandCall) -> str:
        argument = call.argument.strip()
        try:
            if not argument or argument.lower() == "status":
                return await self._status(call)
            if call.message.origin not in TYPED:
                return "/goal must be typed by a person."
            if argument.lower() in ("stop", "cancel"):
                if stopped := await self.stop_for(call.message):
                    return f"Stopped: the goal ({stopped})."
                return await self.other_process_note(call.session.key) or "There is no goal here that you can stop."
            if not is_from_owner(call.message) and await self._is_shared_chat(call):
                return "Other people have written in this chat, so only an owner may set a goal."
            first, _, rest = argument.partition(" ")
            if first.lower() in ("resume", "continue"):
                options = _parse_request(rest)
                if isinstance(options, str) or not options.text:  # else it is a goal, as "continue the report" is
                    return options if isinstance(options, str) else await self._resume(call, options)
            return await self._begin(call, argument)
        except StorageError:
            raise
        except NanobotError as error:
            return str(error)

    async def _status(self, call: CommandCall) -> str:
        from nanobot.agent.goals import texts

        goal = await self.manager.last(call.session.key) if await self._has_goals() else None
        if goal is None:
            return f"There is no goal here. {_USAGE}"
        assert self._deps is not None  # noqa: S101 as above
        text = texts.status(goal, self._deps.clock.now().timestamp())
        return f"{text}\n{self._notes_of(goal)}".strip()

    async def _resume(self, call: CommandCall, request: "_GoalRequest") -> str:
        from nanobot.agent.goals import texts

        if refusal := self._limit_refusal(request, call):
            return refusal
        goal = await self.manager.resume(call.session.key, partial(_raise_limits, request, self.manager.policy.limits))
        return f"Resumed the goal: {texts.title(goal)} ({texts.format_usage(goal)})."

    async def _begin(self, call: CommandCall, text: str) -> str:
        from nanobot.agent.goals import texts
        from nanobot.agent.goals.goal import Goal, GoalLimits

        request = _parse_request(text)
        if isinstance(request, str) or not request.text:
            return request if isinstance(request, str) else _USAGE
        if refusal := self._limit_refusal(request, call):
            return refusal
        if await self._is_offline(call):
            return _NO_MODEL
        message, policy = call.message, self.manager.policy
        goal = Goal(
            "",
            request.text,
            call.session.key,
            message.address,
            message.provenance,
            message.origin,
            message.sender_id,
            scope=call.scope,
            attended=call.attended,
            limits=GoalLimits(request.steps or policy.limits.steps, request.usd or policy.limits.usd),
            check=request.check,
            plan=request.plan,
            review=request.review or policy.review,
        )
        return texts.started_reply(await self.manager.set(goal))

    async def _is_offline(self, call: CommandCall) -> bool:
        """Whether only the offline provider is available, which cannot work on goals. Raises NanobotError if no model
        is.
        """
        assert self._deps is not None  # noqa: S101 as above
        return (await self._deps.models.of_session(call.session)).provider_name == _OFFLINE

    async def _is_shared_chat(self, call: CommandCall) -> bool:
        """Whether other people have written in this chat, or set its last goal."""
        if has_other_authors(call.session, call.message.sender_id):
            return True
        goal = await self.manager.last(call.session.key) if await self._has_goals() else None
        return goal is not None and not _may_stop(call.message, goal)

    def _limit_refusal(self, request: "_GoalRequest", call: CommandCall) -> str:
        """Return the refusal if somebody other than the owner asks for more than the configured limits."""
        limits = self.manager.policy.limits
        if is_from_owner(call.message) or ((request.steps or 0) <= limits.steps and (request.usd or 0.0) <= limits.usd):
            return ""
        return f"Only an owner may give a goal more than {limits.steps} steps and ${limits.usd:g}."

    # --- shutdown

    def close(self) -> None:
        """Stop driving goals. They continue at the next start."""
        if self.is_created:
            self.manager.close()

    async def wait_closed(self) -> None:
        """Wait for the drivers and release the locks, after the last turn."""
        if self.is_created:
            await self.manager.wait_closed()


@dataclass(frozen=True, slots=True)
class _GoalRequest:
    """The parsed arguments of `/goal`."""

    text: str
    steps: int | None = None
    usd: float | None = None
    check: GoalCheck | None = None
    plan: bool = False
    review: bool = False


def _parse_request(text: str) -> "_GoalRequest | str":
    """Parse the arguments; return an error text for invalid ones."""
    request, rest = _GoalRequest(""), text.strip()
    while (match := _OPTION.match(rest)) is not None:
        option, rest = match[1], rest[match.end() :].strip()
        if option == "plan":
            request = replace(request, plan=True)
            continue
        if option == "review":
            request = replace(request, review=True)
            continue
        value, rest = _split_first(rest)
        if value is None:
            return f"The quote after --{option} is not closed. {_USAGE}"
        try:
            match option:
                case "check" if not value:
                    return f'--{option} needs a check, for example --check "pytest -q" or --check file:report.md.'
                case "check":
                    check = value if value.partition(":")[0] in _CHECKS else f"command: {value}"
                    request = replace(request, check=GoalCheck.of(check))
                case "steps":
                    request = replace(request, steps=_positive(option, int(value)))
                case "usd":
                    request = replace(request, usd=_positive(option, float(value.lstrip("$"))))
                case _:
                    return f"There is no option --{option}. {_USAGE}"
        except ValueError as error:
            return str(error) if option == "check" else f"--{option} needs a number above zero, not {value!r}."
    return replace(request, text=rest)


def _positive(option: str, number: _Number) -> _Number:
    if not 0 < number < _MAX_NUMBER:
        raise ValueError(option)
    return number


def _split_first(text: str) -> tuple[str | None, str]:
    """Split off the first word or quoted text. The first part is None if a quote is not closed."""
    if (closing := _QUOTES.get(text[:1])) is not None:
        end = min((at for at in (text.find(closing, 1), text.find("”", 1)) if at > 0), default=0)
        return (text[1:end], text[end + 1 :].strip()) if end else (None, text)
    first, _, rest = text.partition(" ")
    return first, rest.strip()


def _raise_limits(request: _GoalRequest, defaults: "GoalLimits", goal: "Goal") -> "GoalLimits":
    """Return the limits of a resumed goal: what was asked for on top of what it has used; if nothing
    was asked for, the usual amount again where a limit was reached.
    """
    steps, usd, limits = request.steps, request.usd, goal.limits
    if steps is not None or goal.steps >= limits.steps:
        limits = replace(limits, steps=goal.steps + (steps or defaults.steps))
    if usd is not None or (goal.cost_usd or 0.0) >= limits.usd:
        limits = replace(limits, usd=(goal.cost_usd or 0.0) + (usd or defaults.usd))
    return limits


def _may_stop(message: InboundMessage, goal: "Goal") -> bool:
    """Whether the sender may stop the goal: its author and owners may."""
    return is_from_owner(message) or goal.is_theirs(message)
