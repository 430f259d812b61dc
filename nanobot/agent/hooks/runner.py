"""Runs hooks in order, each with a timeout. No failure of a hook ends a turn.

A failed hook is logged once and ignored; a failed guard denies. A hook that times out three times in a row is disabled
until the next start, so that it does not delay every turn.
"""

import asyncio
import inspect
import json
import logging
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from nanobot.agent.hooks import (
    CallSeen,
    Deny,
    Hook,
    NewArguments,
    NewResult,
    NewText,
    ResultSeen,
    TurnFacts,
)
from nanobot.agent.tools.base import ToolContext, ToolResult
from nanobot.agent.tools.hooks import Verdict
from nanobot.messages.types import Provenance, ToolFailure, least_trusted, text_of
from nanobot.providers.base import ToolCallRequest
from nanobot.security.secrets import redact_all, redact_known
from nanobot.utils.aio import WorkerThread, contain_errors
from nanobot.utils.text import clip_line

log = logging.getLogger(__name__)

TIMEOUT_S = 5.0
MAX_TIMEOUTS = 3
"""Timeouts in a row after which a hook is disabled."""
_MAX_PROBLEMS = 8
"""Problems kept per hook: each error may have another text."""
_MAX_PROBLEM_CHARS = 300

_RESULT_TYPES: Mapping[str, tuple[type, ...]] = {
    Hook.on_message.__name__: (Deny, NewText),
    Hook.before_tool.__name__: (Deny, NewArguments),
    Hook.after_tool.__name__: (NewResult,),
}
"""What the methods that change or deny something may return."""

HookVerdicts = Mapping[str, Verdict]
"""Verdicts of hooks by call id, before policies and approvals."""


class _HookFailedError(Exception):
    """The hook returned nothing usable."""


@dataclass(slots=True)
class GuardedHook:
    """A hook whose failures and timeouts are contained."""

    name: str
    """Shown to people."""
    call: Callable[[str, Any], Any]
    """Calls a method with what is seen."""
    methods: frozenset[str]
    """The methods that it handles."""
    guard: bool
    """Whether its failure denies."""
    timeout_s: float = TIMEOUT_S
    worker: WorkerThread | None = None
    """Where it runs; None: in the caller's event loop."""
    problems: list[str] = field(default_factory=list)
    timeouts: int = 0

    @classmethod
    def of(cls, hook: Hook, name: str, timeout_s: float, worker: WorkerThread | None = None) -> "GuardedHook":
        """Guard the methods that the hook overrides."""
        methods = {method for method, ours in vars(Hook).items() if callable(ours)}
        own = frozenset(method for method in methods if getattr(type(hook), method) is not getattr(Hook, method))
        return cls(name, lambda method, seen: getattr(hook, method)(seen), own, hook.guard, timeout_s, worker)

    async def ask(self, method: str, seen: object, result_types: tuple[type, ...] = ()) -> Any:
        """Call a method and return its result: one of these types, or None. Raises _HookFailedError; cancelling is
        safe.
        """
        if self.timeouts >= MAX_TIMEOUTS:
            raise _HookFailedError(f"timed out {MAX_TIMEOUTS} times and is disabled until the next start")
        try:
            result = await self._call(method, seen)
        except TimeoutError:
            self.timeouts += 1
            raise self._record_failure(f"{method} took more than {self.timeout_s:g} s") from None
        except Exception as error:  # third-party code may raise anything
            log.debug("%s: %s failed", self.name, method, exc_info=True)
            raise self._record_failure(f"{method} raised {_describe_error(error)}") from None
        self.timeouts = 0
        if result is not None and not (isinstance(result, result_types) and _is_valid(result)):
            raise self._record_failure(f"{method} returned a {type(result).__name__} that does not fit")
        return result

    async def _call(self, method: str, seen: object) -> Any:
        async def call() -> Any:
            try:
                result = self.call(method, seen)
                while inspect.isawaitable(result):  # a plain function is accepted too
                    result = await result
            except TimeoutError as error:  # its own, not ours
                raise RuntimeError(_describe_error(error)) from error
            return result

        if self.worker is not None:
            return await self.worker.run(call, self.timeout_s)
        async with asyncio.timeout(self.timeout_s) as timeout:
            result = await contain_errors(call())
        if timeout.expired():  # it caught the cancellation
            raise TimeoutError
        return result

    def _record_failure(self, problem: str) -> _HookFailedError:
        problem = clip_line(" ".join(redact_all(problem).split()), _MAX_PROBLEM_CHARS)
        if problem not in self.problems and len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(problem)
            log.warning("The hook %s failed and is ignored: %s.", self.name, problem)
        return _HookFailedError(problem)


def _is_valid(result: Any) -> bool:
    """Whether the fields have the promised types, and are JSON that a file takes: else the session would break."""
    match result:
        case Deny(reason=str()) | NewText(text=str()) | NewResult(text=str()):
            value = result.reason if isinstance(result, Deny) else result.text
        case NewArguments(arguments=dict(value)) if all(isinstance(name, str) for name in value):
            pass
        case _:
            return False
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return isinstance(getattr(result, "provenance", Provenance.OWNER), Provenance)


def _describe_error(error: BaseException) -> str:
    """Format the type and message of an error, even if its `__str__` fails."""
    return traceback.format_exception_only(error)[-1].strip()


