"""The chats without JavaScript: over HTTP, and in a browser that runs none."""

import html
import re
from typing import Any

import httpx
import pytest

from nanobot.testing import calls
from tests.support.running_gateway import OpenGateway
from tests.support.web_client import browser, follow

ANSWER = """# The plan

**Bold** and `code`.

| Train | Fare |
| :-- | --: |
| Hikari | 13320 |

```sh
curl -o timetable-of-the-whole-year.pdf https://rail.example/a-very-long-address/that-does-not-fit.pdf
```

![pixel](https://evil.example/pixel.png) [run](javascript:alert(1)) <b onclick="alert(2)">raw</b>
"""


async def ask(client: httpx.AsyncClient, text: str, **message: Any) -> None:
    before = (await client.get("/api/sessions/web:one/rows")).json()["feed"]
    await client.post("/api/sessions/web:one/messages", json={"id": f"id-{text}-1234", "text": text, **message})
    await follow(client, before, "turn_ended")


async def test_a_chat_is_read_without_javascript(running: OpenGateway):
    picture: dict[str, Any] = {"content": b"\x89PNG\r\n\x1a\n" + bytes(40), "headers": {"x-file-name": "map.png"}}
    async with running(calls(("list_dir", {"path": "<here>"})), ANSWER) as here, browser(here) as client:
        file = (await client.post("/api/files", **picture)).json()
        await ask(client, "<i>plan</i> it", files=[file["id"]])
        listed = await client.get("/s")
        [address] = re.findall(r'<li[^>]*><a href="(/s/[^"]+)"', listed.text)
        shown = await client.get(address)
        chinese = await client.get(address, headers={"accept-language": "zh-CN,zh;q=0.9"})
        [source] = re.findall(r'<img src="([^"]+)"', shown.text)
        image = await client.get(source)

    assert "&lt;i&gt;plan&lt;/i&gt; it" in shown.text
    assert "<h3>The plan</h3>" in shown.text
    assert "<strong>Bold</strong>" in shown.text
    assert "<td" in shown.text and "13320" in shown.text
    assert "list dir" in shown.text and "&lt;here&gt;" in shown.text and "<here>" not in shown.text
    assert (image.status_code, image.headers["content-type"]) == (200, "image/png")
    assert "pixel (picture on evil.example)" in html.unescape(shown.text)
    assert set(re.findall(r'(?:src|href)="(\w+:)', shown.text)) == {"https:"}
    assert "<script" not in shown.text and "<b onclick" not in shown.text
    assert "script-src" not in shown.headers["content-security-policy"]
    assert shown.headers["content-security-policy"].startswith("default-src 'none'")
    assert shown.headers["cache-control"] == "no-store"
    assert '<h1 dir="auto">&lt;i&gt;plan&lt;/i&gt; it</h1>' in shown.text
    assert 'lang="zh-Hans"' in chinese.text and "所有聊天" in chinese.text


async def test_older_messages_are_a_link_away_and_archived_chats_too(running: OpenGateway):
    async with running() as here, browser(here) as client:
        sessions = here.gateway.runtime.sessions
        session = sessions.get_or_create("web:long")
        for number in range(80):
            session.add_message("user", f"question {number}.")
            session.add_message("assistant", f"answer {number}.")
        sessions.save(session)
        newest = (await client.get("/s/web:long")).text
        [older] = re.findall(r'href="(/s/[^"]+\?before=\d+)"', newest)
        oldest = (await client.get(older)).text
        sessions.archive("web:long")
        [archived] = re.findall(r'<li[^>]*><a href="(/s/[^"]+)"', (await client.get("/s")).text)
        kept = (await client.get(archived)).text

    assert "answer 79." in newest and "question 1." not in newest
    assert "question 1." in oldest and "answer 79." not in oldest
    assert "answer 79." in kept


async def test_who_is_not_signed_in_or_asks_for_no_chat_reads_why(running: OpenGateway):
    async with running() as here, browser(here) as client:
        missing = await client.get("/s/web:none")
        shell = await client.get("/")
        async with httpx.AsyncClient(base_url=client.base_url, trust_env=False) as stranger:
            refused = [await stranger.get(path) for path in ("/s", "/s/web:none")]

    assert [answer.status_code for answer in (missing, *refused)] == [404, 401, 401]
    assert all(answer.headers["content-type"].startswith("text/html") for answer in (missing, *refused))
    assert "There is no chat" in missing.text
    assert "nanobot web" in refused[0].text
    without = shell.text.partition("<noscript>")[2].partition("</noscript>")[0]
    assert without.count('href="/s"') == 2  # in both languages


@pytest.mark.xdist_group("browser")
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("language", ["en-GB", pytest.param("zh-CN", marks=pytest.mark.slow)])
async def test_a_browser_without_javascript_leads_from_the_page_to_a_chat(
    running: OpenGateway, tabs: Any, language: str
):
    api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
    axe = pytest.importorskip("axe_playwright_python.async_playwright", reason="axe is not installed").Axe
    async with running(ANSWER) as here:
        signed_in = await tabs.open(here, viewport={"width": 320, "height": 640}, locale=language)
        await signed_in.fill(".composer textarea", "plan it")
        await signed_in.click(".composer button[type=submit]")
        await api.expect(signed_in.locator(".message.turn .result")).to_be_visible()
        url = signed_in.url.partition("#")[0]
        still = await tabs.device(url, java_script_enabled=False, viewport={"width": 320, "height": 640})
        await still.add_cookies(await signed_in.context.cookies())
        tab = await still.new_page()
        await tab.goto(url)
        await tab.locator("noscript a").first.click()
        await tab.get_by_role("link", name="plan it").click()
        await api.expect(tab.locator(".message.turn td").last).to_have_text("13320")
        await api.expect(tab.locator(".message.turn td").last).to_have_css("text-align", "right")
        await signed_in.goto(tab.url)
        results = await axe().run(signed_in)

        assert await signed_in.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert results.response["violations"] == []
