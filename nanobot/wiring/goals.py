"""Goals, as a runtime has them: for the tool, the loop, commands and screens.

Nothing is made before the first goal: whether there has ever been one is a look at a folder.
"""

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from nanobot.agent.desk import Asked, CommandEntry
from nanobot.agent.pipeline.work import Parts
from nanobot.agent.slash_commands import TYPED, is_from_owner, others_wrote
from nanobot.agent.tools.base import ToolContext
from nanobot.agent.tools.goal import Check, CheckKind
from nanobot.agent.turn import StepEnded
from nanobot.bus.events import InboundMessage
from nanobot.errors import NanobotError, StorageError
from nanobot.messages.types import ChatMessage, Origin
from nanobot.wiring.surroundings import Surroundings

if TYPE_CHECKING:
    from nanobot.agent.goals.goal import Goal, GoalLimits
    from nanobot.agent.goals.keeper import GoalKeeper
    from nanobot.agent.goals.manager import GoalManager
    from nanobot.agent.goals.store import GoalStore
    from nanobot.agent.loop import AgentLoop
    from nanobot.wiring.subagents import Subagents

_Number = TypeVar("_Number", int, float)
_MOST = 1_000_000
_SHOWN_S = 5.0
_LOOK_S = 0.02
_OPTION = re.compile(r"(?:--|[—–])(\w[\w-]*)(?:=|\s+|$)")
"""One option; phones make a dash of two."""
_QUOTES = {'"': '"', "'": "'", "“": "”", "„": "“", "‘": "’"}
"""What opens a quotation, and what closes it: phones again."""
_CHECKS = frozenset(kind.value for kind in CheckKind)
_STAND_IN = "offline"
_NO_MODEL = (
    "No model is set up, so nobody could work at it. `nanobot onboard` sets one up, or a key in the environment, such "
    "as OPENAI_API_KEY."
)
_USAGE = (
    "Say /goal TEXT, with --steps N, --usd N, --check COMMAND, --plan or --review before the text; /goal resume, "
    "/goal stop, or /goal to see how far it is."
)


