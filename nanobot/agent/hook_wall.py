"""The wall around hooks: in their order, each with a limit of time, and nothing of what they do ends a turn.

A hook that fails is told of once and passed over, or denies where it is a guard. One that keeps running out of time is
left out until the next start, so that it does not cost every turn its limit.
"""

import asyncio
import inspect
import json
import logging
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from nanobot.agent.hooks import (
    AnswerSeen,
    CallSeen,
    Deny,
    Hook,
    MessageSeen,
    NewArguments,
    NewResult,
    NewText,
    RequestSeen,
    ResultSeen,
    TurnSeen,
)
from nanobot.messages.types import Provenance, least_trusted
from nanobot.security.vault import cleaned, masked
from nanobot.utils.text import clip_line

log = logging.getLogger(__name__)

T = TypeVar("T")
Place = Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]
"""Where a hook runs: has it done there, and raises what it raises. Cancelling may take a while."""

LIMIT_S = 5.0
MOST_LATE = 3
"""How often in a row a hook may run out of time before it is left out."""

_strays: set["asyncio.Task[Any]"] = set()
"""Hooks that were left behind: referred to, so that they are not collected while they run."""


async def _here(work: Coroutine[Any, Any, T]) -> T:
    return await work


def _nobody_is_told(name: str, trouble: str) -> None:
    """For hooks that a program hands in: the log is enough."""


@dataclass(slots=True)
class Walled:
    """A hook behind the wall. `name` is what people know it by."""

    hook: Hook
    name: str
    limit_s: float = LIMIT_S
    place: Place = _here
    tell: Callable[[str, str], None] = _nobody_is_told
    """Told of the name and each trouble, once."""
    troubles: list[str] = field(default_factory=list)
    only: frozenset[str] | None = None
    """The methods that are asked of it; None where those are that it has written."""
    well: set[str] = field(default_factory=set)
    """The methods that it has answered well in this life."""
    _late: int = 0

    def minds(self, method: str) -> bool:
        """Whether it has anything to say there."""
        if self.only is not None:
            return method in self.only
        return getattr(type(self.hook), method) is not getattr(Hook, method)

    async def ask(self, method: str, seen: object, wanted: tuple[type, ...] = ()) -> Any:
        """What it says: one of these types, or None. Raises _FailedError; a cancel goes through."""
        if self._late >= MOST_LATE:
            raise _FailedError(f"ran out of time {MOST_LATE} times and is left out until the next start")
        try:
            said = await self._within_limit(getattr(self.hook, method), seen)
        except TimeoutError:
            self._late += 1
            raise self._failed(f"{method} took more than {self.limit_s:g} s") from None
        except Exception as error:  # the wall: somebody else's code may raise whatever it likes
            log.debug("%s: %s failed", self.name, method, exc_info=True)
            raise self._failed(f"{method} raised {_told(error)}") from None
        self._late = 0
        if said is not None and not (isinstance(said, wanted) and _fits(said)):
            raise self._failed(f"{method} returned a {type(said).__name__} that does not fit")
        self.well.add(method)
        return said

    async def _within_limit(self, method: Callable[[Any], Any], seen: object) -> Any:
        async def call() -> Any:
            try:
                said: Any = method(seen)
                while inspect.isawaitable(said):  # one that is a plain function has only forgotten its `async`
                    said = await said
            except SystemExit as error:  # else a loop takes it for its own end
                raise RuntimeError(f"it called sys.exit({error.code})") from error
            return said

        task = asyncio.ensure_future(self.place(call()))
        try:
            await asyncio.wait((task,), timeout=self.limit_s)
        finally:
            is_over = task.done()
            if not is_over:
                task.cancel()
                _strays.add(task)
                task.add_done_callback(_forget)
        if not is_over:
            raise TimeoutError
        if task.cancelled():
            raise RuntimeError("it cancelled itself")
        error = task.exception()
        if error is not None and not isinstance(error, Exception):
            raise RuntimeError(f"it raised {type(error).__name__}: {error}") from error
        return task.result()

    def _failed(self, trouble: str) -> "_FailedError":
        trouble = clip_line(" ".join(cleaned(trouble).split()), _LONGEST_TOLD)
        if trouble not in self.troubles and len(self.troubles) < _MOST_TOLD:
            self.troubles.append(trouble)
            log.warning("The hook %s is passed over: %s.", self.name, trouble)
            self.tell(self.name, trouble)
        return _FailedError(trouble)


_MOST_TOLD = 8
"""Troubles of one hook that are told: an error may have another text each time."""


_LONGEST_TOLD = 300


class _FailedError(Exception):
    """A hook said nothing that can be used."""


def _fits(said: object) -> bool:
    """Whether what stands in it is of the kinds it promises."""
    if not isinstance(getattr(said, "provenance", Provenance.OWNER), Provenance):
        return False
    match said:
        case Deny(reason=str(text)) | NewText(text=str(text)) | NewResult(text=str(text)):
            return _can_be_kept(text)
        case NewArguments(arguments=dict(arguments)):
            return all(isinstance(name, str) for name in arguments) and _can_be_kept(arguments)
        case _:
            return False


