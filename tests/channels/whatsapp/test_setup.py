"""`nanobot channels login whatsapp`, with a bridge of one's own."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nanobot.cli.main import app
from tests.fakes.whatsapp import TOKEN
from tests.support.eventually import eventually


async def command(*words: str, answers: str = "") -> Result:
    """A command of the terminal, while the bridge runs in this loop."""
    return await asyncio.to_thread(CliRunner().invoke, app, ["channels", "login", "whatsapp", *words], input=answers)


def section() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path.home() / ".nanobot" / "config.json").read_text())["channels"]["whatsapp"]
    return found


@pytest.fixture
def settings(whatsapp) -> dict[str, Any]:
    """The section of the config before the setup."""
    own = {"bridgeManaged": False, "bridgeUrl": whatsapp.bridge.url, "bridgeToken": TOKEN}
    folder = Path.home() / ".nanobot"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"channels": {"whatsapp": own}}))
    return own


async def test_the_setup_saves_nothing_before_the_account_is_linked(whatsapp, settings):
    whatsapp.bridge.is_linked = False
    setup = asyncio.create_task(command(answers="+4915112345678\n"))
    await eventually(lambda: any(line.is_trusted for line in whatsapp.bridge.lines))
    before = section()
    whatsapp.bridge.is_linked = True
    await whatsapp.bridge.tell_status()
    result = await setup

    assert result.exit_code == 0, result.output
    assert before == settings
    assert section() == settings | {"enabled": True, "groupPolicy": "mention"}
    assert json.loads((Path.home() / ".nanobot" / "pairing.json").read_text())["owners"] == {
        "whatsapp": ["+4915112345678"]
    }
    assert "Linked as +4930123456." in result.stdout
    assert "Write to your bot on WhatsApp" in result.stdout


async def test_a_number_is_for_this_login_and_is_not_saved(whatsapp, settings):
    whatsapp.bridge.is_linked = False
    setup = asyncio.create_task(command("--phone", "+49 30 123456", answers="\n"))
    await eventually(lambda: whatsapp.bridge.requests)
    await whatsapp.bridge.tell({"type": "status", "status": "connected"})
    result = await setup

    assert result.exit_code == 0, result.output
    assert "\n  ABCD-EFGH\n" in result.stdout
    assert "phone" not in section()


async def test_an_account_that_is_set_up_is_tried(whatsapp, settings):
    assert (await command(answers="\n")).exit_code == 0

    result = await command()

    assert result.exit_code == 0, result.output
    assert "whatsapp is configured and its credentials work." in result.stdout