class Goals:
    """The goals of one runtime, made when the first one is wanted."""

    def __init__(self, folder: Path, around: Surroundings, subagents: "Subagents") -> None:
        """`folder` is where they lie."""
        self._folder = folder
        self._around = around
        self._subagents = subagents
        self._loop: AgentLoop | None = None
        self._parts: Parts | None = None

    def join(self, loop: "AgentLoop", parts: Parts) -> None:
        """The loop that runs their turns, and the parts of these. Said once, before the first turn."""
        self._loop, self._parts = loop, parts

    @cached_property
    def manager(self) -> "GoalManager":
        """The manager, with everything it stands on."""
        from nanobot.agent.goals.goal import GoalLimits  # most turns need none of it
        from nanobot.agent.goals.manager import GoalManager, GoalPolicy
        from nanobot.wiring.goal_turns import GoalTeam, GoalTurns

        loop, parts, defaults = self._loop, self._parts, self._around.defaults
        assert loop is not None and parts is not None  # noqa: S101 joined before the first turn
        return GoalManager(
            self._store,
            GoalTurns(self._around.bus, parts, loop),
            GoalTeam(self._subagents, parts),
            parts.clock,
            GoalPolicy(GoalLimits(defaults.goal_steps, defaults.goal_usd), defaults.review),
            ending=lambda: loop.is_stopping,
        )

    @cached_property
    def _store(self) -> "GoalStore":
        from nanobot.agent.goals.store import GoalStore  # where there has ever been a goal

        return GoalStore(self._folder)

    def keeper(self) -> "GoalKeeper":
        """What the tool speaks to."""
        from nanobot.agent.goals.keeper import GoalKeeper  # as above

        return GoalKeeper(self.manager)

    @property
    def is_made(self) -> bool:
        """Whether this process has had any."""
        return "manager" in self.__dict__

    async def _is_there(self) -> bool:
        return self.is_made or await asyncio.to_thread(self._folder.is_dir)

    # --- for turns

    def serves(self, message: InboundMessage) -> bool:
        """Whether its turn was asked for by a goal."""
        return message.origin is Origin.GOAL

    def is_wanted(self, message: InboundMessage) -> bool:
        """Whether that turn is still to run."""
        return not self.is_made or self.manager.wants_turn(message.session_key)

    async def recall(self, session_key: str) -> None:
        """Know the goal of this session that waits for its person. Without a goal ever, a stat or two."""
        if self._folder.is_dir() and self._store.has(session_key):
            await self.manager.recall(session_key)

    def note_for(self, message: InboundMessage) -> str:
        """What the model is to know of the session's goal beside this message."""
        if not self.is_made:
            return ""
        note, goal = self.manager.note_for(message), self.goal_of(message.session_key)
        return f"{note}\n\n{self._notes_of(goal)}".strip() if goal is not None and self.serves(message) else note

    def told(self, message: InboundMessage) -> Sequence[ChatMessage]:
        """What that holds of others' words."""
        return self.manager.told(message.session_key) if self.is_made else ()

    def used(self, message: InboundMessage, step: StepEnded) -> None:
        """A model call of a goal's turn has ended."""
        if self.is_made:
            self.manager.used(message.session_key, step)

    def why_enough(self, message: InboundMessage) -> str:
        """Why no further model call may be made."""
        return self.manager.why_enough(message.session_key) if self.is_made else ""

    def goal_of(self, session_key: str) -> "Goal | None":
        """The goal that is worked at here for a session."""
        return self.manager.goal_of(session_key) if self.is_made else None

    def on_behalf(self, context: ToolContext) -> ToolContext:
        """The turn of a goal as the one that set it: who could answer what that asks, may answer this."""
        goal = self.goal_of(context.session_key) if context.origin is Origin.GOAL else None
        return context if goal is None else replace(context, origin=goal.origin, attended=goal.attended)

    async def id_of(self, session_key: str) -> str:
        """The goal that a turn of this session works for, by its id; also before it is taken up here after a crash."""
        with suppress(StorageError):
            goal = self.goal_of(session_key) or (
                await self.manager.last(session_key) if await self._is_there() else None
            )
            return goal.id if goal is not None else ""
        return ""

    def _notes_of(self, goal: "Goal") -> str:
        """Where its subagents keep what each other should know, once there have been some. A stat."""
        from nanobot.wiring.task_goals import notes_of  # most turns have no goal

        notes = notes_of(self._around.policies.paths, goal.scope, goal.id)
        return f"Notes of the goal's subagents: {notes}" if notes else ""

    # --- for the loop and commands

    async def take_up(self, session_key: str | None = None) -> None:
        """Go on with what an earlier life left, of one session or of all. Never raises."""
        if await self._is_there():
            await self.manager.take_up(session_key)

    async def stop_of(self, said: InboundMessage) -> str:
        """Stop the goal of the session of this word, as far as its sender may; what it was called, empty for none."""
        if not await self._is_there():
            return ""
        from nanobot.agent.goals import words

        with suppress(NanobotError):  # another process works at it
            stopped = await self.manager.stop(said.session_key, partial(_may_stop, said))
            return words.title(stopped) if stopped is not None else ""
        return ""

    async def forget_of(self, session_key: str) -> str:
        """Keep nothing of this session's goal; what it was called. Raises NanobotError."""
        if not await self._is_there():
            return ""
        from nanobot.agent.goals import words

        goal = await self.manager.forget(session_key)
        return words.title(goal) if goal is not None else ""

    async def elsewhere(self, session_key: str) -> str:
        """That another process works at it, in a sentence; empty where none does. Never raises."""
        with suppress(NanobotError):
            return await self.manager.elsewhere(session_key) if await self._is_there() else ""
        return ""

    def lines(self, session_key: str) -> list[str]:
        """What a person who asks for the state of things is told."""
        goal = self.goal_of(session_key)
        if goal is None:
            return []
        from nanobot.agent.goals import words

        return [words.line(goal)]

    # --- for screens

    def titles(self, session_key: str | None = None) -> list[str]:
        """What is worked at for this session, or for any."""
        return self.manager.titles(session_key) if self.is_made else []

    async def all_shown(self, session_key: str) -> None:
        """Wait until no goal is worked at for this session, and what was said of it has left for its channel."""
        if not self.is_made:
            return
        await self.manager.all_ended(session_key)
        bus = self._around.bus
        with suppress(TimeoutError):
            async with asyncio.timeout(_SHOWN_S):
                while bus.outbound_size:  # noqa: ASYNC110 no queue tells that it is empty
                    await asyncio.sleep(_LOOK_S)
                await asyncio.sleep(_LOOK_S)

    # --- the command

    @property
    def command(self) -> CommandEntry:
        """`/goal`."""
        return CommandEntry(self._answer, "work at something until it is reached", "TEXT | resume | stop")

    async def _answer(self, asked: Asked) -> str:
        word = asked.argument.strip()
        try:
            if not word or word.lower() == "status":
                return await self._status(asked)
            if asked.message.origin not in TYPED:
                return "/goal has to be typed by a person."
            if word.lower() in ("stop", "cancel"):
                if stopped := await self.stop_of(asked.message):
                    return f"Stopped: the goal ({stopped})."
                return await self.elsewhere(asked.session.key) or "There is no goal here that you could stop."
            if not is_from_owner(asked.message) and await self._is_others_chat(asked):
                return "Others have written here too: only an owner may set a goal."
            first, _, rest = word.partition(" ")
            if first.lower() in ("resume", "continue"):
                return await self._resume(asked, rest)
            return await self._begin(asked, word)
        except StorageError:
            raise
        except NanobotError as error:
            return str(error)

    async def _status(self, asked: Asked) -> str:
        from nanobot.agent.goals import words

        goal = await self.manager.last(asked.session.key) if await self._is_there() else None
        if goal is None:
            return f"There is no goal here. {_USAGE}"
        assert self._parts is not None  # noqa: S101 as above
        told = words.status(goal, self._parts.clock.now().timestamp())
        return f"{told}\n{self._notes_of(goal)}".strip()

    async def _resume(self, asked: Asked, rest: str) -> str:
        from nanobot.agent.goals import words

        wish = _wish_in(rest)
        if isinstance(wish, str) or wish.text:
            return wish if isinstance(wish, str) else _USAGE
        if too_much := self._too_much(wish, asked):
            return too_much
        goal = await self.manager.resume(asked.session.key, partial(_more, wish, self.manager.policy.limits))
        return f"I go on with it: {words.title(goal)} ({words.used(goal)})."

    async def _begin(self, asked: Asked, text: str) -> str:
        from nanobot.agent.goals import words
        from nanobot.agent.goals.goal import Goal, GoalLimits

        wish = _wish_in(text)
        if isinstance(wish, str) or not wish.text:
            return wish if isinstance(wish, str) else _USAGE
        if too_much := self._too_much(wish, asked):
            return too_much
        if await self._has_no_model(asked):
            return _NO_MODEL
        message, policy = asked.message, self.manager.policy
        goal = Goal(
            "",
            wish.text,
            asked.session.key,
            message.address,
            message.provenance,
            message.origin,
            message.sender_id,
            scope=asked.scope,
            attended=asked.attended,
            limits=GoalLimits(wish.steps or policy.limits.steps, wish.usd or policy.limits.usd),
            check=wish.check,
            plan=wish.plan,
            review=wish.review or policy.review,
        )
        return words.begun(await self.manager.set(goal))

    async def _has_no_model(self, asked: Asked) -> bool:
        """Whether only the stand-in would work at it, which cannot. Raises NanobotError where none can be had."""
        assert self._parts is not None  # noqa: S101 as above
        return (await self._parts.models.get(asked.session.metadata.get("model"))).provider_name == _STAND_IN

    async def _is_others_chat(self, asked: Asked) -> bool:
        """Whether somebody else has written in this chat, or has set the goal that it had last."""
        if others_wrote(asked.session, asked.message.sender_id):
            return True
        goal = await self.manager.last(asked.session.key) if await self._is_there() else None
        return goal is not None and not _may_stop(asked.message, goal)

    def _too_much(self, wish: "_Wish", asked: Asked) -> str:
        """Who is no owner does not get more than the owner has set for all; what they are told then."""
        most = self.manager.policy.limits
        if is_from_owner(asked.message) or ((wish.steps or 0) <= most.steps and (wish.usd or 0.0) <= most.usd):
            return ""
        return f"Only an owner may give a goal more than {most.steps} steps and ${most.usd:g}."

    # --- its end

    def close(self) -> None:
        """nanobot ends: what is worked at goes on at the next start."""
        if self.is_made:
            self.manager.close()

    async def let_go(self) -> None:
        """After the last turn."""
        if self.is_made:
            await self.manager.let_go()


