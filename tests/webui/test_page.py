"""The page in a real browser: signing in, chatting, lost lines, approvals, files, branches."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nanobot.providers.base import LLMResponse
from nanobot.testing import calls
from nanobot.testing.model_server import FakeModels, Hang, Say
from tests.fakes.tools import command, page
from tests.support.browser import Tabs, Typist, page_url, say
from tests.support.eventually import eventually
from tests.support.home import POSIX
from tests.support.running_gateway import OpenGateway, Running
from tests.support.toy_gateway import GatewayHome
from tests.support.web_client import one_time_key

expect: Any = pytest.importorskip("playwright.async_api", reason="playwright is not installed").expect
expect.set_options(timeout=15_000)
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("browser")]

PICTURE = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c63f8cfc0f01f0005000101a3d2a0c10000000049454e44ae426082"
)


def answers(tab: Any) -> Any:
    return tab.locator(".message.turn .markdown")


async def texts(tab: Any, selector: str) -> list[str]:
    found: list[str] = await tab.locator(selector).all_inner_texts()
    return [text.strip() for text in found]


def with_approval(here: Running) -> Any:
    """Register the tools of `ASKS`; return the one that needs approval."""
    run = command()
    for tool in (page(), run):
        here.gateway.runtime.tools.register(tool)
    return run


ASKS = (calls(("web_page", {"url": "https://example.org/a"})), calls(("run", {"target": "make"})))
"""A page is read, then a command needs the owner's approval."""


async def test_a_link_signs_one_browser_in_and_works_once(running: OpenGateway, tabs: Tabs):
    async with running() as here:
        url = page_url(here)
        link = f"{url}/#k={await one_time_key(here)}"
        first = await (await tabs.device(url)).new_page()
        await first.goto(link)
        await expect(first.locator(".composer textarea")).to_be_visible()
        second = await (await tabs.device(url)).new_page()
        await second.goto(link)

        await expect(second.get_by_role("alert")).to_contain_text("nanobot web")
        assert "#k=" not in first.url
        assert "#k=" not in second.url


async def test_a_session_opened_while_its_answer_streams_shows_each_word_once(running: OpenGateway, tabs: Tabs):
    words = [f"word{number} " for number in range(400)]
    model = Typist(words)
    async with running(provider=model) as here:
        tab = await tabs.open(here)
        await say(tab, "Tell me much")
        for _ in range(5):  # each time another part of the stream is in the snapshot
            await tab.evaluate("location.hash = '#/chat'")
            await tab.locator(".sessions a").click()
            await expect(answers(tab)).not_to_have_text("")

        await expect(tab.locator(".message.turn .result")).to_be_visible()
        assert (await answers(tab).inner_text()).split() == [word.strip() for word in words]
        await expect(tab.locator(".message.turn .meta")).to_be_in_viewport()


async def test_a_message_written_without_a_line_is_heard_once_when_it_is_back(running: OpenGateway, tabs: Tabs):
    async with running("first", "second") as here:
        tab = await tabs.open(here)
        device = tab.context
        await say(tab, "one")
        await expect(answers(tab)).to_have_text("first")
        await device.set_offline(True)
        await say(tab, "two")
        await expect(tab.get_by_text("waiting for the connection")).to_be_visible()
        await tab.close()
        await device.set_offline(False)
        again = await device.new_page()
        await again.goto(tab.url)

        await expect(answers(again)).to_have_text(["first", "second"])
        assert await texts(again, ".own-text") == ["one", "two"]
        assert len(here.model.requests) == 2


