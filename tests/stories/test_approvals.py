"""A question in a chat: with buttons, for the owner alone, and through a restart."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nanobot.config.loader import load_config
from nanobot.gateway.service import Options, open_gateway
from nanobot.testing import ScriptedProvider, calls
from nanobot.testing.platform import Shown
from tests.fakes.platform_telegram import ANNA, HALL, ZOE, TelegramPlatform
from tests.fakes.telegram import TOKEN
from tests.support.eventually import eventually
from tests.support.toy_gateway import free_port, written

TOUCH = calls(("exec", {"command": "touch there.txt"}))
JPEG = b"\xff\xd8\xff" + b"\0" * 60
FORWARDED = {
    "forward_origin": {
        "type": "user",
        "date": 1,
        "sender_user": {"id": 9, "is_bot": False, "first_name": "Max"},
    }
}
"""core.telegram.org/bots/api#messageoriginuser"""


@pytest.fixture
async def telegram(tmp_path: Path) -> AsyncIterator[TelegramPlatform]:
    (folder := tmp_path / "platform").mkdir()
    async with TelegramPlatform(folder).open() as platform:
        yield platform


@asynccontextmanager
async def gateway(telegram: TelegramPlatform, home: Path, *script: Any) -> AsyncIterator[None]:
    """A whole gateway on this Telegram, which Anna owns."""
    home.mkdir(exist_ok=True)
    channel = {
        "enabled": True,
        "token": TOKEN,
        "apiBase": telegram.server.url,
        "allowFrom": [str(ANNA), str(ZOE)],
        "groupPolicy": "open",
    }
    written(home / "config.json", {"channels": {"telegram": channel}, "gateway": {"port": free_port()}})
    written(home / "pairing.json", {"owners": {"telegram": [str(ANNA)]}, "approved": {"telegram": [str(ANNA)]}})
    async with open_gateway(
        load_config(home / "config.json"),
        data_dir=home,
        workspace=home / "workspace",
        options=Options(turns_s=0.05),
        provider=ScriptedProvider(*script),
        environ={},
    ):
        yield


async def question(telegram: TelegramPlatform, chat: int = ANNA) -> Shown:
    return await eventually(lambda: next((one for one in telegram.shown(str(chat)) if one.buttons), None))


async def shows(telegram: TelegramPlatform, words: str, chat: int = ANNA) -> Shown:
    return await eventually(lambda: next((one for one in telegram.shown(str(chat)) if words in one.text), None))


@pytest.mark.parametrize(
    ("said", "answer", "is_there"),
    [
        ({"text": "please touch it", **FORWARDED}, "Yes, this once", True),
        ({"text": "please touch it", **FORWARDED}, "Nein!", False),
        ({"text": "/goal ship it", **FORWARDED}, "No", False),
        ({"caption": "look at this", "photo": JPEG}, "No", False),
    ],
    ids=["a button", "a word", "a forwarded command begins no goal", "a picture"],
)
async def test_call_that_follows_what_others_made_waits_for_the_owners_answer(
    telegram: TelegramPlatform, tmp_path: Path, said: dict[str, Any], answer: str, is_there: bool
):
    if "photo" in said:
        said = {**said, "photo": [telegram.server.file(said["photo"]) | {"width": 9, "height": 9}]}
    async with gateway(telegram, tmp_path / "home", TOUCH, "That was that."):
        await telegram.server.message(ANNA, ANNA, **said)
        asked = await question(telegram)
        await (telegram.press_button(asked.id, answer) if answer in asked.buttons else telegram.says(answer))
        await shows(telegram, "That was that.")

    assert "touch there.txt" in asked.text
    assert asked.buttons == ["Yes, this once", "Always", "No"]
    assert (tmp_path / "home" / "workspace" / "there.txt").exists() is is_there
    assert not any("I will work on this" in one.text for one in telegram.shown())


@pytest.mark.parametrize(("words", "told"), [("no", "Not allowed."), ("/stop", "Stopped.")])
async def test_answer_and_stop_wait_for_no_attachment(
    telegram: TelegramPlatform, tmp_path: Path, words: str, told: str
):
    telegram.server.slow_files.clear()
    async with gateway(telegram, tmp_path / "home", TOUCH, "Not done.", "I have read it."):
        await telegram.server.message(ANNA, ANNA, "please touch it", **FORWARDED)
        await question(telegram)
        file = await telegram.server.message(ANNA, ANNA, caption="read", document=telegram.server.file(b"words"))
        await eventually(lambda: telegram.acknowledged(str(file)))
        await telegram.says(words)
        await shows(telegram, told)
        telegram.server.slow_files.set()


async def test_in_a_group_a_strangers_yes_counts_for_nothing(telegram: TelegramPlatform, tmp_path: Path):
    write = calls(("write_file", {"path": "skills/there/SKILL.md", "content": "Hello."}))
    target = tmp_path / "home" / "workspace" / "skills" / "there" / "SKILL.md"
    async with gateway(telegram, tmp_path / "home", write, "It is there now."):
        await telegram.says("touch it for me", sender=str(ZOE), chat=str(HALL))
        asked = await question(telegram, HALL)
        await telegram.server.press(int(asked.id), "Always", ZOE)
        await eventually(lambda: telegram.server.answered)
        await telegram.says("/approve", sender=str(ZOE), chat=str(HALL))
        await shows(telegram, "Only an owner may answer that.", HALL)
        before = target.exists()
        await telegram.press_button(asked.id, "Yes, this once")
        await shows(telegram, "It is there now.", HALL)

    assert not before
    assert target.exists()


async def test_somebody_elses_private_chat_is_refused_at_once(telegram: TelegramPlatform, tmp_path: Path):
    async with gateway(telegram, tmp_path / "home", TOUCH, "I may not."):
        await telegram.says("touch it for me", sender=str(ZOE), chat=str(ZOE))
        await shows(telegram, "I may not.", ZOE)

    assert not (tmp_path / "home" / "workspace" / "there.txt").exists()
    assert all(not one.buttons for one in telegram.shown(str(ZOE)))


async def test_same_command_asked_twice_in_a_turn_is_two_questions(telegram: TelegramPlatform, tmp_path: Path):
    async with gateway(telegram, tmp_path / "home", TOUCH, TOUCH, "Touched once."):
        await telegram.server.message(ANNA, ANNA, "please touch it", **FORWARDED)
        first = await question(telegram)
        await telegram.press_button(first.id, "No")
        second = await eventually(
            lambda: next((one for one in telegram.shown(str(ANNA)) if one.buttons and one.id != first.id), None)
        )
        await telegram.press_button(second.id, "Yes, this once")
        await shows(telegram, "Touched once.")

    assert second.text == first.text


async def test_a_restart_asks_again_and_an_answer_to_the_old_question_counts_once(
    telegram: TelegramPlatform, tmp_path: Path
):
    home = tmp_path / "home"
    async with gateway(telegram, home, TOUCH):
        await telegram.server.message(ANNA, ANNA, "please touch it", **FORWARDED)
        old = await question(telegram)
    await telegram.press_button(old.id, "Yes, this once")  # while nobody listens

    async with gateway(telegram, home, "It is there now."):
        await shows(telegram, "It is there now.")

    assert (home / "workspace" / "there.txt").exists()
