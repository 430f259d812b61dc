"""The views of the page in a real browser, each through what a person does there."""

import json
import re
from typing import Any

import pytest

from nanobot.agent.goals.goal import Goal, GoalOrder
from nanobot.agent.work import Requester, WorkState
from nanobot.bus.events import Address
from nanobot.testing import calls
from tests.fakes.tools import command, page
from tests.support.browser import Tabs, page_url, say
from tests.support.eventually import eventually
from tests.support.home import POSIX
from tests.support.memory import FACTS, MERGED, tidying
from tests.support.running_gateway import OpenGateway, Running
from tests.support.work import put_goal

expect: Any = pytest.importorskip("playwright.async_api", reason="playwright is not installed").expect
expect.set_options(timeout=15_000)
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("browser")]

PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
VIEWS = (
    "inbox", "now", "memory", "memory/changes", "memory/dreams", "jobs", "jobs/calendar", "jobs/history", "goals",
    "usage", "usage/model", "settings", "channels", "abilities", "people", "doctor", "chats",
)  # fmt: skip


async def visit(tab: Any, view: str) -> None:
    """Open a view, as its link does."""
    await tab.evaluate("view => { location.hash = `#/${view}` }", view)
    await expect(tab.locator(".view > *").first).to_be_visible()


def remember(here: Running, *facts: str) -> None:
    lines = "".join(f"- {fact}\n" for fact in facts)
    (here.home / "workspace" / "memory" / "MEMORY.md").write_text(f"## People\n\n{lines}", encoding="utf-8")


async def test_the_inbox_of_a_phone_counts_and_answers_what_waits(running: OpenGateway, tabs: Tabs):
    script = (calls(("web_page", {"url": "https://example.org/a"})), calls(("run", {"target": "make"})), "done")
    async with running(*script) as here:
        run = command()
        for tool in (page(), run):
            here.gateway.runtime.tools.register(tool)
        beside = await tabs.open(here)
        tab = await tabs.open(here, **PHONE)
        await visit(tab, "inbox")
        await expect(tab.get_by_text("Nothing waits for you")).to_be_visible()
        here.toy.write("may I?", message_id="1", sender="9")
        await say(beside, "run it")

        await expect(tab).to_have_title("(2) nanobot")
        await expect(tab.locator("link[rel=icon]")).to_have_attribute("href", re.compile("waiting"))
        await expect(tab.locator(".approval .arguments")).to_contain_text("make")
        await tab.wait_for_timeout(450)
        await tab.get_by_role("button", name="Yes, once").tap()
        await tab.get_by_role("button", name="Let in: 9").tap()
        await expect(tab.locator(".answered")).to_contain_text("was allowed once")
        await expect(tab).to_have_title("nanobot")
        await eventually(lambda: run.done == ["make"])
        assert not here.gateway.runtime.pairing.pending("toy")


async def test_a_press_right_after_a_request_appears_decides_nothing(running: OpenGateway, tabs: Tabs):
    async with running() as here:
        tab = await tabs.open(here)
        await visit(tab, "inbox")
        await tab.evaluate(
            """() => new MutationObserver((_, observer) => {
                const button = [...document.querySelectorAll(".row button")].at(-1);
                if (button) (observer.disconnect(), button.click(), (document.body.dataset.pressed = "yes"));
            }).observe(document.body, { childList: true, subtree: true })"""
        )
        here.toy.write("may I?", message_id="1", sender="9")
        await expect(tab.locator("body")).to_have_attribute("data-pressed", "yes")
        await tab.wait_for_timeout(500)

        assert here.gateway.runtime.pairing.pending("toy")
        await tab.get_by_role("button", name="Refuse: 9").click()
        await eventually(lambda: not here.gateway.runtime.pairing.pending("toy"))