async def test_half_a_minute_offline_during_an_answer_loses_and_repeats_nothing(running: OpenGateway, tabs: Tabs):
    gate = asyncio.Event()
    model = Typist(["The first half, ", gate, "and the second."], ["Yes."])
    async with running(provider=model) as here:
        tab = await tabs.open(here)
        await tab.clock.install()
        await tab.reload()
        await say(tab, "Answer slowly")
        await expect(answers(tab)).to_have_text("The first half,")
        await tab.context.set_offline(True)
        await expect(tab.get_by_text("No connection to the gateway")).to_be_visible()
        gate.set()
        await say(tab, "Are you there?")
        await expect(tab.get_by_text("waiting for the connection")).to_be_visible()
        await tab.clock.fast_forward(30_000)
        assert len(model.requests) == 1
        await tab.context.set_offline(False)

        await expect(answers(tab)).to_have_text(["The first half, and the second.", "Yes."])
        await expect(tab.get_by_text("No connection to the gateway")).to_have_count(0)
        assert await texts(tab, ".own-text") == ["Answer slowly", "Are you there?"]
        assert len(model.requests) == 2


@POSIX
@pytest.mark.slow
async def test_the_page_goes_on_by_itself_after_the_gateway_was_killed_during_an_answer(tabs: Tabs, tmp_path: Path):
    with FakeModels() as server:
        server.script(Hang(after="It takes **two "), Say("hours** and a half."))
        home = GatewayHome(tmp_path, server)
        with home.gateway() as process:
            link = home.run("web", "--no-open").out.strip()
            tab = await (await tabs.device(link)).new_page()
            await tab.goto(link)
            await say(tab, "Answer slowly")
            await expect(answers(tab)).to_have_text("It takes two")
            await tab.wait_for_timeout(300)  # what was shown for a moment is stored
            process.kill()
            await expect(tab.get_by_text("No connection to the gateway")).to_be_visible()
        with home.gateway():
            for _ in range(2):
                await expect(answers(tab)).to_have_text("It takes two hours and a half.")
                await expect(tab.locator(".message.turn .result")).to_be_visible()
                assert await texts(tab, ".markdown strong") == ["two hours"]
                assert await texts(tab, ".own-text") == ["Answer slowly"]
                await tab.reload()
        assert len(server.chats) == 2


async def test_the_page_goes_on_when_the_gateway_is_started_anew_during_an_answer(
    running: OpenGateway, tabs: Tabs, tmp_path: Path
):
    gate = asyncio.Event()
    async with running(provider=Typist(["Half an ", gate])) as here:
        port = here.gateway.http.port
        tab = await tabs.open(here)
        await say(tab, "Answer slowly")
        await expect(answers(tab)).to_have_text("Half an")
    await expect(tab.get_by_text("No connection to the gateway")).to_be_visible()
    await say(tab, "Are you there?")
    async with running(provider=Typist(["hour."], ["Yes."]), gateway={"port": port}) as here:
        await expect(answers(tab)).to_have_text(["Half an hour.", "Yes."])
        assert await texts(tab, ".own-text") == ["Answer slowly", "Are you there?"]


async def test_an_answer_in_one_tab_closes_the_question_in_the_others(running: OpenGateway, tabs: Tabs):
    async with running(*ASKS, "done") as here:
        run = with_approval(here)
        tab = await tabs.open(here)
        await say(tab, "run it")
        await expect(tab.locator(".approval")).to_contain_text("make")
        path = tab.url.partition("#")[2]
        beside = await tabs.open(here, path, context=tab.context)
        phone = await tabs.open(here, path)
        for other in (beside, phone):
            await expect(other.locator(".approval")).to_be_visible()
        await tab.wait_for_timeout(450)
        await tab.get_by_role("button", name="Yes, once").click()

        for each in (tab, beside, phone):
            await expect(each.locator(".answered")).to_contain_text("was allowed once")
            await expect(answers(each)).to_have_text("done")
        assert run.done == ["make"]
        streams = [url for url in tabs.requests if "/api/feed" in url]
        assert len(streams) == 2, "one stream for each browser"


