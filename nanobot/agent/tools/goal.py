"""The `goal` tool: work that goes on over many turns by itself, until something is reached and proved.

It knows nothing of how a goal's turns come about: what it says goes through a port. That a goal is reached is not the
model's to say alone. It names a check, and the check is made here, by the tools that would be used for it anyway: what
they would be asked about or refused, this is too.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol

from nanobot.agent.tools.base import Effect, Tool, ToolContext, ToolResult, passed_on
from nanobot.agent.tools.reach import Reach, ReachKind
from nanobot.agent.tools.schema import string, takes
from nanobot.errors import NanobotError
from nanobot.messages.types import Origin, ToolFailure

_PROVES_NOTHING = frozenset({"true", ":", "echo", "printf", "pwd", "date"})
"""Commands that go well whatever was done."""
_CARRIES_ON = frozenset({"tail", "head", "cat", "tee", "less", "more", "wc", "sort", "uniq", "nl", "tr", "cut"})
"""Programs that end well whatever came into them: behind a pipe, without a text to look for, they prove nothing."""
_DOES_NOTHING = frozenset({"exit", "exit 0", "ls", "ls .", "cd", "cd .", "sleep 0", "test 1", "[ 1 ]", "sh -c true"})
_ENDS = re.compile(r"[;\n]")
"""What stands between commands of which the last one alone says how it ended."""
_MOST_TARGET = 4_000
_MOST_EXPECTED = 2_000
_QUOTATION = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"")
_REDIRECTION = re.compile(r"\d*[<>]{1,2}&?\s*\S+")
_SHOWN_CHARS = 2_000
_NO_GOALS = (Origin.CRON, Origin.HEARTBEAT, Origin.SUBAGENT, Origin.GOAL)
"""Turns that nobody asked for just now: they begin nothing that goes on by itself."""


class CheckKind(StrEnum):
    """What a check looks at."""

    COMMAND = "command"
    """It ends with exit code 0."""
    FILE = "file"
    """It is there, and not empty."""
    PAGE = "page"
    """It answers with a status below 400."""


_KINDS = frozenset(kind.value for kind in CheckKind)


@dataclass(frozen=True, slots=True)
class Check:
    """Something that shows whether a goal is reached, whoever looks."""

    kind: CheckKind
    target: str
    expect: str = ""
    """A text that it must show, too."""

    def __str__(self) -> str:
        shows = f' showing "{self.expect}"' if self.expect else ""
        return f"{self.kind}: {self.target}{shows}"

    @classmethod
    def of(cls, text: str, expect: str = "") -> "Check":
        """What is written as `command: pytest -q`. Raises ValueError, which says what would be right."""
        kind, colon, target = text.partition(":")
        kind, target = kind.strip().lower(), target.strip()
        if not colon or kind not in _KINDS or not target:
            raise ValueError(
                f"A check is written as `command: ...`, `file: PATH` or `page: URL`; {text[:80]!r} is none of these."
            )
        if len(target) > _MOST_TARGET or len(expect) > _MOST_EXPECTED:
            raise ValueError(
                f"A check has {_MOST_TARGET:,} characters at most, and {_MOST_EXPECTED:,} of a text to show. Put more "
                "into a script, and name that."
            )
        if kind == CheckKind.COMMAND and _proves_nothing(target, expect.strip()):
            raise ValueError(
                f"`{target}` goes well whatever was done, so it proves nothing. Name a command that fails as long as "
                "the goal is not reached."
            )
        return cls(CheckKind(kind), target, expect.strip())


def _proves_nothing(command: str, expect: str) -> bool:
    """Whether it ends well in any case, as far as that can be seen."""
    bare = _QUOTATION.sub(lambda found: "$" if "$" in found[0] or "`" in found[0] else "quoted", command).strip()
    last = "".join([part for part in _ENDS.split(bare) if part.strip(" &")][-1:])
    in_background = bare.endswith("&") and not bare.endswith("&&")
    return in_background or any(
        all(_is_idle(part, expect) for part in alternative.split("&&")) for alternative in last.split("||")
    )


def _is_idle(command: str, expect: str) -> bool:
    *before, last = [part.strip().strip("()").strip() for part in command.split("|")]
    words = _REDIRECTION.sub("", last).split()
    if not words or "$" in last or "`" in last:
        return not last
    program = words[0].rpartition("/")[2]
    if before and not expect and program in _CARRIES_ON:
        return True
    return program in _PROVES_NOTHING or " ".join(words) in _DOES_NOTHING


class Goals(Protocol):
    """Where goals are kept. A refusal is a NanobotError that says what would be right."""

    async def begin(self, text: str, check: Check | None, ctx: ToolContext) -> str:
        """Take a goal on for the session of the turn; what the agent is told."""
        ...

    async def note(self, ctx: ToolContext, *, done: str = "", doing: str = "", following: str = "") -> str:
        """Write down how far it is; what is empty stays as it was."""
        ...

    def checks(self, ctx: ToolContext) -> Sequence[Check]:
        """What must hold whatever the claim names: who set the goal may have said it. Raises NanobotError."""
        ...

    def refuted(self, shown: str, ctx: ToolContext) -> None:
        """Its end was claimed, and a check did not hold, as is said here in a line."""
        ...

    async def claimed(self, check: Check, ctx: ToolContext) -> str:
        """Its end was claimed and every check held; what the agent is told."""
        ...

    async def ask(self, question: str, ctx: ToolContext) -> str:
        """It waits for the person's answer."""
        ...

    async def drop(self, why: str, ctx: ToolContext) -> str:
        """It cannot be reached."""
        ...


