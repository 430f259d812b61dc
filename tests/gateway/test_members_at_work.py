"""What lives in the gateway beside the channels: jobs run and are told, the heartbeat does what HEARTBEAT.md asks."""

import asyncio
import json
import re
import signal
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nanobot.cron.service import CronService
from nanobot.cron.types import CronJob, CronSchedule
from nanobot.messages.types import text_of
from nanobot.providers.errors import AuthenticationError
from nanobot.testing import calls
from nanobot.testing.model_server import Calls, FakeModels, Fitting, Hang, Say, Step
from tests.support.eventually import eventually, wait_until
from tests.support.home import POSIX, ended
from tests.support.running_gateway import OpenGateway, Running
from tests.support.toy_gateway import GatewayHome, free_port, written

TO_SEVEN: dict[str, Any] = {"deliver": True, "channel": "toy", "to": "7"}
REMIND = calls(("cron", {"action": "add", "message": "Remind them of the tea.", "every_seconds": 3600}))


async def added(here: Running, message: str, **options: Any) -> CronJob:
    """A job that is due in an hour."""
    cron, hourly = here.gateway.runtime.cron(), CronSchedule("every", every_ms=3_600_000)
    await eventually(lambda: cron.on_job)  # the member that runs jobs has started
    return await asyncio.to_thread(lambda: cron.add_job(message, hourly, message, **options))


async def run_only_job(here: Running) -> None:
    cron = here.gateway.runtime.cron()
    (job,) = await asyncio.to_thread(cron.list_jobs)
    assert await cron.run_job(job.id)


async def test_the_log_names_a_job_that_ran_and_has_one_warning_for_one_that_failed(running: OpenGateway, caplog):
    caplog.set_level("INFO")
    async with running("Water them.", AuthenticationError()) as here:
        job = await added(here, "Water the plants", **TO_SEVEN)
        assert await here.gateway.runtime.cron().run_job(job.id)
        assert await here.gateway.runtime.cron().run_job(job.id)

    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert any(
        level == "INFO" and re.match(r"job 'Water the plants' \(\w+\) answered in", text) for level, text in told
    )
    [warning] = [text for level, text in told if level == "WARNING" and "API key was rejected" in text]
    assert re.match(r"job 'Water the plants' \(\w+\) failed after \d", warning, re.IGNORECASE)
    assert "cron:" not in caplog.text
    assert re.match(
        r"Reminder, \d\d:\d\d: Water the plants\n\n\(No model answered, so this is its text alone\. .*"
        r"The API key was rejected .*\)",
        here.toy.got("7")[1],
    )