async def test_a_question_shows_lists_and_objects_exactly(running: OpenGateway, tabs: Tabs):
    files = ["a b.txt", "7", 7, True, None, "true", " x", []]
    deep: Any = {"files": files, "rule": {"host": "a.example", "ports": [80]}}
    script = (
        calls(("web_page", {"url": "https://example.org/a"})),
        calls(("run", {"target": "make\nall", "options": deep, "text": "y" * 30_000})),
        "done",
    )
    async with running(*script) as here:
        with_approval(here).parameters["properties"]["options"] = {"type": "object"}
        tab = await tabs.open(here, viewport={"width": 320, "height": 640})
        await say(tab, "run it")
        card = tab.locator(".approval > .arguments")
        await expect(card).to_be_visible()

        assert await card.locator(".values > li").all_inner_texts() == [
            "a b.txt", '"7"', "7", "true", "null", '"true"', '" x"', "[]", "80",
        ]  # fmt: skip
        assert await card.locator("dt").all_inner_texts() == [
            "target", "options", "files", "rule", "host", "ports", "text",
        ]  # fmt: skip
        assert "make\nall" in await card.inner_text()
        assert "y" * 30_000 in str(await card.text_content())
        assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_approval_buttons_do_nothing_in_the_moment_they_appear(running: OpenGateway, tabs: Tabs):
    async with running(*ASKS, "not run") as here:
        run = with_approval(here)
        tab = await tabs.open(here)
        await tab.evaluate(
            """new MutationObserver((_, observer) => {
                 const button = document.querySelector(".approval button");
                 if (button) { button.click(); observer.disconnect(); document.body.dataset.clicked = "yes"; }
               }).observe(document.body, {childList: true, subtree: true})"""
        )
        await say(tab, "run it")
        await expect(tab.locator("body[data-clicked]")).to_be_attached()
        await expect(tab.locator(".approval")).to_be_visible()
        await tab.wait_for_timeout(450)
        await tab.get_by_role("button", name="No").click()

        await expect(tab.locator(".answered")).to_contain_text("was refused")
        await expect(answers(tab)).to_have_text("not run")
        assert run.done == []


async def test_the_keyboard_is_enough_from_the_link_to_an_approval(running: OpenGateway, tabs: Tabs):
    async with running(*ASKS, "done") as here:
        run = with_approval(here)
        url = page_url(here)
        tab = await (await tabs.device(url)).new_page()
        await tab.goto(url)
        await expect(tab.get_by_role("textbox")).to_be_visible()
        await tab.keyboard.press("Tab")
        await tab.keyboard.type(f"{url}/#k={await one_time_key(here)}")
        await tab.keyboard.press("Enter")
        await expect(tab.locator(".composer textarea")).to_be_focused()
        await tab.keyboard.type("run it")
        await tab.keyboard.press("Enter")
        await expect(tab.locator(".approval")).to_be_visible()
        await tab.wait_for_timeout(450)
        for _ in range(20):
            if await tab.evaluate("document.activeElement.className === 'approval'"):
                break
            await tab.keyboard.press("Shift+Tab")
        await tab.keyboard.press("y")
        await expect(answers(tab)).to_have_text("done")
        await tab.keyboard.press("Control+k")
        await expect(tab.locator("dialog input")).to_be_focused()
        await tab.keyboard.type("new")
        await tab.keyboard.press("Enter")

        await expect(tab.locator(".welcome")).to_be_visible()
        assert run.done == ["make"]


async def test_a_chat_of_another_channel_is_live_and_answered_there(running: OpenGateway, tabs: Tabs):
    async with running("hi from the bot", "hello again") as here:
        tab = await tabs.open(here)
        here.toy.write("hello from the toy", message_id="1")
        await tab.locator(".sessions a", has_text="hello from the toy").click()
        await expect(answers(tab)).to_have_text("hi from the bot")
        await expect(tab.locator(".composer-note")).to_contain_text("Toy")
        await say(tab, "and from the page")
        await expect(answers(tab)).to_have_count(2)

        await eventually(lambda: here.toy.got() == ["hi from the bot", "hello again"])


