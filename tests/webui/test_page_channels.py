"""Setting up chat apps in a real browser, at the fakes of their platforms."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.telegram import TOKEN, FakeTelegram
from tests.fakes.weixin import ANNA, WeixinPlatform
from tests.support.browser import Tabs
from tests.support.eventually import eventually
from tests.support.running_gateway import OpenGateway

expect: Any = pytest.importorskip("playwright.async_api", reason="playwright is not installed").expect
expect.set_options(timeout=15_000)
Axe: Any = pytest.importorskip("axe_playwright_python.async_playwright", reason="axe is not installed").Axe
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("browser")]

NARROW: dict[str, Any] = {"viewport": {"width": 320, "height": 640}, "has_touch": True, "is_mobile": True}


async def check(tab: Any) -> None:
    """No finding of axe, and nothing wider than the screen or the dialog."""
    results = await Axe().run(tab)
    found = [f"{each['id']}: {[node['html'] for node in each['nodes']]}" for each in results.response["violations"]]
    assert found == [], json.dumps(found, indent=1)
    assert await tab.evaluate("[document.documentElement, document.querySelector('dialog')]"
                              ".every((box) => box.scrollWidth <= box.clientWidth)")  # fmt: skip


async def test_a_token_is_corrected_and_the_chat_app_connects_while_one_looks(
    running: OpenGateway, tabs: Tabs, monkeypatch: pytest.MonkeyPatch
):
    async with FakeTelegram().open() as server:
        monkeypatch.setenv("NANOBOT_CHANNELS__TELEGRAM__API_BASE", server.url)
        async with running() as here:
            tab = await tabs.open(here, "/channels")
            opener = tab.get_by_role("button", name="Set up: Telegram")
            await opener.focus()
            await tab.keyboard.press("Enter")
            dialog = tab.get_by_role("dialog", name="Connect Telegram")
            await expect(dialog.get_by_role("link", name="https://t.me/BotFather")).to_be_visible()
            await dialog.get_by_label("Bot token").fill("1:wrong")
            await tab.keyboard.press("Enter")
            await expect(dialog.get_by_role("alert")).to_contain_text("The token is refused")
            await check(tab)
            await expect(dialog.get_by_label("Bot token")).to_have_value("1:wrong")
            await dialog.get_by_role("button", name="Save it anyway").click()
            await expect(dialog.get_by_text("needs you", exact=True)).to_be_visible()
            await dialog.get_by_role("button", name="Close").click()
            await tab.get_by_role("button", name="Set up again: Telegram").click()
            await dialog.get_by_label("Bot token").fill(TOKEN)
            await dialog.get_by_role("button", name="Connect").click()
            await expect(dialog.get_by_text("connected", exact=True)).to_be_visible()
            await expect(dialog.get_by_role("link", name="https://t.me/nano_test_bot")).to_be_visible()
            await expect(dialog.get_by_role("link", name="Inbox")).to_be_visible()
            await check(tab)
            await dialog.get_by_role("button", name="Close").click()
            await expect(dialog).to_have_count(0)
            await tab.get_by_role("button", name="Set up again: Telegram").click()
            await expect(dialog.get_by_label("Bot token")).to_have_value("")
            await expect(dialog.get_by_placeholder("set; never shown again")).to_be_visible()
            shown = await tab.content()
            await tab.keyboard.press("Escape")
            await expect(dialog).to_have_count(0)
            await tab.get_by_role("button", name="Switch off: Telegram").click()
            await tab.get_by_role("button", name="Really switch off?: Telegram").click()
            await expect(tab.get_by_role("button", name="Switch on: Telegram")).to_be_visible()

        assert TOKEN not in shown


@pytest.mark.parametrize("language", ["en-GB", pytest.param("zh-CN", marks=pytest.mark.slow)])
async def test_a_code_is_scanned_from_a_small_screen_and_closing_ends_the_login(
    running: OpenGateway, tabs: Tabs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, language: str
):
    monkeypatch.setattr("nanobot.channels.weixin.PAUSE_S", 0.01)
    (tmp_path / "platform").mkdir()
    async with WeixinPlatform(tmp_path / "platform").open() as platform:
        weixin = platform.server
        monkeypatch.setenv("NANOBOT_CHANNELS__WEIXIN__BASE_URL", weixin.url)
        async with running() as here:
            tab = await tabs.open(here, "/channels", locale=language, **NARROW)
            is_english = language == "en-GB"
            opener = tab.get_by_role("button", name="Set up: WeChat" if is_english else "设置: WeChat")
            show = tab.get_by_role("button", name="Show the code to scan" if is_english else "显示二维码")
            code = tab.locator("dialog .qr")
            await opener.click()
            await show.click()
            await expect(code).to_be_visible()
            await check(tab)
            first = await code.inner_html()
            weixin.statuses.append({"status": "expired"})
            await expect(code).not_to_have_js_property("innerHTML", first)
            await tab.get_by_role("button", name="Cancel" if is_english else "取消").click()
            polled = len(weixin.requests)
            await tab.wait_for_timeout(1000)
            assert len(weixin.requests) <= polled + 2  # those on their way

            confirmed = {"status": "confirmed", "bot_token": weixin.token, "baseurl": weixin.url}
            weixin.statuses.extend([{"status": "need_verifycode"}, confirmed | {"ilink_user_id": ANNA}])
            await opener.click()
            await show.click()
            await expect(tab.get_by_label("The number on your phone")).to_be_visible()
            await check(tab)
            await tab.get_by_label("The number on your phone").fill("42")
            await tab.keyboard.press("Enter")
            await expect(tab.locator("dialog .mark.good")).to_be_visible()
            await check(tab)
            await eventually(lambda: weixin.numbers == ["42"])
