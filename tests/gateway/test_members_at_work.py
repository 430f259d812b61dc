"""What lives in the gateway beside the channels: jobs run and are told, the heartbeat does what HEARTBEAT.md asks."""

import json
import re
import signal
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nanobot.testing.model_server import Calls, Fail, FakeModels, Fitting, Hang, Say, Slow, Step
from tests.support.eventually import wait_until
from tests.support.home import POSIX, ended
from tests.support.toy_gateway import GatewayHome, free_port, written

pytestmark = POSIX

TO_SEVEN = ("--deliver", "--channel", "toy", "--to", "7")


@pytest.fixture
def server() -> Iterator[FakeModels]:
    with FakeModels(default=Say("The kettle is on.")) as server:
        yield server


@pytest.fixture
def home(tmp_path: Path, server: FakeModels) -> GatewayHome:
    return GatewayHome(tmp_path, server)


def fates(home: GatewayHome) -> list[str]:
    """What became of each due instant."""
    told = json.loads(home.run("cron", "history", "--json").out)
    return [row["outcome"] for row in told]


def only_job(home: GatewayHome) -> str:
    """The id of the one job there is."""
    (job,) = json.loads(home.run("cron", "list", "--json").out)
    return str(job["id"])


def added(home: GatewayHome, message: str, *words: str) -> None:
    """A job, made at the terminal, that is due in a moment: later where the machine is too busy for a command."""
    for lead_s in (1.5, 6, 24):
        at = (datetime.now() + timedelta(seconds=lead_s)).isoformat()
        end = home.run("cron", "add", "-n", message, "-m", message, "--at", at, *words)
        if end.code == 0:
            return
    raise AssertionError(end.complaint)


def test_a_job_made_at_the_terminal_is_told_by_the_gateway_that_runs(home: GatewayHome):
    with home.gateway() as process:
        added(home, "make tea", *TO_SEVEN)
        wait_until(lambda: home.toy.got("7"))
        process.send_signal(signal.SIGTERM)
        ended(process)

    (report,) = home.toy.got()
    assert report.startswith("The kettle is on.")


def test_the_log_has_a_line_for_each_turn_and_a_warning_for_one_that_failed(home: GatewayHome, server: FakeModels):
    server.script(Say("The kettle is on."), Fail(401))

    with home.gateway():
        for number in range(2):
            home.toy.write("tea?", message_id=str(number))
            wait_until(lambda number=number: len(home.toy.got()) > number)  # type: ignore[misc]
        wait_until(lambda: "toy:7 failed" in home.log)

    answered, failed = (line for line in home.log.splitlines() if "toy:7 " in line)
    assert re.search(r"INFO .*toy:7 answered in \d+\.\d s, [\d.]+k? tokens", answered)
    assert re.search(r"WARNING .*toy:7 failed after .* API key was rejected", failed)


def test_the_log_names_a_job_that_ran(home: GatewayHome, server: FakeModels):
    server.script(Say("Water them."))
    added(home, "Water the plants", *TO_SEVEN)

    with home.gateway():
        wait_until(lambda: re.search(r"INFO .* job '[^']+' \(\w+\) answered in \d+\.\d s, [\d.]+k? tokens", home.log))

    assert "cron:" not in home.log


def test_the_log_has_one_warning_for_a_job_that_failed(home: GatewayHome, server: FakeModels):
    server.default = Slow(Fail(401), first_s=0.2)
    added(home, "Water the plants", *TO_SEVEN)

    with home.gateway():
        wait_until(lambda: "failed after" in home.log)

    warnings = [line for line in home.log.splitlines() if "API key was rejected" in line]
    assert len(warnings) == 1, warnings
    assert re.search(r"WARNING .* job 'Water the plants' \(\w+\) failed after (?!0\.0)\d+\.\d s:", warnings[0])


def test_a_reminder_reminds_also_if_no_model_answers(home: GatewayHome, server: FakeModels):
    server.default = Fail(401)

    with home.gateway():
        added(home, "Water the plants", *TO_SEVEN)
        wait_until(lambda: home.toy.got("7"))

    assert re.match(
        r"Reminder, \d\d:\d\d: Water the plants\n\n\(No model answered, so this is its text alone\. "
        r"The next try is in 5 min\. The API key was rejected .*\)",
        home.toy.got("7")[0],
    )


def test_job_runs_on_time_though_its_report_waits_for_a_chat_that_is_offline(home: GatewayHome):
    websocket = {"enabled": True, "port": free_port(), "clients": {"anna": {"token": "a" * 32}}, "allowFrom": ["anna"]}
    home.change(channels={**home.config["channels"], "websocket": websocket})
    words = ("-e", "9000", "--json", "--deliver", "--channel", "websocket", "--to", "anna")
    job = json.loads(home.run("cron", "add", "-n", "tea", "-m", "make tea", *words).out)["id"]

    with home.gateway():
        wait_until(lambda: home.run("cron", "list").complaint == "")
        ends = [home.run("cron", "run", job, "-f") for _ in range(2)]

    assert [end.code for end in ends] == [0, 0], ends
    assert fates(home) == ["ran", "ran"]