async def test_a_message_during_an_answer_joins_it_and_stop_ends_it(running: OpenGateway, tabs: Tabs):
    async with running(provider=Typist(["I begin ", asyncio.Event()])) as here:
        tab = await tabs.open(here)
        await say(tab, "Work")
        await expect(answers(tab)).to_have_text("I begin")
        await say(tab, "Hurry")
        await expect(tab.get_by_text("waits for the running answer")).to_be_visible()
        await tab.get_by_role("button", name="Stop").click()

        await expect(tab.get_by_text("Stopped.")).to_be_visible()
        await expect(answers(tab).first).to_have_text("I begin")


async def test_an_edited_message_and_a_second_answer_are_branches(running: OpenGateway, tabs: Tabs):
    async with running("Five days in Kyoto", "Three days in Kyoto", "Three other days") as here:
        tab = await tabs.open(here)
        await say(tab, "Plan five days")
        await expect(answers(tab)).to_have_text("Five days in Kyoto")
        first = tab.url
        await tab.locator(".message.user").hover()
        await tab.get_by_role("button", name="Edit").click()
        await expect(tab.locator(".composer textarea")).to_have_value("Plan five days")
        await say(tab, "Plan three days")
        await expect(answers(tab)).to_have_text("Three days in Kyoto")
        await tab.get_by_role("button", name="Answer again").click()
        await expect(answers(tab)).to_have_text("Three other days")
        assert await texts(tab, ".own-text") == ["Plan three days"]
        await tab.goto(first)

        await expect(answers(tab)).to_have_text("Five days in Kyoto")
        assert await texts(tab, ".own-text") == ["Plan five days"]
        asked = [str(row["content"]).splitlines()[0] for row in here.model.requests[-1] if row["role"] == "user"]
        assert asked == ["Plan three days"]


async def test_files_go_in_by_drop_and_paste_and_come_out(running: OpenGateway, tabs: Tabs):
    async with running(calls(("message", {"content": "Here", "media": ["report.txt"]})), "Seen") as here:
        (here.home / "workspace" / "report.txt").write_text("All is well.", encoding="utf-8")
        tab = await tabs.open(here)
        put = """([name, type, bytes, how]) => {
          const data = new DataTransfer();
          data.items.add(new File([new Uint8Array(bytes)], name, { type }));
          const [target, event] = how === "paste"
            ? ["textarea", new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true })]
            : [".chat", new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true })];
          document.querySelector(target).dispatchEvent(event);
        }"""
        await tab.evaluate(put, ["dot.png", "image/png", [*PICTURE], "paste"])
        await tab.evaluate(put, ["notes.txt", "text/plain", [*b"Buy milk"], "drop"])
        await expect(tab.locator(".chips li")).to_have_count(2)
        await say(tab, "Look at these")
        await expect(answers(tab).last).to_have_text("Seen")
        await expect(tab.locator(".message.user img")).to_be_visible()
        assert await tab.locator(".message.user img").evaluate("image => image.naturalWidth") == 1
        async with tab.expect_download() as downloading:
            await tab.locator(".message.turn a.file").click()
        download = await downloading.value

        assert Path(await download.path()).read_text(encoding="utf-8") == "All is well."
        sent = next(row for row in here.model.requests[0] if row["role"] == "user")
        media = sent["media"]
        assert [Path(path).read_bytes() for path in media] == [PICTURE, b"Buy milk"]
        assert await texts(tab, ".own-text") == ["Look at these"]


async def test_commands_have_a_menu_and_their_answers_are_shown(running: OpenGateway, tabs: Tabs):
    async with running() as here:
        tab = await tabs.open(here)
        await tab.keyboard.press("Escape")
        await tab.locator("main").focus()
        await tab.keyboard.press("/")
        await tab.keyboard.type("stat")
        await expect(tab.get_by_role("option")).to_have_count(1)
        await tab.keyboard.press("Enter")
        await expect(tab.locator(".composer textarea")).to_have_value("/status ")
        await tab.keyboard.press("Enter")

        await expect(answers(tab)).to_contain_text("Model: scripted")
        await expect(tab.get_by_text("waiting for the connection")).to_have_count(0)


