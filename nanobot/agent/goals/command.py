"""`/goal`: set a goal, see its progress, resume or stop it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nanobot.agent.command import TYPED, CommandCall, CommandEntry, is_from_owner
from nanobot.agent.commands.table import has_other_authors
from nanobot.agent.goals import texts
from nanobot.agent.goals.check import CheckKind, GoalCheck
from nanobot.agent.goals.goal import GoalLimits, GoalOrder
from nanobot.agent.goals.service import GoalService
from nanobot.agent.models import SessionModels
from nanobot.agent.work import Requester
from nanobot.errors import NanobotError, StorageError

_MAX_NUMBER = 1_000_000
_OPTION = re.compile(r"(?:--|[—–])(\w[\w-]*)(?:=|\s+|$)")
"""One option. Phones replace two hyphens by a dash."""
_VALUE = re.compile(r'["“„]([^"“”]*)["”]\s*|[\'‘]([^\'’]*)[\'’]\s*|(?!["“„\'‘])(\S*)\s*')
"""A word, or text in quotes, which may be those of a phone."""
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


def goal_command(goals: GoalService, models: SessionModels) -> CommandEntry:
    async def run(call: CommandCall) -> str:
        argument, key = call.argument.strip(), call.session.key
        try:
            goal = await goals.last(key)
            if not argument or argument.lower() == "status":
                if goal is None:
                    return f"There is no goal here. {_USAGE}"
                return f"{texts.status(goal, goals.now())}\n{goals.notes_of(goal)}".strip()
            if call.message.origin not in TYPED:
                return "/goal must be typed by a person."
            if argument.lower() in ("stop", "cancel"):
                if stopped := await goals.stop_for(call.message):
                    return f"Stopped: the goal ({stopped})."
                return await goals.other_process_note(key) or "There is no goal here that you can stop."
            is_owner = is_from_owner(call.message)
            has_others = has_other_authors(call.session, call.message.sender_id)
            if not is_owner and (has_others or (goal and not goal.order.requester.is_controlled_by(call.message))):
                return "Other people have written in this chat, so only an owner may set a goal."
            first, _, rest = argument.partition(" ")
            request = parse_request(rest if (is_resumed := first.lower() in ("resume", "continue")) else argument)
            if is_resumed and request.text:  # a goal such as "continue the report"
                is_resumed, request = False, parse_request(argument)
            usual = goals.default_limits
            limits = GoalLimits(request.steps or usual.steps, request.usd or usual.usd)
            if not is_owner and (limits.steps > usual.steps or limits.usd > usual.usd):
                return f"Only an owner may give a goal more than {usual.steps} steps and ${usual.usd:g}."
            if is_resumed:
                goal = await goals.resume(key, request.steps, request.usd)
                return f"Resumed the goal: {texts.title(goal)} ({texts.format_usage(goal)})."
            return await begin(call, request, limits)
        except StorageError:
            raise
        except NanobotError as error:
            return str(error)

    async def begin(call: CommandCall, request: GoalRequest, limits: GoalLimits) -> str:
        message = call.message
        if not request.text:
            return _USAGE
        if (await models.of_session(call.session)).provider_name == "offline":
            return _NO_MODEL
        requester = Requester(
            call.session.key,
            message.address,
            message.provenance,
            message.origin,
            message.sender_id,
            call.attended,
            call.scope,
        )
        review = request.review or goals.is_reviewed
        order = GoalOrder(request.text, requester, request.check, request.plan, review)
        return texts.started_reply(await goals.set(order, limits))

    return CommandEntry(run, "work on something until it is done", "TEXT | resume | stop")


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
    return GoalCheck.of(value if value.partition(":")[0] in [*CheckKind] else f"command: {value}")


def _parse_number(name: str, value: str, kind: Callable[[str], float]) -> float:
    try:
        number = kind(value)
    except ValueError:
        number = 0
    if not 0 < number < _MAX_NUMBER:
        raise NanobotError(f"--{name} needs a number above zero, not {value!r}.")
    return number
