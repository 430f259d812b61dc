"""Runs hooks in order, each with a timeout. No failure of a hook ends a turn.

A failed hook is reported once and ignored; a failed guard denies. A hook that keeps timing out is disabled until the
next start, so that it does not delay every turn.
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

from nanobot.agent.hooks.api import (
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
from nanobot.security.redaction import redact_all, redact_known
from nanobot.utils.text import clip_line

log = logging.getLogger(__name__)

T = TypeVar("T")
RunOn = Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]
"""Runs a hook's coroutine, for instance on the loop of a plugin, and raises what it raises. Cancelling may take a
while.
"""

TIMEOUT_S = 5.0
MAX_TIMEOUTS = 3
"""Timeouts in a row after which a hook is disabled."""
_MAX_PROBLEMS = 8
"""Problems kept per hook: each error may have another text."""
_MAX_PROBLEM_CHARS = 300
_NO_REASON = "This is not allowed here."

_abandoned: set["asyncio.Task[Any]"] = set()
"""Hooks that timed out; referenced so that they are not collected while they still run."""


async def _run_here(work: Coroutine[Any, Any, T]) -> T:
    return await work


def _ignore_problem(name: str, problem: str) -> None:
    """For hooks passed in by a program: the log is enough."""


@dataclass(slots=True)
class GuardedHook:
    """A hook whose failures and timeouts are contained. `name` is shown to people."""

    hook: Hook
    name: str
    timeout_s: float = TIMEOUT_S
    run_on: RunOn = _run_here
    on_problem: Callable[[str, str], None] = _ignore_problem
    """Called once per problem, with the hook's name and the problem."""
    problems: list[str] = field(default_factory=list)
    methods: frozenset[str] | None = None
    """The methods to call; None means those the hook overrides."""
    succeeded: set[str] = field(default_factory=set)
    """The methods that returned successfully since the start."""
    _timeouts: int = 0

    def handles(self, method: str) -> bool:
        """Whether the hook implements this method."""
        if self.methods is not None:
            return method in self.methods
        return getattr(type(self.hook), method) is not getattr(Hook, method)

    async def ask(self, method: str, seen: object, result_types: tuple[type, ...] = ()) -> Any:
        """Call a method and return its result: one of these types, or None. Raises _HookFailedError; cancelling is
        safe.
        """
        if self._timeouts >= MAX_TIMEOUTS:
            raise _HookFailedError(f"timed out {MAX_TIMEOUTS} times and is disabled until the next start")
        try:
            result = await self._call_with_timeout(getattr(self.hook, method), seen)
        except TimeoutError:
            self._timeouts += 1
            raise self._record_failure(f"{method} took more than {self.timeout_s:g} s") from None
        except Exception as error:  # third-party code may raise anything
            log.debug("%s: %s failed", self.name, method, exc_info=True)
            raise self._record_failure(f"{method} raised {_describe_error(error)}") from None
        self._timeouts = 0
        if result is not None and not (isinstance(result, result_types) and _is_valid(result)):
            raise self._record_failure(f"{method} returned a {type(result).__name__} that does not fit")
        self.succeeded.add(method)
        return result

    async def _call_with_timeout(self, method: Callable[[Any], Any], seen: object) -> Any:
        async def call() -> Any:
            try:
                result: Any = method(seen)
                while inspect.isawaitable(result):  # a plain function is accepted too
                    result = await result
            except SystemExit as error:  # would end the event loop
                raise RuntimeError(f"it called sys.exit({error.code})") from error
            return result

        task = asyncio.ensure_future(self.run_on(call()))
        try:
            await asyncio.wait((task,), timeout=self.timeout_s)
        finally:
            is_done = task.done()
            if not is_done:
                task.cancel()
                _abandoned.add(task)
                task.add_done_callback(_discard_abandoned)
        if not is_done:
            raise TimeoutError
        if task.cancelled():
            raise RuntimeError("it cancelled itself")
        error = task.exception()
        if error is not None and not isinstance(error, Exception):
            raise RuntimeError(f"it raised {type(error).__name__}: {error}") from error
        return task.result()

    def _record_failure(self, problem: str) -> "_HookFailedError":
        problem = clip_line(" ".join(redact_all(problem).split()), _MAX_PROBLEM_CHARS)
        if problem not in self.problems and len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(problem)
            log.warning("The hook %s failed and is ignored: %s.", self.name, problem)
            self.on_problem(self.name, problem)
        return _HookFailedError(problem)


class _HookFailedError(Exception):
    """The hook returned nothing usable."""


def _is_valid(result: object) -> bool:
    """Whether the fields have the promised types."""
    if not isinstance(getattr(result, "provenance", Provenance.OWNER), Provenance):
        return False
    match result:
        case Deny(reason=str(text)) | NewText(text=str(text)) | NewResult(text=str(text)):
            return _is_storable(text)
        case NewArguments(arguments=dict(arguments)):
            return all(isinstance(name, str) for name in arguments) and _is_storable(arguments)
        case _:
            return False