SLOW_FEED = """
    const listen = EventSource.prototype.addEventListener;
    EventSource.prototype.addEventListener = function (type, listener) {
        listen.call(this, type, (event) => setTimeout(() => listener(event), 400));
    };"""


async def test_a_command_is_answered_though_its_events_come_after_the_messages(running: OpenGateway, tabs: Tabs):
    async with running() as here:
        device = await tabs.device(page_url(here))
        await device.add_init_script(SLOW_FEED)
        tab = await device.new_page()
        await tab.goto(f"{page_url(here)}/#k={await one_time_key(here)}")
        await tab.wait_for_selector(".composer textarea")
        await tab.evaluate(
            """async () => {
                const base = document.querySelector("meta[name=base]").content;
                const { post, sessionPath } = await import(`${base}/app/api.js`);
                await post(sessionPath("web:1", "messages"), { id: "message-1", text: "/status" });
                await new Promise((resolve) => setTimeout(resolve, 150));
                location.hash = "/chat/web%3A1";
            }"""
        )

        await expect(answers(tab)).to_contain_text("Model: scripted")


async def test_the_enter_that_ends_a_composition_sends_nothing(running: OpenGateway, tabs: Tabs):
    async with running("好的") as here:
        tab = await tabs.open(here)
        await tab.fill(".composer textarea", "你好")
        await tab.evaluate(
            """document.querySelector(".composer textarea").dispatchEvent(
                 new KeyboardEvent("keydown", {key: "Enter", keyCode: 229, isComposing: true, bubbles: true}))"""
        )
        await expect(tab.locator(".composer textarea")).to_have_value("你好")
        await tab.press(".composer textarea", "Enter")

        await expect(answers(tab)).to_have_text("好的")
        assert len(here.model.requests) == 1


async def test_a_draft_survives_a_reload(running: OpenGateway, tabs: Tabs):
    async with running() as here:
        tab = await tabs.open(here)
        await tab.fill(".composer textarea", "Half a thought")
        await tab.wait_for_timeout(600)
        await tab.reload()

        await expect(tab.locator(".composer textarea")).to_have_value("Half a thought")


async def test_steps_open_to_their_arguments_and_output_and_reasoning_is_folded(running: OpenGateway, tabs: Tabs):
    edit = {"path": "notes.txt", "old_text": "tea", "new_text": "coffee"}
    script = (calls(("edit_file", edit)), LLMResponse("Changed.", reasoning_content="They prefer coffee."))
    async with running(*script) as here:
        (here.home / "workspace" / "notes.txt").write_text("Buy tea", encoding="utf-8")
        tab = await tabs.open(here)
        await say(tab, "I prefer coffee")
        await expect(answers(tab)).to_have_text("Changed.")
        assert "They prefer coffee." not in await tab.inner_text(".message.turn")
        step, thought = tab.locator(".step summary").all(), tab.locator(".step.reasoning")
        await (await step)[0].click()
        await thought.locator("summary").click()

        await expect(tab.locator(".diff .removed").first).to_contain_text("tea")
        await expect(tab.locator(".diff .added").first).to_contain_text("coffee")
        await expect(thought).to_contain_text("They prefer coffee.")


async def test_a_failed_turn_says_why_also_after_a_reload(running: OpenGateway, tabs: Tabs):
    async with running(ValueError("the model is broken")) as here:
        tab = await tabs.open(here)
        await say(tab, "hello")
        await expect(tab.locator(".message.turn .error")).to_contain_text("broken")
        await tab.reload()

        await expect(tab.locator(".message.turn .error")).to_contain_text("broken")
        await expect(tab.locator(".message.turn")).not_to_contain_text("No answer")
