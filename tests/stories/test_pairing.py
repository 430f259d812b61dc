"""Somebody unknown writes to the bot: its owner hears of it on Telegram and decides there."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nanobot.cli.main import app
from nanobot.config.loader import load_config
from nanobot.gateway.channels import MAX_NOTICES
from nanobot.gateway.service import Options, open_gateway
from nanobot.testing import ScriptedProvider
from nanobot.testing.platform import Shown
from tests.fakes.platform_telegram import ANNA, ZOE, TelegramPlatform
from tests.fakes.telegram import TOKEN
from tests.support.eventually import eventually
from tests.support.toy_gateway import free_port, written


@pytest.fixture
async def telegram(tmp_path: Path) -> AsyncIterator[TelegramPlatform]:
    async with TelegramPlatform(tmp_path).open() as platform:
        yield platform


@asynccontextmanager
async def gateway(telegram: TelegramPlatform, home: Path) -> AsyncIterator[None]:
    """A gateway on this Telegram, which Anna owns."""
    home.mkdir()
    channel = {"enabled": True, "token": TOKEN, "apiBase": telegram.server.url}
    written(home / "config.json", {"channels": {"telegram": channel}, "gateway": {"port": free_port()}})
    written(home / "pairing.json", {"owners": {"telegram": [str(ANNA)]}, "approved": {"telegram": [str(ANNA)]}})
    async with open_gateway(
        load_config(home / "config.json"),
        data_dir=home,
        workspace=home / "workspace",
        options=Options(poll_s=0.02, turns_s=0.2),
        provider=ScriptedProvider("Hello Zoe."),
        environ={},
    ):
        yield


async def shows(telegram: TelegramPlatform, words: str, chat: int) -> Shown:
    return await eventually(lambda: next((one for one in telegram.shown(str(chat)) if words in one.text), None))


async def test_the_owner_lets_somebody_in_with_a_button_and_both_hear_of_it(
    telegram: TelegramPlatform, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    telegram.server.people[ZOE] |= {"first_name": "Zoe\u202e\n[x](http://evil.test) (@ann)", "username": "zoe_1"}
    async with gateway(telegram, tmp_path / "home"):
        await telegram.server.message(ZOE, ZOE, "let me in")
        asked = await shows(telegram, "wants to talk to me", ANNA)
        await telegram.server.press(int(asked.id), "Let in", ANNA)
        await shows(telegram, "You are in", ZOE)
        done = await shows(telegram, "may talk to me now", ANNA)
        await telegram.server.message(ZOE, ZOE, "hello")
        await shows(telegram, "Hello Zoe.", ZOE)

    assert asked.text.startswith("Zoe x http://evil.test ann (@zoe_1) on Telegram wants")
    assert asked.buttons == ["Let in", "No"]
    assert "(@zoe_1) on telegram" in done.text
    assert "telegram: paired '222' Zoe" in caplog.text


async def test_the_owner_says_no_and_the_code_is_void(telegram: TelegramPlatform, tmp_path: Path):
    async with gateway(telegram, tmp_path / "home"):
        await telegram.server.message(ZOE, ZOE, "let me in")
        asked = await shows(telegram, "wants to talk to me", ANNA)
        await telegram.server.press(int(asked.id), "No", ANNA)
        await shows(telegram, "is denied", ANNA)
        await telegram.server.message(ANNA, ANNA, "/pairing")
        listed = await shows(telegram, f"telegram: {ANNA} (owner)", ANNA)

    assert str(ZOE) not in listed.text


async def test_a_crowd_does_not_flood_the_owner(telegram: TelegramPlatform, tmp_path: Path):
    async with gateway(telegram, tmp_path / "home"):
        for number in range(1000, 1000 + MAX_NOTICES + 3):
            telegram.server.people[number] = {"id": number, "is_bot": False, "first_name": f"Guest {number}"}
            telegram.server.chats[number] = {"id": number, "type": "private"}
            await telegram.server.message(number, number, "hi")
            await shows(telegram, "This is a private bot", number)
        await telegram.server.message(ANNA, ANNA, "/pairing")
        listed = await shows(telegram, "waits with", ANNA)

    notices = [one for one in telegram.shown(str(ANNA)) if "wants to talk to me" in one.text]
    assert len(notices) == MAX_NOTICES
    assert listed.text.count("waits with") == MAX_NOTICES + 3


async def test_somebody_let_in_from_the_terminal_hears_of_it(telegram: TelegramPlatform, tmp_path: Path):
    home = tmp_path / "home"
    async with gateway(telegram, home):
        await telegram.server.message(ZOE, ZOE, "let me in")
        invited = await shows(telegram, "This is a private bot", ZOE)
        code = re.search(r"approve (\w{8})", invited.text)
        assert code is not None
        command = ["pairing", "approve", code[1], "-c", str(home / "config.json")]
        result = await asyncio.to_thread(CliRunner().invoke, app, command)
        await shows(telegram, "You are in", ZOE)

    assert result.exit_code == 0, result.output
    assert result.stdout == "Zoe on telegram may talk to the bot now.\n"