async def test_job_runs_on_time_though_its_report_waits_for_a_chat_that_is_offline(
    running: OpenGateway, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("nanobot.gateway.jobs.DELIVERY_S", 0.1)
    websocket = {"enabled": True, "port": free_port(), "clients": {"anna": {"token": "a" * 32}}, "allowFrom": ["anna"]}
    async with running("one", "two", channels={"websocket": websocket}) as here:
        job = await added(here, "make tea", deliver=True, channel="websocket", to="anna")
        for _ in range(2):
            assert await here.gateway.runtime.cron().run_job(job.id)
        history = await asyncio.to_thread(here.gateway.runtime.cron().history, job.id)

    assert [row.outcome for row in history] == ["ran", "ran"]


async def test_a_scheduler_that_ticks_no_more_is_started_again(running: OpenGateway, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("nanobot.gateway.jobs._STALE_S", 0.05)
    monkeypatch.setattr(CronService, "tick_age_s", 99.0)
    async with running() as here:
        jobs = here.gateway.supervisor.tasks["jobs"]
        await eventually(lambda: jobs.restarts)

    assert "no activity for 99 s" in jobs.last_error


async def test_the_job_of_one_who_may_not_speak_any_more_is_switched_off_and_the_owner_is_told_once(
    running: OpenGateway, tmp_path: Path
):
    toy = {"enabled": True, "folder": str(tmp_path / "toy"), "allowFrom": []}
    off = {"approval": "off"}  # so that others than the owner may make jobs
    async with running(REMIND, "I will.", "Tea!", "Mine!", channels={"toy": toy}, tools=off) as here:
        people = {"owners": {"toy": ["1"]}, "approved": {"toy": ["1", "7"]}}
        written(here.home / "pairing.json", people)
        here.toy.write("remind me of the tea", message_id="1")
        await eventually(lambda: here.toy.got("7"))
        await run_only_job(here)
        here.pair(toy=["1"])
        await run_only_job(here)
        await eventually(lambda: here.toy.got("1"))
        own = await added(here, "make tea", deliver=True, channel="toy", to="9")
        assert await here.gateway.runtime.cron().run_job(own.id)
        await eventually(lambda: here.toy.got("9"))
        jobs = await asyncio.to_thread(here.gateway.runtime.cron().list_jobs, True)

    assert len(here.toy.got("7")) == 2
    (word,) = here.toy.got("1")
    assert "'7', who asked for it, is no longer allowed on toy" in word
    assert {job.name: job.enabled for job in jobs} == {"Remind them of the tea.": False, "make tea": True}


async def test_a_silent_job_sends_nothing_whatever_its_turn_tries(running: OpenGateway):
    psst = calls(("message", {"content": "psst", "channel": "toy", "chat_id": "7"}))
    async with running(psst, "Done in silence.") as here:
        await added(here, "tidy up")
        await run_only_job(here)

    assert here.toy.got() == []
    assert "Nothing was sent" in text_of(here.model.requests[-1][-1]["content"])


async def test_the_agent_writes_to_another_chat_and_knows_that_it_arrived(running: OpenGateway):
    dinner = calls(("message", {"content": "Dinner at eight.", "channel": "toy", "chat_id": "9"}))
    nowhere = calls(("message", {"content": "And you?", "channel": "toy", "chat_id": "nowhere"}))
    async with running(dinner, nowhere, "I told them.") as here:
        here.pair(toy=["7"])
        here.toy.write("tell the others", message_id="1")
        await eventually(lambda: "I told them." in here.toy.got("7"))

    assert here.toy.got("9") == ["Dinner at eight."]
    assert "Delivered to toy:9" in text_of(here.model.requests[1][-1]["content"])
    assert "there is no such chat" in text_of(here.model.requests[2][-1]["content"])


@pytest.mark.parametrize("is_refused", [False, True])
async def test_the_heartbeat_works_on_a_task_and_tells_the_chat_the_config_names(
    running: OpenGateway, is_refused: bool
):
    decision = {"action": "run", "tasks": "look after the kettle", "again_in_minutes": 60}
    script = [AuthenticationError("bad key")] if is_refused else [calls(("heartbeat", decision)), "The kettle is on."]
    settings = {"port": free_port(), "heartbeat": {"intervalS": 1, "channel": "toy", "to": "7"}}
    async with running(*script, gateway=settings) as here:
        (here.home / "workspace" / "HEARTBEAT.md").write_text("- [ ] look after the kettle\n", encoding="utf-8")
        await eventually(here.toy.got)
        await asyncio.sleep(1.2)  # the next look comes before the time that was named, and asks nobody

    [said] = here.toy.got("7")
    assert said == "The kettle is on." if not is_refused else said.startswith("The heartbeat is paused since ")
    assert len(here.model.requests) == (1 if is_refused else 2)


@pytest.mark.parametrize(("allowed", "is_told"), [("7", True), ("*", False)], ids=["its owner", "anybody"])
async def test_the_heartbeat_tells_the_last_private_chat_only_if_it_is_the_owners(
    running: OpenGateway, allowed: str, is_told: bool
):
    decision = {"action": "run", "tasks": "look after the kettle", "again_in_minutes": 60}
    script = ["Hello.", calls(("heartbeat", decision)), "The kettle is on."]
    async with running(*script, gateway={"port": free_port(), "heartbeat": {"intervalS": 1}}) as here:
        here.change(lambda config: config["channels"]["toy"].update(allowFrom=[allowed]))
        await asyncio.sleep(0.2)  # the gateway has read it
        here.toy.write("hello", message_id="1")
        await eventually(here.toy.got)
        (here.home / "workspace" / "HEARTBEAT.md").write_text("- [ ] look after the kettle\n", encoding="utf-8")
        await eventually(lambda: len(here.model.requests) == len(script))
        await asyncio.sleep(0.3)

    assert here.toy.got("7") == ["Hello.", *(["The kettle is on."] if is_told else [])]


# --- as processes


@pytest.fixture
def server() -> Iterator[FakeModels]:
    with FakeModels(default=Say("The kettle is on.")) as server:
        yield server


@pytest.fixture
def home(tmp_path: Path, server: FakeModels) -> GatewayHome:
    return GatewayHome(tmp_path, server)


@POSIX
def test_a_job_made_at_the_terminal_that_a_kill_cut_off_is_told_once_by_the_next_gateway(
    home: GatewayHome, server: FakeModels
):
    server.script(Hang())
    with home.gateway() as process:
        for lead_s in (1.5, 6, 24):  # later where the machine is too busy for a command
            at = (datetime.now() + timedelta(seconds=lead_s)).isoformat()
            words = ("-n", "tea", "-m", "make tea", "--at", at, "--deliver", "--channel", "toy", "--to", "7")
            if home.run("cron", "add", *words).code == 0:
                break
        wait_until(lambda: server.chats)
        process.kill()

    with home.gateway() as process:
        wait_until(home.toy.got)
        process.send_signal(signal.SIGTERM)
        ended(process)

    (report,) = home.toy.got()
    assert report.startswith("The kettle is on.")


@POSIX
@pytest.mark.slow
def test_a_gateway_that_stops_asks_no_model_about_heartbeat_tasks(home: GatewayHome, server: FakeModels):
    home.change(gateway={"port": 1, "heartbeat": {"intervalS": 1}})
    written(home.data / "pairing.json", {"owners": {"toy": ["7"]}, "approved": {"toy": ["7"]}})
    home.workspace.mkdir(parents=True)
    (home.workspace / "HEARTBEAT.md").write_text("## Open\n\n- [ ] look after the kettle\n", encoding="utf-8")

    def answer(body: dict[str, Any]) -> Step:
        if len(body["tools"]) == 1:
            return Calls(("heartbeat", {"action": "run", "tasks": "look after the kettle"}))
        return Hang() if "hello" in json.dumps(body) else Say("HEARTBEAT_OK")

    server.default = Fitting(answer)
    with home.gateway() as process:
        home.toy.write("hello", message_id="1")  # its turn makes the shutdown take three seconds
        wait_until(lambda: any("hello" in request.body.decode() for request in server.chats) and len(server.chats) > 1)
        asked_before = len(server.chats)
        process.send_signal(signal.SIGTERM)
        ended(process)

    assert len(server.chats) - asked_before <= 1, "one may have been on its way"
    assert "heartbeat failed" not in home.log