class GoalTool(Tool):
    """Work over many turns."""

    name = "goal"
    description = (
        "Work on something over many turns by yourself, until a check proves it: begin when asked to go on until "
        "something holds."
    )
    parameters = takes(
        "action",
        action=string(enum=["begin", "note", "finish", "ask", "drop"]),
        text=string("What to reach, to ask, or why to drop it"),
        done=string(),
        doing=string(),
        next=string(),
        check=string("`command: ...`, `file: PATH` or `page: URL`"),
        expect=string("Text it must show"),
    )
    effect = Effect.ONCE
    alone = True  # a check must see what the calls beside it do, done

    def __init__(self, open_goals: Callable[[], Goals], find_tool: Callable[[str], Tool | None]) -> None:
        """`open_goals` is asked when the tool is used first; `find_tool` gives the tools that make the checks."""
        self._open_goals = open_goals
        self._find_tool = find_tool

    async def reaches(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Reach]:
        """A goal acts later, as a job does. A check reaches for what its tool does."""
        if arguments["action"] == "begin":
            return (Reach(ReachKind.JOB, f"goal: {arguments.get('text', '')}"),)
        if arguments["action"] != "finish":
            return ()
        reaches: list[Reach] = []
        for check in self._wanted(arguments, ctx):
            if (found := self._call_for(check)) is not None:
                reaches += await found[0].reaches(found[1], ctx)
        return reaches

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
        """Do it. Cancelling ends a check that runs; the goal goes on then."""
        goals = self._open_goals()
        try:
            match action:
                case "begin":
                    return await self._begin(goals, text, check, expect, ctx)
                case "note":
                    told = await goals.note(ctx, done=done, doing=doing, following=more.get("next", ""))
                case "finish":
                    return await self._finish(goals, check, expect, ctx)
                case "ask":
                    told = await goals.ask(text, ctx)
                case _:
                    told = await goals.drop(text, ctx)
        except (NanobotError, ValueError) as error:
            return ToolResult.failed(str(error))
        return ToolResult(told)

    async def _begin(self, goals: Goals, text: str, check: str, expect: str, ctx: ToolContext) -> ToolResult:
        if not text.strip():
            return ToolResult.failed("There is no goal. Say in `text` what is to be reached.")
        if ctx.origin in _NO_GOALS or ctx.quiet or ctx.is_of_subagent:
            return ToolResult.failed("Only a turn that a person asked for begins a goal. Do now what can be done now.")
        return ToolResult(await goals.begin(text.strip(), Check.of(check, expect) if check.strip() else None, ctx))

    async def _finish(self, goals: Goals, check: str, expect: str, ctx: ToolContext) -> ToolResult:
        wanted = [*goals.checks(ctx)]
        if check.strip():
            wanted.append(Check.of(check, expect))
        if not wanted:
            return ToolResult.failed(
                "A claim needs a check. Name one: `command: ...` that ends well, `file: PATH` or `page: URL` that is "
                "there, with expect where it must show a text."
            )
        for one in dict.fromkeys(wanted):
            shown = await self._made(one, ctx)
            if shown.error:
                goals.refuted(f"the check `{one}` did not hold", ctx)
                return shown
        return replace(shown, content=await goals.claimed(wanted[-1], ctx), error=False)

    async def _made(self, check: Check, ctx: ToolContext) -> ToolResult:
        """The check, made: what it shows, or as an error why it does not hold."""
        found = self._call_for(check)
        if found is None:
            return ToolResult.failed(f"The check `{check}` needs a tool that is switched off here. Name another.")
        tool, arguments = found
        if problems := tool.validate_params(arguments):
            return ToolResult.failed(f"The check `{check}` cannot be made. {' '.join(problems)}")
        result = await passed_on(tool, arguments, ctx)
        shown = text_in(result)
        why = ""
        if result.error:
            why = "It failed"
        elif not shown.strip() and check.kind is CheckKind.FILE:
            why = "The file is empty"
        elif check.expect and check.expect not in shown:
            why = f'It does not show "{check.expect}"'
        if not why:
            return result
        tail = shown if len(shown) <= _SHOWN_CHARS else f"...{shown[-_SHOWN_CHARS:]}"
        text = f"The goal is not reached: the check `{check}` does not hold. {why}:\n{tail}"
        return ToolResult(f"Error: {text}", True, result.provenance or tool.provenance, failure=ToolFailure.ENDED_BADLY)

    def _wanted(self, arguments: dict[str, Any], ctx: ToolContext) -> list[Check]:
        """The checks of a claim, as far as they can be read."""
        wanted: list[Check] = []
        try:
            wanted += self._open_goals().checks(ctx)
            if arguments.get("check", "").strip():
                wanted.append(Check.of(arguments["check"], arguments.get("expect", "")))
        except (NanobotError, ValueError):
            pass  # executing it says what is wrong
        return wanted

    def _call_for(self, check: Check) -> tuple[Tool, dict[str, Any]] | None:
        name, key = {
            CheckKind.COMMAND: ("exec", "command"),
            CheckKind.FILE: ("read_file", "path"),
            CheckKind.PAGE: ("web_fetch", "url"),
        }[check.kind]
        tool = self._find_tool(name)
        return (tool, {key: check.target}) if tool is not None else None


def text_in(result: ToolResult) -> str:
    """What a result says in words."""
    if isinstance(result.content, str):
        return result.content
    return "\n".join(str(block.get("text", f"[{block.get('type', 'block')}]")) for block in result.content)
