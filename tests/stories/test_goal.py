"""A goal from outside: the command waits for it, a kill only interrupts it, the gateway goes on with it."""

import signal
from pathlib import Path
from typing import Any

import pytest

from nanobot.testing.model_server import Calls, FakeModels, Fitting, Hang, Say, Step
from tests.support.eventually import wait_until
from tests.support.home import POSIX, Home
from tests.support.toy_gateway import GatewayHome
from tests.support.work import goal_of, goals_in

pytestmark = POSIX

WRITE = Calls(("write_file", {"path": "page.md", "content": "# Hello\n"}))
NOTE = Calls(("goal", {"action": "note", "done": "the page", "next": "prove it"}))
FINISH = Calls(("goal", {"action": "finish", "check": "file: page.md", "expect": "Hello"}))


def works(*, hangs_in_turn: int = 0) -> Fitting:
    """In its first turn it writes the page, in its second it proves that it is there."""

    def choose(body: dict[str, Any]) -> Step:
        rows = body["messages"]
        at = max(at for at, row in enumerate(rows) if row["role"] == "user" and "[Goal, turn" in str(row["content"]))
        turn = int(str(rows[at]["content"]).partition("[Goal, turn ")[2].partition(":")[0])
        steps = sum(row["role"] == "tool" for row in rows[at:])
        if turn == hangs_in_turn and steps == 1:
            return Hang()
        script = [WRITE, NOTE, Say("The page is written.")] if turn == 1 else [FINISH, Say("The page is there.")]
        step: Step = script[min(steps, len(script) - 1)]
        return step

    return Fitting(choose)


def writes(home: Home) -> int:
    rows = [line for path in home.sessions.glob("*.jsonl") for line in path.read_text("utf-8").splitlines()]
    return sum('"role": "tool"' in row and "write_file" in row for row in rows)


def test_one_message_sets_a_goal_and_waits_for_its_end(tmp_path: Path):
    with FakeModels(default=works()) as server:
        home = Home(tmp_path, server)

        end = home.ask("/goal write a page that says hello")

    assert end.code == 0
    assert end.out.startswith("I will work on this until it is done (at most 200 steps and $2.00)")
    assert "The page is there.\n\n(Goal reached, checked by file: page.md" in end.out
    assert end.complaint == "Waiting for the goal: write a page that says hello (Ctrl+C stops)\n"
    assert goal_of(home.data)["steps"] == 5


def test_without_a_model_none_is_set(tmp_path: Path):
    home = Home(tmp_path)

    end = home.ask("/goal write a page that says hello")

    assert end.code == 0
    assert end.out.startswith("No model is set up, so a goal cannot run. Set one up with `nanobot onboard`")
    assert goals_in(home.data) == []


@pytest.mark.parametrize("turn", [1, 2])
def test_a_kill_in_a_turn_of_it_costs_nothing_that_was_done(tmp_path: Path, turn: int):
    with FakeModels(default=works(hangs_in_turn=turn)) as server:
        home = Home(tmp_path, server)
        process = home.start("agent", "-m", "/goal write a page that says hello")
        wait_until(lambda: any("[Goal, turn" in str(chat.body) and server_hangs(server, turn) for chat in server.chats))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=10)
        server.default = works()

        end = home.run("agent", "--continue", "-m", "/goal")

    assert end.code == 0
    assert "The page is there." in end.out
    assert goal_of(home.data)["state"] == "done"
    assert writes(home) == 1


def server_hangs(server: FakeModels, turn: int) -> bool:
    """Whether the call came that is never answered."""
    return len(server.chats) >= (2 if turn == 1 else 5)


def test_the_gateway_goes_on_with_what_a_terminal_that_died_had_begun(tmp_path: Path):
    with FakeModels(default=works(hangs_in_turn=2)) as server:
        home = GatewayHome(tmp_path, server)
        process = home.start("agent", "-m", "/goal write a page that says hello")
        wait_until(lambda: server_hangs(server, 2))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=10)
        status = home.run("status")
        server.default = works()

        with home.gateway():
            wait_until(lambda: goal_of(home.data)["state"] == "done")

    assert "write a page that says hello (active)" in status.out
    assert writes(home) == 1


def test_who_stops_it_with_a_key_is_not_told_that_it_goes_on(tmp_path: Path):
    with FakeModels(default=works(hangs_in_turn=1)) as server:
        home = Home(tmp_path, server)
        process = home.start("agent", "-m", "/goal write a page that says hello")
        wait_until(lambda: server_hangs(server, 1))
        process.send_signal(signal.SIGINT)
        _, aside = process.communicate(timeout=10)

    assert "The goal (write a page that says hello) too." in aside.decode()
    assert "Still running" not in aside.decode()
    assert goal_of(home.data)["state"] == "stopped"


def test_a_command_that_answers_what_a_goal_has_asked_goes_on_with_it(tmp_path: Path):
    with FakeModels(default=works()) as server:
        home = Home(tmp_path, server)
        server.script(Calls(("goal", {"action": "ask", "text": "In which language?"})), Say("I have asked."))
        asked = home.ask("/goal write a page that says hello")
        server.script(WRITE, Say("German, then."))

        answered = home.ask("German")
        told = next(str(chat.json["messages"][-1]["content"]) for chat in server.chats if "German" in str(chat.json))

    assert "In which language?" in asked.out
    assert "You asked: In which language?" in told
    assert answered.out.startswith("German, then.")
    assert "Goal reached" in answered.out