def _is_storable(value: object) -> bool:
    """Whether the value is JSON that a file takes; anything else would break the session."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _describe_error(error: BaseException) -> str:
    """Format the type and message of an error, even if its `__str__` fails."""
    return traceback.format_exception_only(error)[-1].strip()


def _discard_abandoned(task: "asyncio.Task[Any]") -> None:
    _abandoned.discard(task)
    if not task.cancelled():
        task.exception()


@dataclass(frozen=True, slots=True)
class HookResult:
    """A message, arguments or a result after the hooks changed it, with its provenance."""

    seen: Any
    provenance: Provenance = Provenance.OWNER
    changed: bool = False


class HookRunner:
    """The hooks of a bot or of one run, always called in the same order."""

    def __init__(self, hooks: Iterable[GuardedHook] = (), timeout_s: float = TIMEOUT_S) -> None:
        """`timeout_s` applies to hooks that a program passes in."""
        self._hooks = tuple(hooks)
        self._timeout_s = timeout_s
        self._hooks_by_method: dict[str, tuple[GuardedHook, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def with_hooks(self, hooks: Sequence[Hook]) -> "HookRunner":
        """Return a runner with these hooks appended, for one run; they run in the caller's event loop.

        Raises TypeError for an object that is not a hook.
        """
        for hook in hooks:
            if not isinstance(hook, Hook):
                raise TypeError(f"{hook!r} is not a hook: pass an object of a class that derives from {Hook.__name__}.")
        more = (GuardedHook(hook, type(hook).__name__, self._timeout_s) for hook in hooks)
        return HookRunner((*self._hooks, *more), self._timeout_s) if hooks else self

    def problems(self) -> list[str]:
        """Return the problems of all hooks, one line each."""
        return [f"{hook.name}: {problem}" for hook in self._hooks for problem in hook.problems]

    async def message(self, seen: MessageSeen) -> HookResult | Deny:
        """Call `on_message`. The first denial ends it; each hook sees the changes of those before it."""
        outcome = HookResult(seen)
        for hook in self._hooks_for("on_message"):
            result = await self._ask_guarded(hook, "on_message", outcome.seen, (Deny, NewText))
            if isinstance(result, Deny):
                return result
            if isinstance(result, NewText):
                outcome = _replace_seen(outcome, result.provenance, text=redact_known(result.text))
        return outcome

    async def before_tool(self, seen: CallSeen, *, may_change: bool = True) -> HookResult | Deny:
        """Call `before_tool`, as `message` does. A call resumed after a crash was already changed, so then `may_change`
        is False.
        """
        outcome = HookResult(seen)
        for hook in self._hooks_for("before_tool"):
            shown = replace(outcome.seen, arguments=deepcopy(outcome.seen.arguments))
            result = await self._ask_guarded(hook, "before_tool", shown, (Deny, NewArguments))
            if isinstance(result, Deny):
                return result
            if isinstance(result, NewArguments) and may_change:
                arguments = json.loads(json.dumps(result.arguments))  # a copy, as it will be stored
                outcome = _replace_seen(outcome, result.provenance, arguments=arguments)
        return outcome

    async def after_tool(self, seen: ResultSeen) -> HookResult:
        """Call `after_tool`; each hook may change the text."""
        outcome = HookResult(seen)
        for hook in self._hooks_for("after_tool"):
            try:
                result = await hook.ask("after_tool", deepcopy(outcome.seen), (NewResult,))
            except _HookFailedError:
                continue
            if isinstance(result, NewResult):
                outcome = _replace_seen(outcome, result.provenance, text=redact_known(result.text))
        return outcome

    async def request(self, make: Callable[[], RequestSeen]) -> None:
        """Call `on_request`. `make` runs once per hook, so that each gets a copy."""
        for hook in self._hooks_for("on_request"):
            await self._notify(hook, "on_request", make())

    async def answer(self, make: Callable[[], AnswerSeen]) -> None:
        """Call `on_answer`; `make` runs only if a hook handles it."""
        for hook in self._hooks_for("on_answer"):
            await self._notify(hook, "on_answer", make())

    async def turn_end(self, seen: TurnSeen) -> None:
        for hook in self._hooks_for("on_turn_end"):
            await self._notify(hook, "on_turn_end", deepcopy(seen))

    def handles(self, method: str) -> bool:
        """Whether any hook handles this method."""
        return bool(self._hooks_for(method))

    def _hooks_for(self, method: str) -> tuple[GuardedHook, ...]:
        if method not in self._hooks_by_method:
            self._hooks_by_method[method] = tuple(hook for hook in self._hooks if hook.handles(method))
        return self._hooks_by_method[method]

    async def _ask_guarded(
        self, guarded: GuardedHook, method: str, seen: object, result_types: tuple[type, ...]
    ) -> Any:
        try:
            result = await guarded.ask(method, seen, result_types)
        except _HookFailedError as failed:
            if not guarded.hook.guard:
                return None
            return Deny(f"Not allowed: the hook {guarded.name} has to check this and failed ({failed}).")
        return Deny(redact_known(result.reason).strip() or _NO_REASON) if isinstance(result, Deny) else result

    async def _notify(self, hook: GuardedHook, method: str, seen: object) -> None:
        try:
            await hook.ask(method, seen)
        except _HookFailedError:
            return


def _replace_seen(outcome: HookResult, provenance: Provenance, **changed: object) -> HookResult:
    return HookResult(replace(outcome.seen, **changed), least_trusted([outcome.provenance, provenance]), changed=True)
