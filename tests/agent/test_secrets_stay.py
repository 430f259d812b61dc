"""A secret of the config reaches no model, no row, no event and no file, whoever says it."""

import sys

import pytest

from nanobot.agent.events import TextDelta
from nanobot.agent.tools.base import Tool, ToolResult, string, takes
from nanobot.testing import calls, open_bot
from tests.support.configs import made

SECRET = "the-secret-4f9a2c"


class Telling(Tool):
    """A tool that tells the secret, in each way a tool can."""

    name = "tell"
    description = "Tells."
    parameters = takes("how", how=string("In which way"))

    async def execute(self, how: str, **kwargs):
        if how == "raises":
            raise RuntimeError(f"bad key {SECRET}")
        if how == "blocks":
            return ToolResult([{"type": "text", "text": SECRET}, {"type": "image_url", "image_url": {"url": "x.png"}}])
        if how == "shows":
            return ToolResult("told", display=f"+ {SECRET}")
        if how == "long":
            return f"{SECRET}, " * 5_000
        return {"json": SECRET}


@pytest.fixture
async def bot(tmp_path):
    config = made(providers={"openai": {"apiKey": SECRET}})
    async with open_bot(tmp_path, config=config) as bot:
        bot.register(Telling())
        yield bot


def written(tmp_path):
    return [path for path in tmp_path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


@pytest.mark.parametrize("how", ["raises", "blocks", "shows", "long", "returns"])
async def test_what_a_tool_tells_is_seen_without_it(bot, tmp_path, how):
    bot.provider.script(calls(("tell", {"how": how})), "done")

    await bot.say("tell")

    assert SECRET not in str(bot.provider.requests)
    assert SECRET not in str(bot.sink.events)
    assert written(tmp_path) == []
    if how not in ("shows", "long"):
        assert "[key]" in str(bot.provider.requests[-1])


async def test_what_a_person_says_or_a_file_of_the_prompt_holds_is_told_to_no_model(bot, tmp_path):
    (tmp_path / "workspace" / "SOUL.md").write_text(f"Your key is {SECRET}.")
    bot.provider.script("hello")

    await bot.say(f"is {SECRET} my key?")

    assert "is [key] my key?" in str(bot.provider.requests)
    assert "Your key is [key]." in str(bot.provider.requests)
    assert SECRET not in str(bot.provider.requests)
    assert written(tmp_path) == [tmp_path / "workspace" / "SOUL.md"]


async def test_what_a_model_makes_of_what_it_saw_is_not_kept(bot, tmp_path):
    bot.provider.script(calls(("tell", {"how": SECRET}), text=f"I try {SECRET}"), f"It is {SECRET}.")

    reply = await bot.say("hello")

    assert reply == "It is [key]."
    assert written(tmp_path) == []
    heard = "".join(event.text for event in bot.sink.events if isinstance(event, TextDelta))
    assert heard == "I try [key]It is [key]."
    assert SECRET not in str(bot.sink.events)


@pytest.mark.needs_sandbox
@pytest.mark.skipif(sys.platform == "win32", reason="a shell is needed")
async def test_long_output_of_a_command_is_kept_without_it(bot, tmp_path):
    command = f"for i in $(seq 20000); do echo {SECRET[:7]}''{SECRET[7:]}; done"
    bot.provider.script(calls(("exec", {"command": command})), "done")

    await bot.say("run it")

    (spilled,) = (tmp_path / "workspace" / ".nanobot" / "spill").iterdir()
    assert spilled.read_text() == "[key]\n" * 20_000
    assert written(tmp_path) == []
    assert SECRET not in str(bot.provider.requests)


async def test_what_breaks_a_turn_is_told_without_it(bot):
    bot.provider.script(ValueError(f"no such key: {SECRET}"))

    result = await bot.turn("hello")

    assert "[key]" in result.text
    assert SECRET not in f"{result} {await bot.say('/status')} {bot.sink.events}"
