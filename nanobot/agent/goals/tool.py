"""The `goal` tool and the `/goal` command: how the model and a person set, steer and end a goal.

The model alone cannot claim success. It names a check, and this tool runs it with the tool that would be used for it
anyway: what that tool would need approval for or refuse, the check does too.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nanobot.agent.command import TYPED, CommandCall, CommandEntry, is_from_owner
from nanobot.agent.commands.table import has_other_authors
from nanobot.agent.goals.goal import CheckKind, Goal, GoalCheck, GoalLimits, GoalOrder, check_length, format_status
from nanobot.agent.models import SessionModels
from nanobot.agent.tools.base import (
    Access,
    AccessKind,
    Effect,
    Tool,
    ToolContext,
    ToolResult,
    delegate_call,
    string,
    takes,
)
from nanobot.agent.work import Requester, WorkState
from nanobot.errors import NanobotError, StorageError
from nanobot.messages.types import Origin, least_trusted, text_of
from nanobot.usage.types import format_dollars
from nanobot.utils.text import clip_line

if TYPE_CHECKING:
    from nanobot.agent.goals.driver import GoalDriver
    from nanobot.agent.goals.service import GoalService

_MAX_SHOWN = 2_000
_MAX_NOTE_CHARS = 4_000
"""Length of a note field or question: they are added to every message."""
_CHECK_TOOLS = {
    CheckKind.COMMAND: ("exec", "command"),
    CheckKind.FILE: ("read_file", "path"),
    CheckKind.PAGE: ("web_fetch", "url"),
}
"""The tool that runs a check, and the argument for the target."""
_BACKGROUND_ORIGINS = (Origin.CRON, Origin.HEARTBEAT, Origin.SUBAGENT, Origin.GOAL)
"""Turns that nobody just asked for: they start nothing that goes on by itself."""


class GoalTool(Tool):
    name = "goal"
    description = (
        "Work on a goal over many turns by yourself until a check proves it. Use begin when the user asks you to "
        "continue until something is true; note records progress, finish claims success, ask asks, drop ends it."
    )
    parameters = takes(
        "action",
        action=string("What to do with the goal", enum=["begin", "note", "finish", "ask", "drop"]),
        text=string("begin: what to reach; ask: the question; drop: the reason"),
        done=string("note: what is finished"),
        doing=string("note: what is in progress"),
        next=string("note: what comes next"),
        check=string("begin: how success is checked: `command: ...` (exit code 0), `file: PATH` or `page: URL`"),
        expect=string("begin: text that the check must find"),
    )
    effect = Effect.ONCE
    acts = False  # a report leaves nothing for a person to look for
    alone = True  # a check must see the effects of the calls beside it

    def __init__(self, goals: "GoalService", find_tool: Callable[[str], Tool | None]) -> None:
        """`find_tool` returns the tools that run the checks."""
        self._goals = goals
        self._find_tool = find_tool

    async def required_access(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Access]:
        """Declare a goal as a job, which acts later, and a check as its tool does."""
        if arguments["action"] == "begin":
            return (Access(AccessKind.JOB, f"goal: {arguments.get('text', '')}"),)
        goal = self._goals.goal_of(ctx.session_key)
        if arguments["action"] != "finish" or goal is None or goal.state.is_over:
            return ()
        try:
            checks = _required_checks(goal, arguments.get("check", ""), arguments.get("expect", ""))
        except NanobotError:
            return ()  # execute reports it
        calls = [call for check in checks if (call := self._tool_call(check)) is not None]
        return [access for tool, values in calls for access in await tool.required_access(values, ctx)]

    async def execute(
        self,
        action: str,
        text: str = "",
        done: str = "",
        doing: str = "",
        check: str = "",
        expect: str = "",
        *,
        ctx: ToolContext,
        **more: str,
    ) -> ToolResult:
        """Run the action. Cancelling ends a running check; the goal goes on."""
        try:
            if action == "begin":
                return await self._begin(text, check, expect, ctx)
            driver = await self._goals.open_goal(ctx.session_key)
            if action == "finish":
                return await self._finish(driver, check, expect, ctx)
            goal, progress, text = driver.goal, driver.goal.progress, text.strip()
            if action == "note":
                changes = {"done": done, "doing": doing, "following": more.get("next", "")}
                for name, value in changes.items():
                    check_length(_MAX_NOTE_CHARS, value, name)
                if not any(changes.values()):
                    raise NanobotError("The note is empty. Pass done, doing or next.")
                progress.note = replace(progress.note, **{name: value for name, value in changes.items() if value})
                reply = "Noted."
            elif not text:
                raise NanobotError(f"Pass the {'question' if action == 'ask' else 'reason'} in text.")
            elif action == "ask":
                check_length(_MAX_NOTE_CHARS, text, "text")
                goal.state, goal.why = WorkState.ASKING, text
                reply = "The question is sent when this turn ends, and the answer continues the goal. End the turn now."
            else:
                goal.state, goal.why = WorkState.DROPPED, clip_line(" ".join(text.split()), 400).rstrip(".")
                reply = "The goal is given up. Say in your answer what was done and what is missing."
            if action != "drop":
                progress.noted = least_trusted([progress.noted, ctx.entered])
            driver.used_goal_tool = True
            await driver.save()
        except NanobotError as error:
            return ToolResult.failed(str(error))
        return ToolResult(reply)

    async def _begin(self, text: str, check: str, expect: str, ctx: ToolContext) -> ToolResult:
        if not text.strip():
            return ToolResult.failed("There is no goal. Say in `text` what is to be reached.")
        if ctx.origin in _BACKGROUND_ORIGINS or ctx.quiet or ctx.is_subagent:
            return ToolResult.failed(
                "Only a turn that a person asked for can start a goal. Do what you can in this turn."
            )
        demanded = GoalCheck.of(check, expect) if check.strip() else None
        order = GoalOrder(text.strip(), Requester.of(ctx), demanded, review=self._goals.is_reviewed)
        goal = await self._goals.set(order)
        return ToolResult(
            f"The goal is set. Its own turns start when this one ends ({goal.usage_text}). Tell the person so in a "
            "sentence, and end this turn now."
        )

    async def _finish(self, driver: "GoalDriver", check: str, expect: str, ctx: ToolContext) -> ToolResult:
        checks = _required_checks(driver.goal, check, expect)
        if not checks:
            return ToolResult.failed(
                "A claim needs a check. Name one: `command: ...` that succeeds, `file: PATH` or `page: URL` that "
                "exists, with expect if it must show a text."
            )
        for required in checks:
            result = await self._run_check(required, ctx)
            if result.error:
                driver.failed_check = f"the check `{required}` did not hold"
                driver.goal.progress.claim = None  # the last claim counts
                return result
        driver = await self._goals.open_goal(ctx.session_key)  # it may have been stopped meanwhile
        driver.used_goal_tool = True
        await self._goals.claim(driver, checks[-1])
        review = " A reviewer reads it first." if driver.goal.order.review else ""
        reply = f"The check passed ({checks[-1]}). Give your final answer now: it is the report to the person.{review}"
        return replace(result, content=reply)

    async def _run_check(self, check: GoalCheck, ctx: ToolContext) -> ToolResult:
        """Run the check; the result is an error if it does not hold."""
        call = self._tool_call(check)
        if call is None:
            return ToolResult.failed(f"The check `{check}` needs a tool that is switched off here. Name another.")
        tool, arguments = call
        if problems := tool.validate_params(arguments):
            return ToolResult.failed(f"The check `{check}` cannot be made. {' '.join(problems)}")
        result = await delegate_call(tool, arguments, ctx)
        shown, is_picture = text_of(result.content), not isinstance(result.content, str)
        if result.error:
            why = "It failed"
        elif check.kind is CheckKind.FILE and not is_picture and not shown.strip():
            why = "The file is empty"
        elif check.expect not in shown:
            why = f'It does not show "{check.expect}"'
        else:
            return result
        tail = shown if len(shown) <= _MAX_SHOWN else f"...{shown[-_MAX_SHOWN:]}"
        text = f"Error: The goal is not reached: the check `{check}` does not hold. {why}:\n{tail}"
        return ToolResult(text, True, result.provenance or tool.provenance)

    def _tool_call(self, check: GoalCheck) -> tuple[Tool, dict[str, Any]] | None:
        name, key = _CHECK_TOOLS[check.kind]
        tool = self._find_tool(name)
        return (tool, {key: check.target}) if tool is not None else None


def _required_checks(goal: Goal, check: str, expect: str) -> list[GoalCheck]:
    """Return the check that the goal's author demands and the one that is claimed. Raises NanobotError."""
    claimed = GoalCheck.of(check, expect) if check.strip() else None
    return [required for required in dict.fromkeys((goal.order.check, claimed)) if required is not None]


