"""A gateway as a process: it starts once, answers once, and leaves nothing behind when it goes, however it goes."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_models import FakeModels, Hang, Say
from tests.gateway.toy import GatewayHome, until
from tests.stories.processes import POSIX, ended

pytestmark = POSIX


@pytest.fixture
def server() -> Iterator[FakeModels]:
    with FakeModels(default=Say("hello")) as server:
        yield server


@pytest.fixture
def home(tmp_path: Path, server: FakeModels) -> GatewayHome:
    return GatewayHome(tmp_path, server)


def test_a_message_is_answered_once_and_a_polite_end_leaves_nothing_behind(home: GatewayHome):
    home.toy.write("hi", message_id="1")

    with home.gateway() as process:
        until(lambda: home.toy.got())
        home.toy.write("hi again, though this id was here", message_id="1")
        until(lambda: not home.toy.waiting)
        process.send_signal(signal.SIGTERM)
        end = ended(process)

    assert end.code == 0
    assert home.toy.got() == ["hello"]
    assert not [*(home.data / "state").glob("gateway.sock")] and not [*(home.data / "state").glob("gateway.json")]


def test_a_second_gateway_of_the_data_folder_leaves_with_75_and_names_the_first(home: GatewayHome):
    with home.gateway() as first:
        second = home.run("gateway")

    assert second.code == 75
    assert f"pid {first.pid}" in second.complaint


def test_what_a_killed_gateway_accepted_is_answered_by_the_next_once(home: GatewayHome, server: FakeModels):
    server.script(Hang())
    home.toy.write("hi", message_id="1")
    with home.gateway() as process:
        until(lambda: server.chats)
        process.kill()

    with home.gateway():
        until(lambda: home.toy.got())

    assert home.toy.got() == ["hello"]


def test_a_turn_that_runs_is_given_up_in_time_when_the_gateway_is_told_to_stop_and_goes_on_later(
    home: GatewayHome, server: FakeModels
):
    server.script(Hang())
    home.toy.write("hi", message_id="1")
    with home.gateway() as process:
        until(lambda: server.chats)
        told = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert ended(process).code == 0
        took = time.monotonic() - told

    with home.gateway():
        until(lambda: "hello" in home.toy.got())

    assert took < 5.0
    assert home.toy.got().count("hello") == 1


def test_without_a_channel_it_says_what_to_do_and_leaves_with_78(home: GatewayHome):
    home.change(channels={})

    end = home.run("gateway")

    assert end.code == 78
    assert "--allow-empty" in end.complaint


@pytest.mark.parametrize(
    ("channels", "word"),
    [
        ({"broken": {"enabled": True}}, "falls apart"),
        ({"slak": {"enabled": True}}, "no such channel"),
        ({"toy": {"enabled": True, "token": "wrong"}}, "Set channels.toy.token"),
    ],
)
def test_where_no_channel_can_start_each_says_what_it_needs(home: GatewayHome, channels: object, word: str):
    home.change(channels=channels)

    end = home.run("gateway")

    assert end.code == 78
    assert word in end.aside.splitlines()[-1]


@pytest.mark.xfail(reason="channels status comes next", strict=True)
def test_one_that_cannot_start_is_red_and_the_others_work(home: GatewayHome):
    home.change(channels={**home.config["channels"], "broken": {"enabled": True}})
    home.toy.write("hi", message_id="1")

    with home.gateway():
        until(lambda: home.toy.got())
        told = json.loads(home.run("channels", "status", "--json").out)

    assert {name: one["state"] for name, one in told["channels"].items()} == {"toy": "up", "broken": "failed"}
    assert "falls apart" in told["channels"]["broken"]["lastError"]


def test_restart_in_a_chat_begins_the_same_process_anew_and_goes_on(home: GatewayHome):
    (home.data / "pairing.json").write_text(json.dumps({"owners": {"toy": ["7"]}, "approved": {"toy": ["7"]}}))

    with home.gateway() as process:
        home.toy.write("/restart", message_id="1")
        until(lambda: home.log.count("ready in") == 2)
        home.toy.write("hi", message_id="2")
        until(lambda: "hello" in home.toy.got())

        assert process.poll() is None
    assert home.toy.got() == ["Restarting. What is being worked on goes on after that.", "hello"]
