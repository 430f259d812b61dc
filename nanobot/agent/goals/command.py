"""`/goal`: set a goal, see its progress, resume or stop it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from nanobot.agent.command import TYPED, CommandCall, CommandEntry, is_from_owner
from nanobot.agent.commands.table import has_other_authors
from nanobot.agent.goals import texts
from nanobot.agent.goals.check import CheckKind, GoalCheck
from nanobot.agent.goals.goal import GoalLimits, GoalOrder
from nanobot.agent.goals.service import GoalService
from nanobot.agent.models import SessionModels
from nanobot.agent.requester import Requester
from nanobot.errors import NanobotError, StorageError

_Number = TypeVar("_Number", int, float)
_MAX_NUMBER = 1_000_000
_OPTION = re.compile(r"(?:--|[—–])(\w[\w-]*)(?:=|\s+|$)")
"""One option. Phones replace two hyphens by a dash."""
_VALUE = re.compile(r'["“„]([^"“”]*)["”]\s*|[\'‘]([^\'’]*)[\'’]\s*|(?!["“„\'‘])(\S*)\s*')
"""A word, or text in quotes, which may be those of a phone."""
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


@dataclass(frozen=True, slots=True)
class GoalRequest:
    """The parsed arguments of `/goal`."""

    text: str
    steps: int | None = None
    usd: float | None = None
    check: GoalCheck | None = None
    plan: bool = False
    review: bool = False


class GoalCommand:
    def __init__(self, goals: GoalService, models: SessionModels) -> None:
        self._goals = goals
        self._models = models

    @property
    def entry(self) -> CommandEntry:
        return CommandEntry(self._run, "work on something until it is done", "TEXT | resume | stop")

    async def _run(self, call: CommandCall) -> str:
        argument = call.argument.strip()
        try:
            if not argument or argument.lower() == "status":
                return await self._status(call)
            if call.message.origin not in TYPED:
                return "/goal must be typed by a person."
            if argument.lower() in ("stop", "cancel"):
                if stopped := await self._goals.stop_for(call.message):
                    return f"Stopped: the goal ({stopped})."
                note = await self._goals.other_process_note(call.session.key)
                return note or "There is no goal here that you can stop."
            if not is_from_owner(call.message) and await self._is_shared_chat(call):
                return "Other people have written in this chat, so only an owner may set a goal."
            first, _, rest = argument.partition(" ")
            if first.lower() in ("resume", "continue") and not (request := parse_request(rest)).text:
                return await self._resume(call, request)  # with a text it is a goal, as "continue the report" is
            return await self._begin(call, parse_request(argument))
        except StorageError:
            raise
        except NanobotError as error:
            return str(error)

    async def _status(self, call: CommandCall) -> str:
        goal = await self._goals.last(call.session.key)
        if goal is None:
            return f"There is no goal here. {_USAGE}"
        return f"{texts.status(goal, self._goals.now())}\n{self._goals.notes_of(goal)}".strip()

    async def _resume(self, call: CommandCall, request: GoalRequest) -> str:
        self._check_limits(request, call)
        goal = await self._goals.resume(call.session.key, request.steps, request.usd)
        return f"Resumed the goal: {texts.title(goal)} ({texts.format_usage(goal)})."

    async def _begin(self, call: CommandCall, request: GoalRequest) -> str:
        if not request.text:
            return _USAGE
        self._check_limits(request, call)
        if (await self._models.of_session(call.session)).provider_name == _OFFLINE:
            return _NO_MODEL
        message, usual = call.message, self._goals.default_limits
        requester = Requester(
            call.session.key,
            message.address,
            message.provenance,
            message.origin,
            message.sender_id,
            call.attended,
            call.scope,
        )
        review = request.review or self._goals.is_reviewed
        order = GoalOrder(request.text, requester, request.check, request.plan, review)
        limits = GoalLimits(request.steps or usual.steps, request.usd or usual.usd)
        return texts.started_reply(await self._goals.set(order, limits))

    async def _is_shared_chat(self, call: CommandCall) -> bool:
        """Whether other people have written in this chat, or set its last goal."""
        if has_other_authors(call.session, call.message.sender_id):
            return True
        goal = await self._goals.last(call.session.key)
        return goal is not None and not goal.order.requester.is_controlled_by(call.message)

    def _check_limits(self, request: GoalRequest, call: CommandCall) -> None:
        """Raise NanobotError if somebody other than the owner asks for more than the configured limits."""
        limits = self._goals.default_limits
        if (request.steps or 0) <= limits.steps and (request.usd or 0.0) <= limits.usd:
            return
        if not is_from_owner(call.message):
            raise NanobotError(f"Only an owner may give a goal more than {limits.steps} steps and ${limits.usd:g}.")


def parse_request(text: str) -> GoalRequest:
    """Parse the options in front of the text. Raises NanobotError for invalid ones."""
    rest, options = text.strip(), dict[str, Any]()
    while (option := _OPTION.match(rest)) is not None:
        name, rest = option[1], rest[option.end() :].strip()
        if name in ("plan", "review"):
            options[name] = True
            continue
        match = _VALUE.match(rest)
        if match is None:
            raise NanobotError(f"The quote after --{name} is not closed. {_USAGE}")
        value, rest = next((group for group in match.groups() if group is not None), ""), rest[match.end() :]
        match name:
            case "check":
                options[name] = _parse_check(value)
            case "steps":
                options[name] = _parse_number(name, value, int)
            case "usd":
                options[name] = _parse_number(name, value.lstrip("$"), float)
            case _:
                raise NanobotError(f"There is no option --{name}. {_USAGE}")
    return GoalRequest(rest, **options)


def _parse_check(value: str) -> GoalCheck:
    if not value:
        raise NanobotError('--check needs a check, for example --check "pytest -q" or --check file:report.md.')
    try:
        return GoalCheck.of(value if value.partition(":")[0] in _CHECKS else f"command: {value}")
    except ValueError as error:
        raise NanobotError(str(error)) from error


def _parse_number(name: str, value: str, kind: Callable[[str], _Number]) -> _Number:
    try:
        number = kind(value)
    except ValueError:
        number = kind("0")
    if not 0 < number < _MAX_NUMBER:
        raise NanobotError(f"--{name} needs a number above zero, not {value!r}.")
    return number