# --- the command

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


def goal_command(goals: "GoalService", models: SessionModels) -> CommandEntry:
    async def run(call: CommandCall) -> str:
        argument, key = call.argument.strip(), call.session.key
        try:
            goal = await goals.last(key)
            if not argument or argument.lower() == "status":
                if goal is None:
                    return f"There is no goal here. {_USAGE}"
                return f"{format_status(goal, goals.now())}\n{goals.notes_of(goal)}".strip()
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
                return f"Resumed the goal: {goal.title} ({goal.usage_text})."
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
        goal = await goals.set(order, limits)
        proof = f" It is done when this check passes: {order.check}." if order.check is not None else ""
        return (
            f"I will work on this until it is done (at most {goal.limits.steps} steps and "
            f"{format_dollars(goal.limits.usd)}) and tell you then.{proof} /goal shows the progress, /stop ends it."
        )

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
                if not value:
                    raise NanobotError(
                        '--check needs a check, for example --check "pytest -q" or --check file:report.md.'
                    )
                is_typed = value.partition(":")[0] in [*CheckKind]
                options[name] = GoalCheck.of(value if is_typed else f"command: {value}")
            case "steps":
                options[name] = _parse_number(name, value, int)
            case "usd":
                options[name] = _parse_number(name, value.lstrip("$"), float)
            case _:
                raise NanobotError(f"There is no option --{name}. {_USAGE}")
    return GoalRequest(rest, **options)


def _parse_number(name: str, value: str, kind: Callable[[str], float]) -> float:
    try:
        number = kind(value)
    except ValueError:
        number = 0
    if not 0 < number < _MAX_NUMBER:
        raise NanobotError(f"--{name} needs a number above zero, not {value!r}.")
    return number