@dataclass(frozen=True, slots=True)
class HookResult:
    """A message, call or result after the hooks changed it, with the least trusted provenance they brought in."""

    seen: Any
    provenance: Provenance = Provenance.OWNER
    changed: bool = False


class HookRunner:
    """The hooks of a bot or of one run, always called in the same order."""

    def __init__(self, hooks: Iterable[GuardedHook] = (), timeout_s: float = TIMEOUT_S) -> None:
        """`timeout_s` applies to hooks that a program passes in."""
        self._hooks = tuple(hooks)
        self._timeout_s = timeout_s

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def with_hooks(self, hooks: Sequence[Hook]) -> "HookRunner":
        """Return a runner with these hooks appended, for one run; they run in the caller's event loop.

        Raises TypeError for an object that is not a hook.
        """
        for hook in hooks:
            if not isinstance(hook, Hook):
                raise TypeError(f"{hook!r} is not a hook: pass an object of a class that derives from {Hook.__name__}.")
        more = (GuardedHook.of(hook, type(hook).__name__, self._timeout_s) for hook in hooks)
        return HookRunner((*self._hooks, *more), self._timeout_s) if hooks else self

    def problems(self) -> list[str]:
        """Return the problems of all hooks, one line each."""
        return [f"{hook.name}: {problem}" for hook in self._hooks for problem in hook.problems]

    def handles(self, method: str) -> bool:
        """Whether any hook handles this method."""
        return any(method in hook.methods for hook in self._hooks)

    async def notify(self, method: str, make: Callable[[], object]) -> None:
        """Call a method that only observes. `make` runs once per hook, so that each gets a copy."""
        for hook in self._hooks:
            if method in hook.methods:
                with suppress(_HookFailedError):
                    await hook.ask(method, make())

    async def filter(self, method: str, seen: Any, *, may_change: bool = True) -> HookResult | Deny:
        """Call a method that may change or deny what it sees. The first denial ends it; each hook sees the changes of
        those before it.
        """
        result_types = _RESULT_TYPES[method]
        provenance, changed = Provenance.OWNER, False
        for hook in self._hooks:
            if method not in hook.methods:
                continue
            try:
                result = await hook.ask(method, deepcopy(seen), result_types)
            except _HookFailedError as failed:
                if hook.guard and Deny in result_types:
                    return Deny(f"Not allowed: the hook {hook.name} has to check this and failed ({failed}).")
                continue
            if isinstance(result, Deny):
                return Deny(redact_known(result.reason).strip() or "This is not allowed here.")
            if result is None or not may_change:
                continue
            if isinstance(result, NewArguments):
                seen = replace(seen, arguments=json.loads(json.dumps(result.arguments)))  # as it will be stored
            else:
                seen = replace(seen, text=redact_known(result.text))
            provenance, changed = least_trusted([provenance, result.provenance]), True
        return HookResult(seen, provenance, changed)


# -- tool calls ---------------------------------------------------------------------------------------------------


def turn_facts(context: ToolContext) -> TurnFacts:
    """The turn as hooks see it."""
    to = context.address
    return TurnFacts(
        context.turn_id, context.session_key, to.channel, to.chat_id, context.sender_id, context.origin, context.asker
    )


def call_seen(call: ToolCallRequest, context: ToolContext) -> CallSeen:
    """A call as hooks see it, with a copy of its arguments."""
    return CallSeen(turn_facts(context), call.id, call.name, deepcopy(call.arguments))


async def filter_calls(
    calls: Sequence[ToolCallRequest], hook_runner: HookRunner, context: ToolContext, *, may_change: bool = True
) -> tuple[list[ToolCallRequest], HookVerdicts]:
    """Run the hooks on each call, in order. Return the calls as they changed them, and their verdicts.

    Calls that could not be parsed are not shown to hooks. A call resumed after a crash was already changed, so then
    `may_change` is False.
    """
    if not hook_runner.handles("before_tool"):
        return [*calls], {}
    remaining: list[ToolCallRequest] = []
    verdicts: dict[str, Verdict] = {}
    for call in calls:
        if call.problem is None:
            outcome = await hook_runner.filter("before_tool", call_seen(call, context), may_change=may_change)
            if isinstance(outcome, Deny):
                verdicts[call.id] = Verdict(refusal=f"{call.name} was not run: {outcome.reason}")
            elif outcome.changed:
                verdicts[call.id] = Verdict(entered=outcome.provenance, original_arguments=call.arguments)
                call = replace(call, arguments=outcome.seen.arguments, arguments_text=None)  # noqa: PLW2901 as it runs
        remaining.append(call)
    return remaining, verdicts


async def filter_result(
    call: ToolCallRequest, result: ToolResult, hook_runner: HookRunner, context: ToolContext, seconds: float
) -> ToolResult:
    """Run the hooks on a result and return it as they changed it. Its provenance never rises."""
    if not hook_runner.handles("after_tool") or (result.error and result.failure is ToolFailure.NOT_RUN):
        return result
    own = result.provenance or Provenance.TOOL
    seen = ResultSeen(call_seen(call, context), text_of(result.content), not result.error, own, seconds)
    passed = await hook_runner.filter("after_tool", seen)
    if isinstance(passed, Deny) or not passed.changed:
        return result
    return replace(result, content=passed.seen.text, provenance=least_trusted([own, passed.provenance]), display=None)