async def test_a_chat_is_renamed_pinned_exported_deleted_and_taken_back_from_its_menu(running: OpenGateway, tabs: Tabs):
    async with running("one", "two") as here:
        tab = await tabs.open(here)
        links = tab.locator(".sessions a")
        await say(tab, "about pelicans")
        await expect(tab.locator(".message.turn .result")).to_be_visible()
        await tab.get_by_role("link", name="New chat", exact=True).click()
        await say(tab, "about herons")
        await expect(tab.locator(".message.turn .result")).to_be_visible()

        async def menu(title: str) -> None:
            await tab.locator(".session", has_text=title).hover()
            await tab.get_by_role("button", name=f"Menu of {title}").click()

        await menu("about pelicans")
        await tab.get_by_role("textbox", name="Title").fill("Birds")
        await tab.get_by_role("button", name="Rename").click()
        await expect(links).to_contain_text(["about herons", "Birds"])
        await menu("Birds")
        await tab.get_by_role("button", name="Pin").click()
        await expect(links).to_contain_text(["Birds", "about herons"])
        await menu("Birds")
        async with tab.expect_download() as download:
            await tab.get_by_role("link", name="Export as Markdown").click()
        assert "pelicans" in (await (await download.value).path()).read_text(encoding="utf-8")
        await menu("about herons")
        await tab.get_by_role("button", name="Delete").click()
        await expect(links).to_have_count(1)
        await tab.get_by_role("button", name="Undo").click()
        await expect(links).to_have_count(2)
        await menu("about herons")
        await tab.get_by_role("button", name="Delete").click()
        await tab.close()  # nothing can be taken back any more
        await eventually(lambda: len(here.gateway.runtime.sessions.list_sessions()) == 1)


async def test_archived_chats_are_found_and_come_back(running: OpenGateway, tabs: Tabs):
    async with running("They fly far.") as here:
        tab = await tabs.open(here)
        await say(tab, "about pelicans")
        await expect(tab.locator(".message.turn .result")).to_be_visible()
        await visit(tab, "chats")
        await tab.get_by_role("searchbox", name="Search all messages").fill("pelicans")
        await expect(tab.locator(".row")).to_contain_text("about pelicans")
        await tab.get_by_role("searchbox", name="Search all messages").fill("")
        await tab.locator(".session").hover()
        await tab.locator(".session .more").click()
        await tab.get_by_role("button", name="Archive").click()
        await tab.get_by_role("button", name="Bring back: about pelicans").click()

        await expect(tab.locator(".message.turn .markdown")).to_have_text("They fly far.")


async def test_now_shows_what_waits_and_stops_it(running: OpenGateway, tabs: Tabs):
    script = (calls(("web_page", {"url": "https://example.org/a"})), calls(("run", {"target": "make"})))
    async with running(*script) as here:
        for tool in (page(), command()):
            here.gateway.runtime.tools.register(tool)
        tab = await tabs.open(here)
        await say(tab, "run it")
        await expect(tab.locator(".approval")).to_be_visible()
        await visit(tab, "now")

        await expect(tab.get_by_role("main")).to_contain_text(re.compile("run it.*Waits for your answer", re.DOTALL))
        await tab.get_by_role("button", name="Stop: run it").click()
        await expect(tab.get_by_text("Nothing runs right now")).to_be_visible()
        await expect(tab.get_by_role("main")).to_contain_text(re.compile("Toy.*connected", re.DOTALL))


async def test_a_fact_is_found_edited_forgotten_and_brought_back(running: OpenGateway, tabs: Tabs):
    async with running() as here:
        remember(here, "Ana lives in Porto", "Tom likes tea")
        tab = await tabs.open(here)
        facts = tab.locator(".row .row-title")
        await visit(tab, "memory")
        await tab.get_by_role("searchbox", name="Search facts").fill("ana")
        await expect(facts).to_have_text(["Ana lives in Porto"])
        await tab.get_by_role("button", name="Edit: Ana").click()
        await tab.get_by_role("textbox", name="Fact").fill("Ana lives in Faro")
        await tab.get_by_role("button", name="Save").click()
        await expect(facts).to_have_text(["Ana lives in Faro"])
        await tab.get_by_role("button", name="Forget: Ana").click()
        await tab.get_by_role("button", name="Really forget?: Ana").click()
        await expect(facts).to_have_count(0)
        await tab.get_by_role("button", name="Undo the last change").click()
        await expect(facts).to_have_text(["Ana lives in Faro"])
        await tab.get_by_role("link", name="Changes").click()

        await expect(tab.locator(".row").nth(2)).to_contain_text(
            re.compile(r"Edited by a person.*- Ana lives in Porto.*\+ Ana lives in Faro", re.DOTALL)
        )