def _can_be_kept(value: object) -> bool:
    """Whether it is JSON of texts that a file takes: what is no such thing would break the session, not the hook."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _told(error: BaseException) -> str:
    """Its kind and its words, also where it has none that can be had."""
    return traceback.format_exception_only(error)[-1].strip()


def _forget(task: "asyncio.Task[Any]") -> None:
    _strays.discard(task)
    if not task.cancelled():
        task.exception()


@dataclass(frozen=True, slots=True)
class Passed:
    """What hooks made of a message, of arguments or of a result, and whose words are in it now."""

    seen: Any
    provenance: Provenance = Provenance.OWNER
    changed: bool = False


class HookWall:
    """All hooks of a bot, or of one run; the same ones in the same order for each thing that happens."""

    def __init__(self, hooks: Iterable[Walled] = (), limit_s: float = LIMIT_S) -> None:
        """`limit_s` is for hooks that a program hands in."""
        self._hooks = tuple(hooks)
        self._limit_s = limit_s
        self._minding: dict[str, tuple[Walled, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def and_these(self, hooks: Sequence[Hook]) -> "HookWall":
        """Another one with these of a program behind, for one run; they run in its own loop. This one stays as it is.

        Raises TypeError for what is no hook.
        """
        for hook in hooks:
            if not isinstance(hook, Hook):
                raise TypeError(f"{hook!r} is no hook: hand in an object of a class that derives from {Hook.__name__}.")
        more = (Walled(hook, type(hook).__name__, self._limit_s) for hook in hooks)
        return HookWall((*self._hooks, *more), self._limit_s) if hooks else self

    def troubles(self) -> list[str]:
        """What is wrong with them, a line each."""
        return [f"{one.name}: {trouble}" for one in self._hooks for trouble in one.troubles]

    async def message(self, seen: MessageSeen) -> Passed | Deny:
        """Show it to all: the first that denies ends it, each sees what those before it have changed."""
        passed = Passed(seen)
        for one in self._who_mind("on_message"):
            said = await self._judged(one, "on_message", passed.seen, (Deny, NewText))
            if isinstance(said, Deny):
                return said
            if isinstance(said, NewText):
                passed = _with(passed, said.provenance, text=masked(said.text))
        return passed

    async def before_tool(self, seen: CallSeen, *, may_change: bool = True) -> Passed | Deny:
        """The same for a call; one that goes on after a crash was changed before it was kept."""
        passed = Passed(seen)
        for one in self._who_mind("before_tool"):
            shown = replace(passed.seen, arguments=deepcopy(passed.seen.arguments))
            said = await self._judged(one, "before_tool", shown, (Deny, NewArguments))
            if isinstance(said, Deny):
                return said
            if isinstance(said, NewArguments) and may_change:
                arguments = json.loads(json.dumps(said.arguments))  # as it is kept, and nobody else's
                passed = _with(passed, said.provenance, arguments=arguments)
        return passed

    async def after_tool(self, seen: ResultSeen) -> Passed:
        """Show a result to all; each may change its words."""
        passed = Passed(seen)
        for one in self._who_mind("after_tool"):
            try:
                said = await one.ask("after_tool", deepcopy(passed.seen), (NewResult,))
            except _FailedError:
                continue
            if isinstance(said, NewResult):
                passed = _with(passed, said.provenance, text=masked(said.text))
        return passed

    async def request(self, make: Callable[[], RequestSeen]) -> None:
        """Show a request, which is made for who minds it: each gets a copy of its own."""
        for one in self._who_mind("on_request"):
            await self._shown(one, "on_request", make())

    async def answer(self, make: Callable[[], AnswerSeen]) -> None:
        """Show an answer, which is made for who minds it."""
        for one in self._who_mind("on_answer"):
            await self._shown(one, "on_answer", make())

    async def turn_end(self, seen: TurnSeen) -> None:
        """Show the end of a turn."""
        for one in self._who_mind("on_turn_end"):
            await self._shown(one, "on_turn_end", deepcopy(seen))

    def minds(self, method: str) -> bool:
        """Whether any of them has something to say there."""
        return bool(self._who_mind(method))

    def _who_mind(self, method: str) -> tuple[Walled, ...]:
        if method not in self._minding:
            self._minding[method] = tuple(one for one in self._hooks if one.minds(method))
        return self._minding[method]

    async def _judged(self, one: Walled, method: str, seen: object, wanted: tuple[type, ...]) -> Any:
        try:
            said = await one.ask(method, seen, wanted)
        except _FailedError as failed:
            if not one.hook.guard:
                return None
            return Deny(f"Not allowed: {one.name} has to judge this, and cannot ({failed}).")
        return Deny(masked(said.reason).strip() or _NO_REASON) if isinstance(said, Deny) else said

    async def _shown(self, one: Walled, method: str, seen: object) -> None:
        try:
            await one.ask(method, seen)
        except _FailedError:
            return


_NO_REASON = "This is not allowed here."


def _with(passed: Passed, provenance: Provenance, **changed: object) -> Passed:
    return Passed(replace(passed.seen, **changed), least_trusted([passed.provenance, provenance]), changed=True)
