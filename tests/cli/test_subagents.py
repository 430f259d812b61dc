"""Subagents at the terminal: the command waits for what it set going, shows it, and is stopped with it."""

import json
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from nanobot.testing.model_server import Calls, FakeModels, Fitting, Hang, Say, Slow, Step
from tests.support.eventually import wait_until
from tests.support.home import POSIX, Home, ended
from tests.support.toy_gateway import GatewayHome
from tests.support.work import open_tasks, reported_tasks

pytestmark = POSIX

SPAWN = Calls(("spawn", {"task": "find the prices", "label": "prices"}))


def says(*, child: Step) -> Fitting:
    """The agent hands on whatever it is asked; `child` is what the subagent does."""

    def choose(body: dict[str, Any]) -> Step:
        last = str(next(row["content"] for row in reversed(body["messages"]) if row["role"] == "user"))
        if "Your task:" in last:
            return child
        if "[A subagent has ended" in last:
            return Say("It costs 3 euros.")
        return Say("I am on it.") if body["messages"][-1]["role"] == "tool" else SPAWN

    return Fitting(choose)


@pytest.fixture
def server() -> Iterator[FakeModels]:
    with FakeModels(default=says(child=Say("found: 3 euros"))) as server:
        yield server


@pytest.mark.parametrize("has_gateway", [False, True], ids=["alone", "through a gateway"])
def test_one_message_waits_for_its_subagent_and_shows_what_it_found(
    tmp_path: Path, server: FakeModels, has_gateway: bool
):
    home = GatewayHome(tmp_path, server)
    with home.gateway() if has_gateway else nullcontext():
        end = home.ask("what are the prices?")
        (transcript,) = home.sessions.glob("subagent_*.jsonl")
        shown = home.run("sessions", "show", transcript.stem)

    waits = "Waiting for 1 subagent: prices (Ctrl+C stops)\n"
    assert (end.code, end.out) == (0, "I am on it.\n\nIt costs 3 euros.\n")
    assert end.complaint in ({waits, ""} if has_gateway else {waits}), (
        "behind a gateway it may end before it is waited for"
    )
    assert "found: 3 euros" in shown.out
    assert open_tasks(home.data) == []


def test_one_message_waits_for_the_report_of_a_subagent_that_ended_first(tmp_path: Path, server: FakeModels):
    """Its report waits behind the turn that asked, and is then answered for a while."""

    def choose(body: dict[str, Any]) -> Step:
        step = says(child=Say("found: 3 euros")).choose(body)
        return step if isinstance(step, Calls) or step == Say("found: 3 euros") else Slow(step, first_s=1.0)

    server.default = Fitting(choose)
    home = GatewayHome(tmp_path, server)
    with home.gateway():
        end = home.ask("what are the prices?")

    assert (end.code, end.out) == (0, "I am on it.\n\nIt costs 3 euros.\n")


def test_ctrl_c_stops_the_subagent_that_is_waited_for_and_says_so(tmp_path: Path, server: FakeModels):
    server.default = says(child=Hang())
    home = Home(tmp_path, server)
    process = home.start("agent", "-s", "cli:direct", "-m", "what are the prices?")
    wait_until(lambda: any(b"Your task:" in chat.body for chat in server.chats))
    assert process.stderr is not None
    waits = process.stderr.readline()
    running = home.run("status", "--json")

    process.send_signal(signal.SIGINT)
    end = ended(process)
    (task,) = reported_tasks(home.data)

    assert b"Waiting for 1 subagent" in waits
    assert json.loads(running.out)["subagents"] == {"running": 1, "waiting": 0}
    assert end.code == 130
    assert end.aside == "Stopped: 1 subagent (prices).\n"
    assert task["state"] == "stopped"


@pytest.mark.slow
def test_what_a_kill_cut_off_is_brought_by_the_next_message_of_the_session(tmp_path: Path, server: FakeModels):
    server.default = says(child=Hang())
    home = Home(tmp_path, server)
    process = home.start("agent", "-s", "cli:direct", "-m", "what are the prices?")
    wait_until(lambda: any(b"Your task:" in chat.body for chat in server.chats))
    wait_until(lambda: "I am on it." in str(home.said()))
    process.kill()
    ended(process)
    server.default = says(child=Say("found: 3 euros"))
    server.script(Say("Still looking."))

    end = home.ask("and?")

    assert end.out == "Still looking.\n\nIt costs 3 euros.\n"
    assert open_tasks(home.data) == []


@pytest.mark.slow
def test_a_chat_app_hears_of_it_though_the_gateway_was_killed_meanwhile(tmp_path: Path, server: FakeModels):
    server.default = says(child=Hang())
    home = GatewayHome(tmp_path, server)
    home.toy.write("what are the prices?", message_id="1")
    with home.gateway() as process:
        wait_until(lambda: home.toy.got() and any(b"Your task:" in chat.body for chat in server.chats))
        process.kill()
    server.default = says(child=Say("found: 3 euros"))

    with home.gateway():
        wait_until(lambda: "It costs 3 euros." in home.toy.got())

    assert [*dict.fromkeys(home.toy.got("7"))] == ["I am on it.", "It costs 3 euros."], "the kill may repeat the first"
    assert home.toy.got("7").count("It costs 3 euros.") == 1
    assert open_tasks(home.data) == []