def test_a_job_that_a_kill_cut_off_is_told_once_by_the_next_gateway(home: GatewayHome, server: FakeModels):
    server.script(Hang())
    added(home, "make tea", *TO_SEVEN)
    with home.gateway() as process:
        wait_until(lambda: server.chats)
        process.kill()

    with home.gateway() as process:
        wait_until(home.toy.got)
        process.send_signal(signal.SIGTERM)
        ended(process)

    assert home.toy.got() == ["The kettle is on."]


def test_a_person_is_reminded_who_asked_for_it_in_a_chat(home: GatewayHome, server: FakeModels):
    server.script(
        Calls(("cron", {"action": "add", "message": "Remind them of the tea.", "every_seconds": 3600})),
        Say("I will."),
        Say("Tea!"),
    )
    written(home.data / "pairing.json", {"owners": {"toy": ["7"]}, "approved": {"toy": ["7"]}})
    home.toy.write("remind me of the tea", message_id="1")

    with home.gateway():
        wait_until(lambda: home.toy.got("7"))
        home.run("cron", "run", only_job(home))
        wait_until(lambda: len(home.toy.got("7")) >= 2)

    assert [text.split("\n")[0] for text in home.toy.got("7")[:2]] == ["I will.", "Tea!"]


def test_the_job_of_one_who_may_not_speak_any_more_is_switched_off_and_the_owner_is_told_once(
    home: GatewayHome, server: FakeModels
):
    home.change(
        channels={"toy": {**home.config["channels"]["toy"], "allowFrom": []}},
        tools={"approval": "off"},  # so that others than the owner may make jobs
    )
    people = {"owners": {"toy": ["1"]}, "approved": {"toy": ["1", "7"]}}
    written(home.data / "pairing.json", people)
    server.script(
        Calls(("cron", {"action": "add", "message": "Remind them of the tea.", "every_seconds": 3600})),
        Say("I will."),
        Say("Tea!"),
    )
    home.toy.write("remind me of the tea", message_id="1")

    with home.gateway():
        wait_until(lambda: home.toy.got("7"))
        home.run("cron", "run", only_job(home))
        wait_until(lambda: "Tea!" in "".join(home.toy.got("7")))
        home.run("pairing", "revoke", "toy", "7")
        home.run("cron", "run", only_job(home))
        wait_until(lambda: home.toy.got("1"))
        heard = len(home.toy.got("7"))
        added(home, "make tea", "--deliver", "--channel", "toy", "--to", "9")
        wait_until(lambda: home.toy.got("9"))

    assert len(home.toy.got("7")) == heard
    (word,) = home.toy.got("1")
    assert "'7', who asked for it, is no longer allowed on toy" in word
    assert fates(home)[-2:] == ["skipped", "ran"], "the owner's own job is untouched"


def test_a_silent_job_sends_nothing_whatever_its_turn_tries(home: GatewayHome, server: FakeModels):
    server.script(Calls(("message", {"content": "psst", "channel": "toy", "chat_id": "7"})), Say("Done in silence."))
    added(home, "tidy up")

    with home.gateway():
        wait_until(lambda: fates(home) == ["ran"])

    assert home.toy.got() == []
    assert "Nothing was sent" in server.chats[-1].body.decode()


def test_the_agent_writes_to_another_chat_and_knows_that_it_arrived(home: GatewayHome, server: FakeModels):
    server.script(
        Calls(("message", {"content": "Dinner at eight.", "channel": "toy", "chat_id": "9"})),
        Calls(("message", {"content": "And you?", "channel": "toy", "chat_id": "nowhere"})),
        Say("I told them."),
    )
    written(home.data / "pairing.json", {"owners": {"toy": ["7"]}, "approved": {"toy": ["7"]}})
    home.toy.write("tell the others", message_id="1")

    with home.gateway():
        wait_until(lambda: "I told them." in home.toy.got("7"))

    assert home.toy.got("9") == ["Dinner at eight."]
    assert "Delivered to toy:9" in server.chats[1].body.decode()
    assert "there is no such chat" in server.chats[2].body.decode()


def test_the_heartbeat_works_on_a_task_and_tells_the_chat_the_config_names(home: GatewayHome, server: FakeModels):
    home.change(gateway={"port": 1, "heartbeat": {"intervalS": 1, "channel": "toy", "to": "7"}})
    home.workspace.mkdir(parents=True)
    (home.workspace / "HEARTBEAT.md").write_text("## Open\n\n- [ ] look after the kettle\n", encoding="utf-8")
    decision = {"action": "run", "tasks": "look after the kettle", "again_in_minutes": 60}
    server.script(Calls(("heartbeat", decision)))

    with home.gateway():
        wait_until(home.toy.got)
        time.sleep(1.5)  # the next look comes before the time that was named

    assert home.toy.got("7") == ["The kettle is on."]
    assert len(server.chats) == 2


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


def test_a_heartbeat_that_the_model_refuses_pauses_and_tells_its_chat_why(home: GatewayHome, server: FakeModels):
    home.change(gateway={"port": 1, "heartbeat": {"intervalS": 1, "channel": "toy", "to": "7"}})
    home.workspace.mkdir(parents=True)
    (home.workspace / "HEARTBEAT.md").write_text("## Open\n\n- [ ] look after the kettle\n", encoding="utf-8")
    server.script(Fail(401, "bad key"))

    with home.gateway():
        wait_until(home.toy.got)

    [said] = home.toy.got("7")
    assert said.startswith("The heartbeat is paused since ")
    assert "bad key" in said