@dataclass(frozen=True, slots=True)
class _Wish:
    """What stands behind `/goal`."""

    text: str
    steps: int | None = None
    usd: float | None = None
    check: Check | None = None
    plan: bool = False
    review: bool = False


def _wish_in(text: str) -> "_Wish | str":
    """What is wanted; or what is wrong with it, for who wrote it."""
    wish, rest = _Wish(""), text.strip()
    while (found := _OPTION.match(rest)) is not None:
        option, rest = found[1], rest[found.end() :].strip()
        if option == "plan":
            wish = replace(wish, plan=True)
            continue
        if option == "review":
            wish = replace(wish, review=True)
            continue
        value, rest = _first_of(rest)
        if value is None:
            return f"The quotation behind --{option} has no end. {_USAGE}"
        try:
            match option:
                case "check" if not value:
                    return f'--{option} wants what has to hold, as --check "pytest -q" or --check file:report.md.'
                case "check":
                    check = value if value.partition(":")[0] in _CHECKS else f"command: {value}"
                    wish = replace(wish, check=Check.of(check))
                case "steps":
                    wish = replace(wish, steps=_above_zero(option, int(value)))
                case "usd":
                    wish = replace(wish, usd=_above_zero(option, float(value.lstrip("$"))))
                case _:
                    return f"There is no option --{option}. {_USAGE}"
        except ValueError as error:
            return str(error) if option == "check" else f"--{option} wants a number above zero; {value!r} is none."
    return replace(wish, text=rest)