async def test_a_pass_of_dream_is_shown_as_a_diff_and_taken_back(running: OpenGateway, tabs: Tabs):
    async with running(tidying(MERGED)) as here:
        store = here.gateway.runtime.context.memory
        store.memory_file.write_text(FACTS, encoding="utf-8")
        store.append_history("Talked of home.")
        tab = await tabs.open(here)
        await visit(tab, "memory/dreams")
        await tab.get_by_role("button", name="Tidy now").click()
        await expect(tab.locator(".row .diff .removed")).to_have_text(["- Lives in Berlin.", "- Home: Berlin."])
        await tab.get_by_role("button", name="Take back: Pass 1").click()
        await tab.get_by_role("button", name="Later passes too. Sure?").click()

        await expect(tab.get_by_role("button", name="Take back")).to_have_count(0)
        assert store.memory_file.read_text(encoding="utf-8") == FACTS


async def test_a_job_is_added_in_words_seen_in_the_calendar_run_and_removed(running: OpenGateway, tabs: Tabs):
    async with running("Watered.") as here:
        tab = await tabs.open(here)
        await visit(tab, "jobs")
        await tab.get_by_label("What").fill("Water the plants")
        await tab.get_by_label("When").fill("every weekday at 7")
        await tab.get_by_role("button", name="Add").click()
        await expect(tab.locator(".row")).to_contain_text("every weekday at 07:00")
        await tab.get_by_role("button", name="Run now").click()
        await tab.get_by_role("link", name="History").click()
        await expect(tab.locator(".row")).to_contain_text("started by hand")
        await tab.get_by_role("link", name="Calendar").click()
        await tab.get_by_role("button", name="Next month").click()
        assert await tab.locator(".month .dots").count() >= 20
        await tab.get_by_role("link", name="Jobs").nth(1).click()
        await tab.get_by_role("button", name="Remove: Water the plants").click()
        await tab.get_by_role("button", name="Really remove?").click()
        await expect(tab.get_by_text("There is no job yet")).to_be_visible()
        await tab.get_by_label("What").fill("Never")
        await tab.get_by_label("When").fill("no such time")
        await tab.get_by_role("button", name="Add").click()

        await expect(tab.get_by_role("alert")).to_contain_text("no such time")


@POSIX
async def test_a_finding_of_the_doctor_has_its_command_to_copy_and_is_repaired(running: OpenGateway, tabs: Tabs):
    async with running() as here:
        tab = await tabs.open(here)
        await tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await visit(tab, "doctor")
        (here.home / "config.json").chmod(0o644)
        await tab.get_by_role("button", name="Check now").click()
        await tab.get_by_role("button", name="Repair: files.private").click(timeout=120_000)
        repair = tab.get_by_role("button", name="Repair: files.private")
        await expect(repair).to_have_count(0, timeout=120_000)
        assert (here.home / "config.json").stat().st_mode & 0o777 == 0o600
        command = tab.locator(".command").first
        await command.get_by_role("button", name="Copy").click()

        assert await tab.evaluate("navigator.clipboard.readText()") == await command.locator("code").inner_text()
        assert (await command.locator("code").inner_text()).split()[0] in ("nanobot", "sudo", "chmod")


