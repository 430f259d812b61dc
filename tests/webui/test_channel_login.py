"""Setting up chat apps from the page, over HTTP, at the fakes of their platforms."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest

from nanobot.channels.status import ChannelState
from tests.fakes.mail_server import PASSWORD, USER, FakeMail
from tests.fakes.telegram import TOKEN, FakeTelegram
from tests.fakes.weixin import ANNA, WeixinPlatform
from tests.fakes.whatsapp import TOKEN as BRIDGE_TOKEN
from tests.fakes.whatsapp import WhatsAppPlatform
from tests.support.eventually import eventually
from tests.support.running_gateway import OpenGateway, Running
from tests.support.web_client import browser

Event = dict[str, Any]


async def log_in(client: httpx.AsyncClient, name: str, **form: Any) -> AsyncGenerator[Event]:
    """The events of a login, as they come."""
    async with asyncio.timeout(20), client.stream("POST", f"/api/channels/{name}/login", json=form) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


async def events_of(client: httpx.AsyncClient, name: str, **form: Any) -> list[Event]:
    return [event async for event in log_in(client, name, **form)]


def section(here: Running, name: str) -> dict[str, Any]:
    channels: dict[str, dict[str, Any]] = json.loads((here.home / "config.json").read_bytes())["channels"]
    return channels.get(name, {})


def state(here: Running, name: str) -> ChannelState | None:
    channel = here.gateway.channels.manager.get(name)
    return channel.status.state if channel is not None else None


@pytest.fixture
async def telegram(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeTelegram]:
    async with FakeTelegram().open() as server:
        monkeypatch.setenv("NANOBOT_CHANNELS__TELEGRAM__API_BASE", server.url)
        yield server


@pytest.fixture
async def weixin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WeixinPlatform]:
    monkeypatch.setattr("nanobot.channels.weixin.PAUSE_S", 0.01)
    (tmp_path / "platform").mkdir()
    async with WeixinPlatform(tmp_path / "platform").open() as platform:
        monkeypatch.setenv("NANOBOT_CHANNELS__WEIXIN__BASE_URL", platform.server.url)
        yield platform.server


@pytest.mark.usefixtures("telegram")
async def test_a_token_is_tried_saved_taken_up_at_once_and_never_shown(running: OpenGateway):
    async with running() as here, browser(here) as client:
        before = (await client.get("/api/channels/telegram/form")).json()
        typo = await events_of(client, "telegram", answers={"token": "my token"})
        wrong = await events_of(client, "telegram", answers={"token": "1:wrong"})
        nothing_saved = section(here, "telegram")
        right = await events_of(client, "telegram", answers={"token": TOKEN})
        await eventually(lambda: state(here, "telegram") is ChannelState.UP)
        form = await client.get("/api/channels/telegram/form")
        listed = await client.get("/api/channels")
        kept = await events_of(client, "telegram")
        config = await client.get("/api/config")

    [field] = before["fields"]
    assert (field["label"], field["secret"], field["is_set"]) == ("Bot token", True, False)
    assert "@BotFather" in before["instructions"]
    assert "A token looks like" in typo[0]["text"]
    assert [(event["type"], "The token is refused" in event["text"]) for event in wrong] == [("error", True)]
    assert nothing_saved == {}
    assert [event["type"] for event in right] == ["step", "done"]
    assert right[0]["link"] == "https://t.me/nano_test_bot"
    assert section(here, "telegram") == {"enabled": True, "token": TOKEN}
    assert (form.json()["fields"][0]["is_set"], form.json()["fields"][0]["value"]) == (True, "")
    assert kept[-1] == {"type": "done"}
    assert all(TOKEN not in text for text in (form.text, listed.text, config.text, json.dumps(right + kept)))


@pytest.mark.usefixtures("telegram")
async def test_a_token_that_is_refused_can_be_saved_and_an_owner_be_named(running: OpenGateway):
    async with running() as here, browser(here) as client:
        number = await events_of(client, "telegram", answers={"token": TOKEN}, owner="+49 170 1234567")
        saved = await events_of(client, "telegram", answers={"token": "1:wrong"}, owner="111", untested=True)
        await eventually(lambda: state(here, "telegram") is ChannelState.FAILED)
        form = (await client.get("/api/channels/telegram/form")).json()
        people = (await client.get("/api/people")).json()["people"]
        off = await client.patch("/api/config", json={"key": "channels.telegram.enabled", "value": False})
        await eventually(lambda: state(here, "telegram") is None)

    assert "A phone number or a @name does not tell" in number[-1]["text"]
    assert saved == [{"type": "done"}]
    assert (form["owner"], [person["sender"] for person in people], off.status_code) == (None, ["111"], 200)


async def test_wechat_is_connected_by_its_code_and_the_number_on_the_phone(
    running: OpenGateway, weixin: WeixinPlatform
):
    confirmed = {"status": "confirmed", "bot_token": weixin.token, "baseurl": weixin.url, "ilink_user_id": ANNA}
    states = ["wait", "expired", "scaned", "need_verifycode", "need_verifycode"]
    weixin.statuses.extend([*({"status": each} for each in states), confirmed])
    seen: list[Event] = []

    async with running() as here, browser(here) as client:
        async for event in log_in(client, "weixin", signs_in=True):
            seen.append(event)
            if event["type"] == "question":
                number = "12" if "another number" not in event["text"] else "34"
                answered = await client.post("/api/channels/weixin/answer", json={"text": number})
                assert answered.status_code == 202
        late = await client.post("/api/channels/weixin/answer", json={"text": "56"})
        await eventually(lambda: state(here, "weixin") is ChannelState.UP)
        form = (await client.get("/api/channels/weixin/form")).json()

    codes = [event for event in seen if event.get("qr")]
    assert [event["type"] for event in seen] == ["step", "step", "step", "question", "question", "done"]
    assert len(codes) == 2
    assert {len(row) for row in codes[0]["qr"]} == {len(codes[0]["qr"])}
    assert weixin.numbers == ["12", "34"]
    assert late.status_code == 409
    assert section(here, "weixin")["token"] == weixin.token
    assert form["owner"] is None
    assert weixin.token not in json.dumps([seen, form])


async def test_a_login_ends_when_its_dialog_is_closed_and_when_another_one_begins(
    running: OpenGateway, weixin: WeixinPlatform
):
    def polls() -> int:
        return sum(method == "get_qrcode_status" for method, _ in weixin.requests)

    async with running() as here, browser(here) as client:
        async with aclosing(log_in(client, "weixin", signs_in=True)) as first:
            await anext(first)
            await eventually(lambda: polls() > 2)
            async with aclosing(log_in(client, "weixin", signs_in=True)) as second:
                assert (await anext(second))["qr"]
                assert [event async for event in first] == []
                started = polls()
                await eventually(lambda: polls() > started)
        await eventually(lambda: not any(task.get_name() == "login weixin" for task in asyncio.all_tasks()))
        ended = polls()
        await asyncio.sleep(0.3)

    assert polls() == ended
    assert section(here, "weixin") == {}


async def test_a_running_channel_gives_way_to_a_login_as_the_same_account_and_then_comes_back(
    running: OpenGateway, tmp_path: Path
):
    (tmp_path / "platform").mkdir()
    async with WhatsAppPlatform(tmp_path / "platform").open() as platform:
        bridge = platform.bridge
        own = {"enabled": True, "bridgeManaged": False, "bridgeUrl": bridge.url, "bridgeToken": BRIDGE_TOKEN}
        async with running() as here, browser(here) as client:
            here.change(lambda config: config["channels"].update(whatsapp=own))
            await eventually(lambda: state(here, "whatsapp") is ChannelState.UP)
            bridge.is_linked = False
            async with aclosing(log_in(client, "whatsapp")) as login:
                assert (await anext(login))["qr"]
                during = (state(here, "whatsapp"), len(bridge.lines))
                bridge.is_linked = True
            await eventually(lambda: state(here, "whatsapp") is ChannelState.UP)

    assert during == (ChannelState.OFF, 1)
    assert section(here, "whatsapp") == own


async def test_a_mailbox_needs_consent_and_keeps_the_servers_that_are_set(running: OpenGateway):
    async with FakeMail().open() as server:
        places = {
            "imapHost": "127.0.0.1",
            "imapPort": server.imap_port,
            "imapUseSsl": False,
            "smtpHost": "127.0.0.1",
            "smtpPort": server.smtp_port,
            "smtpUseTls": False,
        }
        async with running() as here, browser(here) as client:
            here.change(lambda config: config["channels"].update(email=places))
            answers = {"imap_username": USER, "imap_password": "wrong"}
            refused = await events_of(client, "email", answers=answers)
            wrong = await events_of(client, "email", answers=answers, agrees=True, untested=True)
            right = await events_of(client, "email", answers={"imap_password": PASSWORD})

    assert "needs your consent" in refused[-1]["text"]
    assert (wrong[-1]["type"], right[-1]["type"]) == ("done", "done")
    assert section(here, "email") == places | {
        "enabled": True,
        "consentGranted": True,
        "imapUsername": USER,
        "imapPassword": PASSWORD,
        "smtpUsername": USER,
        "smtpPassword": PASSWORD,
    }


async def test_a_chat_app_of_a_plugin_has_no_form(running: OpenGateway):
    async with running() as here, browser(here) as client:
        answers = [await client.get(f"/api/channels/{name}/form") for name in ("toy", "nothing")]

    assert [answer.status_code for answer in answers] == [404, 404]