def _above_zero(option: str, number: _Number) -> _Number:
    if not 0 < number < _MOST:
        raise ValueError(option)
    return number


def _first_of(text: str) -> tuple[str | None, str]:
    """The first word, or what stands in quotes, None where they are not closed; and the rest."""
    if (closing := _QUOTES.get(text[:1])) is not None:
        end = min((at for at in (text.find(closing, 1), text.find("”", 1)) if at > 0), default=0)
        return (text[1:end], text[end + 1 :].strip()) if end else (None, text)
    first, _, rest = text.partition(" ")
    return first, rest.strip()


def _more(wish: _Wish, usual: "GoalLimits", goal: "Goal") -> "GoalLimits":
    """What a goal may use that goes on: what was asked for on top of what it has used, else as much again where it has
    come to its limit."""
    steps, usd, limits = wish.steps, wish.usd, goal.limits
    if steps is not None or goal.steps >= limits.steps:
        limits = replace(limits, steps=goal.steps + (steps or usual.steps))
    if usd is not None or (goal.cost_usd or 0.0) >= limits.usd:
        limits = replace(limits, usd=(goal.cost_usd or 0.0) + (usd or usual.usd))
    return limits


def _may_stop(said: InboundMessage, goal: "Goal") -> bool:
    """Who set it and owners may; in a chat of several, nobody else."""
    return is_from_owner(said) or goal.is_theirs(said)