WHEN = {
    "every 30 minutes": {"every_s": 1800},
    "every 2 hours": {"every_s": 7200},
    "every day at 18:30": {"cron": "30 18 * * *"},
    "Every weekday at 7": {"cron": "0 7 * * 1-5"},
    "daily 7pm": {"cron": "0 19 * * *"},
    "every day 12am": {"cron": "0 0 * * *"},
    "every monday and thursday 9:05": {"cron": "5 9 * * 1,4"},
    "每天 18:00": {"cron": "0 18 * * *"},
    "每个工作日 7:00": {"cron": "0 7 * * 1-5"},
    "每周一 9:00": {"cron": "0 9 * * 1"},
    "每 30 分钟": {"every_s": 1800},
    "每2小时": {"every_s": 7200},
    "0 18 * * *": {"cron": "0 18 * * *"},
    "*/5 9 * * 1-5": {"cron": "*/5 9 * * 1-5"},
    "tomorrow 9am": {"at": "tomorrow 9am"},
    "every blue moon": {"at": "every blue moon"},
}


async def test_words_say_when_a_job_runs(running: OpenGateway, tabs: Tabs):
    async with running() as here:
        tab = await tabs.open(here)
        read = await tab.evaluate(
            """async (texts) => {
                const { parseWhen } = await import(document.querySelector("meta[name=base]").content + "/app/when.js");
                return Object.fromEntries(texts.map((text) => [text, parseWhen(text)]));
            }""",
            list(WHEN),
        )

    assert read == WHEN


async def test_usage_is_shown_by_model_and_saved_as_csv(running: OpenGateway, tabs: Tabs):
    async with running("hi") as here:
        tab = await tabs.open(here)
        await say(tab, "hello")
        await expect(tab.locator(".message.turn .result")).to_be_visible()
        await visit(tab, "usage")
        await tab.get_by_role("link", name="Model").click()
        await expect(tab.locator(".bars tbody th")).to_have_text(["scripted"])
        await expect(tab.get_by_text(re.compile(", 1 call$")).first).to_be_visible()
        async with tab.expect_download() as download:
            await tab.get_by_role("button", name="Download CSV").click()

        header, line = (await (await download.value).path()).read_text(encoding="utf-8").splitlines()
        assert (header.split(",")[0], line.split(",")[0]) == ("model", "scripted")


async def test_an_answer_leads_to_its_steps_and_to_what_the_model_was_sent(running: OpenGateway, tabs: Tabs):
    async with running(calls(("list_dir", {"path": "."})), "two files") as here:
        tab = await tabs.open(here)
        await say(tab, "what is here?")
        await tab.get_by_role("link", name="Step by step").click()
        await expect(tab.locator(".timeline > li")).to_have_count(2)
        await expect(tab.locator(".timeline")).to_contain_text("list dir")
        await tab.get_by_text("Show", exact=True).click()
        await tab.get_by_text(re.compile("^user")).click()

        await expect(tab.locator(".sent").last).to_contain_text("what is here?")


async def test_a_turn_is_undone_and_asked_again_of_another_model(running: OpenGateway, tabs: Tabs):
    script = (calls(("write_file", {"path": "plan.md", "content": "one"})), "written", "again")
    async with running(*script) as here:
        file = here.home / "workspace" / "plan.md"
        tab = await tabs.open(here, viewport={"width": 320, "height": 640})
        await say(tab, "write a plan")
        await tab.get_by_role("link", name="Step by step").click()
        await tab.get_by_role("button", name="Undo its changes").click()
        await tab.get_by_role("button", name="Really undo?").click()
        await expect(tab.get_by_role("main").get_by_role("status").last).to_contain_text("deleted, as it was new")
        assert not file.exists()
        assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await tab.get_by_label("Run it again with").fill("other-model")
        await tab.get_by_role("button", name="Run in a branch").click()
        await expect(tab.get_by_text("A branch of")).to_be_visible()

        await expect(tab.locator(".message.turn .result")).to_contain_text("other-model")
        await expect(tab.locator(".message.turn .markdown")).to_have_text("again")


async def test_goals_show_what_each_used_and_why_it_waits(running: OpenGateway, tabs: Tabs):
    async with running() as here:
        order = GoalOrder("Plan the trip", Requester("web:trip", Address("web", "trip")))
        goal = Goal(id="g1", order=order, state=WorkState.WAITING, why="no hotel")
        goal.usage.steps = 12
        tab = await tabs.open(here)
        await visit(tab, "goals")
        await expect(tab.get_by_text("There is no goal yet")).to_be_visible()
        put_goal(here.home, goal)
        await visit(tab, "inbox")
        await expect(tab.locator(".row")).to_contain_text("no hotel")
        await visit(tab, "goals")

        await expect(tab.locator(".row")).to_contain_text(re.compile("Plan the trip.*12 of 200 steps", re.DOTALL))


