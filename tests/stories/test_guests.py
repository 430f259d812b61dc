"""Other people's power over a bot that several write to: little, and never over what an owner asked for."""

import asyncio
from pathlib import Path

import pytest

from nanobot.bus.events import InboundMessage
from nanobot.messages.types import Provenance
from nanobot.providers.errors import AuthenticationError, CallTarget
from nanobot.testing import Pause, open_bot


def from_somebody(text: str, sender: str = "zoe") -> InboundMessage:
    return InboundMessage("telegram", sender, "-1", text)


def from_ann(text: str) -> InboundMessage:
    return InboundMessage("telegram", "ann", "-1", text, provenance=Provenance.OWNER)


async def test_a_guest_does_not_stop_what_somebody_else_asked_for(tmp_path: Path):
    pause = Pause()
    async with open_bot(tmp_path, pause, "done") as bot:
        turn = asyncio.create_task(bot.run_turn(from_ann("work")))
        await pause.reached.wait()
        said = await bot.run_turn(from_somebody("/stop"))
        pause.resume.set()

        assert "only they or an owner may stop it" in said.text
        assert (await turn).text == "done"


async def test_who_asked_for_it_may_stop_it_and_so_may_an_owner(tmp_path: Path):
    for stop in (from_somebody("/stop"), from_ann("/stop")):
        pause = Pause()
        async with open_bot(tmp_path, pause) as bot:
            turn = asyncio.create_task(bot.run_turn(from_somebody("work")))
            await pause.reached.wait()
            said = await bot.run_turn(stop)

            assert (said.text, (await turn).outcome) == ("Stopped.", "stopped")


async def test_a_guest_does_not_end_a_conversation_in_which_others_have_written(tmp_path: Path):
    async with open_bot(tmp_path, "hello", "and hello") as bot:
        await bot.run_turn(from_somebody("hi"))
        alone = await bot.run_turn(from_somebody("/new"))
        await bot.run_turn(from_ann("hi"))
        shared = await bot.run_turn(from_somebody("/new"))

        assert "Started a new session" in alone.text
        assert "only an owner may use /new" in shared.text


async def test_a_guest_hears_that_the_model_failed_and_the_log_has_the_address_and_the_setting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    target = CallTarget("custom", "m", "http://10.0.0.7/v1", "providers.custom.apiKey")
    async with open_bot(tmp_path, AuthenticationError(target=target), AuthenticationError(target=target)) as bot:
        to_guest = await bot.run_turn(from_somebody("hi"))
        to_owner = await bot.say("hi")

    assert "the API key was rejected" in to_guest.text
    assert "10.0.0.7" not in to_guest.text and "providers." not in to_guest.text
    assert "providers.custom.apiKey" in to_owner
    assert "telegram:-1 failed" in caplog.text and caplog.text.count("10.0.0.7") == 2
