"""Hooks around tool calls: what they see, what they forbid, what they grant."""

from pathlib import Path
from typing import Any

from nanobot.agent.tools.access import Access, AccessKind
from nanobot.agent.tools.base import Effect, Tool, ToolContext
from nanobot.agent.tools.hooks import PlannedCall, Verdict
from nanobot.agent.tools.schema import string, takes
from nanobot.config.schema import Config
from nanobot.messages.types import Provenance, text_of
from nanobot.runtime.build import build_runtime
from nanobot.testing import Bot, ScriptedProvider, calls, open_bot


class Shout(Tool):
    name = "shout"
    description = "Shouts."
    parameters = takes("word", word=string("What to shout"))
    derives = True

    async def execute(self, word: str, *, ctx: ToolContext) -> str:
        return f"{word.upper()} with {', '.join(sorted(ctx.granted)) or 'nothing'}"


class Page(Tool):
    name = "page"
    description = "A page of the web."
    parameters = takes()
    effect = Effect.READ
    provenance = Provenance.WEB

    async def execute(self) -> str:
        return "words of somebody else"


class Watching:
    """A hook that keeps what it saw."""

    def __init__(self, verdict: Verdict | None = None) -> None:
        self.verdict = verdict or Verdict()
        self.saw: list[PlannedCall] = []

    async def before_call(self, planned: PlannedCall) -> Verdict:
        self.saw.append(planned)
        return self.verdict


def with_tools(bot: Bot) -> Bot:
    bot.register(Shout())
    bot.register(Page())
    return bot


async def test_a_hook_sees_each_call_with_what_it_reaches_for_and_grants_it(tmp_path: Path):
    hook = Watching(Verdict(frozenset({"folder:/there"})))
    async with open_bot(tmp_path, calls(("shout", {"word": "hey"}), ("page", {})), "done", hooks=[hook]) as bot:
        await with_tools(bot).say("go")

        assert [one.required_access for one in hook.saw] == [(Access(AccessKind.TOOL, "shout"),), ()]
        assert "HEY with folder:/there" in str(bot.provider.requests[1])


async def test_a_call_that_a_hook_forbids_does_not_run_and_the_model_is_told_why(tmp_path: Path):
    first, second = Watching(Verdict(refusal="Not today. Ask again tomorrow.")), Watching()
    async with open_bot(tmp_path, calls(("shout", {"word": "hey"})), "ok", hooks=[first, second]) as bot:
        await with_tools(bot).say("go")

        row = bot.provider.requests[1][-1]
        assert text_of(row["content"]) == "Error: Not today. Ask again tomorrow."
        assert second.saw == []


async def test_words_from_outside_have_entered_from_the_result_that_brought_them_on(tmp_path: Path):
    hook = Watching()
    script = (calls(("shout", {"word": "a"})), calls(("page", {})), calls(("shout", {"word": "b"})), "done")
    async with open_bot(tmp_path, *script, "hi", hooks=[hook]) as bot:
        await with_tools(bot).say("go")

        assert [one.context.entered for one in hook.saw] == [Provenance.OWNER, Provenance.TOOL, Provenance.WEB]


async def test_an_older_turns_outside_words_have_not_entered_this_one_though_the_window_has_them(tmp_path: Path):
    hook = Watching()
    script = (calls(("page", {})), "read", calls(("shout", {"word": "a"})), calls(("shout", {"word": "b"})), "done")
    async with open_bot(tmp_path, *script, hooks=[hook]) as bot:
        with_tools(bot)
        await bot.say("read the page")
        await bot.say("and now shout")

        later = hook.saw[1:]
        assert [one.context.entered for one in later] == [Provenance.OWNER, Provenance.TOOL]
        assert [one.context.provenance for one in later] == [Provenance.WEB, Provenance.WEB]


async def test_what_may_be_made_of_anything_in_the_window_is_stored_as_the_least_trusted_of_it(tmp_path: Path):
    script = (calls(("shout", {"word": "a"})), calls(("page", {})), calls(("shout", {"word": "b"})), "done")
    async with open_bot(tmp_path, *script) as bot:
        await with_tools(bot).say("go")

        rows = [row for row in bot.session("cli:direct").messages if row["role"] == "tool"]
        assert [row["provenance"] for row in rows] == ["tool", "web", "web"]


async def test_a_tool_that_cannot_tell_what_it_reaches_for_reaches_for_itself_as_a_whole(tmp_path: Path):
    class Broken(Shout):
        async def required_access(self, arguments: dict[str, Any], ctx: ToolContext) -> tuple[Access, ...]:
            raise RuntimeError("no idea")

    hook = Watching()
    async with open_bot(tmp_path, calls(("shout", {"word": "a"})), "done", hooks=[hook]) as bot:
        bot.register(Broken())
        await bot.say("go")

        assert [one.required_access for one in hook.saw] == [(Access(AccessKind.TOOL, "shout"),)]


async def test_a_source_is_asked_before_each_turn_and_closed_with_the_bot(tmp_path: Path):
    class Coming:
        closed = False

        async def refresh(self, registry: Any) -> None:
            registry.register(Shout())

        async def close(self) -> None:
            self.closed = True

    source = Coming()
    provider = ScriptedProvider("hi")
    async with build_runtime(
        Config(), data_dir=tmp_path, workspace=tmp_path / "workspace", provider=provider, environ={}
    ) as runtime:
        runtime.tools.add_source(source)
        await Bot(runtime, provider).say("go")

    assert "shout" in [tool["function"]["name"] for tool in provider.tools[0]]
    assert source.closed