async def test_a_setting_is_changed_a_secret_only_written_and_any_key_completed(running: OpenGateway, tabs: Tabs):
    async with running() as here:
        config = here.home / "config.json"
        tab = await tabs.open(here)
        await visit(tab, "settings")
        await tab.get_by_label("Steps of a turn").fill("7")
        await tab.get_by_label("Steps of a turn").press("Tab")
        await eventually(lambda: '"maxToolIterations": 7' in config.read_text(encoding="utf-8"))
        await tab.get_by_label("Dollars a day").fill("much")
        await tab.get_by_label("Dollars a day").press("Tab")
        await expect(tab.get_by_role("alert")).to_contain_text("limits.dailyUsd")
        await tab.get_by_label("Provider").last.select_option("openai")
        await tab.get_by_label("API key").fill("sk-very-secret-key-1234")
        await tab.get_by_label("API key").press("Tab")
        await tab.get_by_role("button", name="Save").first.click()
        await expect(tab.get_by_text("set; never shown again")).to_be_visible()
        key = tab.get_by_label("Key", exact=True)
        assert await tab.locator("#keys option[value='gateway.port']").count() == 1
        await key.fill("providers.openai")
        await expect(tab.get_by_label("Value as JSON")).to_have_value(re.compile("••••"))
        await tab.get_by_role("button", name="Save").last.click()
        await expect(tab.get_by_role("alert").last).to_contain_text("hidden secret")
        await key.fill("agents.defaults.botName")
        await tab.get_by_label("Value as JSON").fill('"Ada"')
        await tab.get_by_role("button", name="Save").last.click()
        await expect(tab.get_by_text("agents.defaults.botName is saved")).to_be_visible()

        assert "sk-very-secret" not in await tab.content()
        stored = json.loads(config.read_text(encoding="utf-8"))
        assert stored["providers"]["openai"]["apiKey"] == "sk-very-secret-key-1234"
        assert stored["agents"]["defaults"]["botName"] == "Ada"


async def test_a_second_browser_is_added_by_its_code_and_signed_out(running: OpenGateway, tabs: Tabs):
    async with running() as here:
        tab = await tabs.open(here)
        await visit(tab, "people")
        await tab.get_by_role("button", name="Add a device").click()
        await expect(tab.get_by_role("img", name="QR code of the link")).to_be_visible()
        phone = await (await tabs.device(page_url(here), **PHONE)).new_page()
        await phone.goto(await tab.locator(".link code").inner_text())
        await expect(phone.locator(".composer textarea")).to_be_visible()
        await tab.reload()
        await tab.locator(".row", has_not_text="this browser").get_by_role("button", name="Sign out").click()
        await tab.get_by_role("button", name="Really sign out?").click()
        await expect(tab.locator(".row", has_text="Sign out")).to_have_count(1)
        await phone.reload()

        await expect(phone.get_by_text("nanobot web").first).to_be_visible()


@pytest.mark.parametrize("language", ["en-GB", pytest.param("zh-CN", marks=pytest.mark.slow)])
async def test_every_view_fits_a_screen_of_320_pixels(running: OpenGateway, tabs: Tabs, language: str):
    async with running() as here:
        remember(here, "averyveryverylongwordthatdoesnotfitintoanarrowcolumnandhastobebrokensomewhereinitsmiddle")
        tab = await tabs.open(here, viewport={"width": 320, "height": 640}, locale=language)
        wide = []
        for view in VIEWS:
            await visit(tab, view)
            await expect(tab.locator(".view > .empty")).to_have_count(0)
            if await tab.evaluate("[document.documentElement, document.querySelector('.scroll')]"
                                  ".some((box) => box.scrollWidth > box.clientWidth)"):  # fmt: skip
                wide.append(view)

        assert wide == []
