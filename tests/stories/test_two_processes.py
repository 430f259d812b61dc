"""One home, several processes, some of them killed: every message has its answer, in order, and none is lost."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from nanobot.bus.events import InboundMessage
from nanobot.config.loader import load_config
from nanobot.runtime.build import build_runtime
from nanobot.testing.model_server import Calls, FakeModels, Hang, Say, Slow
from nanobot.utils.locks import ProcessLock
from tests.support.eventually import wait_until
from tests.support.home import POSIX, Home, ended
from tests.support.processes import running, unlikely_number

pytestmark = POSIX


def test_the_second_of_two_waits_and_says_so_and_both_are_kept_in_order(served: Home, server: FakeModels):
    server.script(Hang("The first "), Say("The second."))
    first = served.start("agent", "-s", "cli:direct", "-m", "first")
    wait_until(lambda: "".join(partials_in(served)) == "The first ")
    second = served.start("agent", "-s", "cli:direct", "-m", "second")
    assert second.stderr is not None

    said = second.stderr.readline()
    asked = len(server.chats)
    first.send_signal(signal.SIGINT)
    results = ended(first), ended(second)

    assert b"cli:direct is busy in another nanobot" in said
    assert b"-s NAME" in said
    assert asked == 1
    assert [(result.code, result.out) for result in results] == [(130, "The first \n"), (0, "The second.\n")]
    assert [text for _, text in served.said()] == ["first", "The first ", "second", "The second."]


def test_who_gives_up_waiting_leaves_no_trace_and_hurts_nobody(served: Home, server: FakeModels):
    served.remember("before")
    holder = ProcessLock(served.sessions / ".locks" / "cli_direct.lock")
    assert holder.try_acquire()
    process = served.start("agent", "-s", "cli:direct", "-m", "never mind")
    assert process.stderr is not None
    process.stderr.readline()

    process.send_signal(signal.SIGINT)
    gone = ended(process)
    holder.release()

    assert (gone.code, gone.aside) == (130, "(stopped)\n")
    assert not server.chats
    assert [text for _, text in served.said()] == ["before", "noted"]


def test_four_at_once_in_one_session_and_two_beside_it(served: Home, server: FakeModels):
    server.default = Slow(Say("answered"), first_s=0.05)
    together = [served.start("agent", "-s", "cli:direct", "-m", f"message {number}") for number in range(4)]
    beside = [served.start("agent", "-s", "cli:direct", "-m", "hello", "-s", key) for key in ("api:one", "cron:two")]

    results = [ended(process) for process in (*together, *beside)]

    assert {(result.code, result.out) for result in results} == {(0, "answered\n")}
    said = served.said()
    assert [role for role, _ in said] == ["user", "assistant"] * 4
    assert sorted(text for role, text in said if role == "user") == [f"message {number}" for number in range(4)]
    assert len(served.rows("api_one")) == len(served.rows("cron_two")) == 2


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)],
    ids=str,
)
def test_whatever_kills_it_what_was_said_is_kept_and_the_next_turn_is_legal(
    served: Home, server: FakeModels, number: signal.Signals, code: int
):
    server.script(Hang("Half of the ans"), Say("The whole answer."))
    process = served.start("agent", "-s", "cli:direct", "-m", "first")
    assert process.stdout is not None
    os.read(process.stdout.fileno(), 100)
    wait_until(lambda: "".join(partials_in(served)) == "Half of the ans")

    process.send_signal(number)
    killed = ended(process)
    after = served.ask("second")

    sent = [(row["role"], row["content"].split("\n")[0]) for row in server.chats[-1].json["messages"][1:]]
    assert killed.code == code
    assert killed.complaint in ("(stopped)\n", "")
    assert (after.code, after.out) == (0, "The whole answer.\n")
    assert sent == [("user", "first"), ("assistant", "Half of the ans"), ("user", "second")]
    assert [text for _, text in served.said()] == ["first", "Half of the ans", "second", "The whole answer."]
    assert not partials_in(served)


@pytest.mark.needs_sandbox
def test_who_waits_settles_the_calls_of_one_that_was_killed_in_the_middle_of_a_tool(served: Home, server: FakeModels):
    """The command it left behind still runs, and holds nothing; it is not run again, and both hear of it."""
    marks, number = served.workspace / "marks", unlikely_number()
    command = f"echo once >> {marks}; exec sleep {number}"
    server.script(Calls(("exec", {"command": command}), ("list_dir", {"path": "."})), Say("I looked after it."))
    first = served.start("agent", "-s", "cli:direct", "-m", "run it")
    wait_until(marks.exists)
    wait_until(lambda: any(row["role"] == "tool" for row in served.rows()))
    second = served.start("agent", "-s", "cli:direct", "-m", "and now?")
    assert second.stderr is not None
    second.stderr.readline()

    first.kill()
    first.communicate()
    result = ended(second)

    [left_behind] = running("sleep", number)
    os.kill(left_behind, signal.SIGKILL)
    results = {row["name"]: row["content"] for row in served.rows() if row["role"] == "tool"}
    assert marks.read_text() == "once\n"
    assert (result.code, result.out) == (0, "I looked after it.\n")
    assert "May or may not have run: exec" in result.aside
    assert results["exec"].startswith("Outcome unknown")
    assert users_in(server.chats[-1].json)[0] == "run it"
    assert "and now?" in server.chats[-1].json["messages"][-1]["content"]
    assert len(server.chats) == 2


def test_a_service_and_a_one_shot_in_one_session_take_turns(served: Home, server: FakeModels):
    """A service that starts while somebody's turn runs neither answers it again nor breaks it off."""
    server.script(Hang("One "), Say("Two."))
    first = served.start("agent", "-s", "cli:direct", "-m", "one", "-s", "phone:7")
    wait_until(lambda: "".join(partials_in(served)) == "One ")

    async def serve() -> list[str]:
        config = load_config(served.data / "config.json")
        async with build_runtime(config, data_dir=served.data, workspace=served.data / "workspace") as runtime:
            serving = asyncio.create_task(runtime.loop.run())
            await runtime.bus.publish_inbound(InboundMessage("phone", "ann", "7", "two"))
            out = await runtime.bus.consume_outbound()
            assert out is not None
            assert "busy in another nanobot" in out.content
            first.send_signal(signal.SIGINT)
            reply = await runtime.bus.consume_outbound()
            runtime.bus.close()
            await serving
            assert reply is not None
            return [reply.content]

    replies = asyncio.run(serve())

    assert ended(first).code == 130
    assert replies == ["Two."]
    assert [text for _, text in served.said("phone_7")] == ["one", "One ", "two", "Two."]


def partials_in(home: Home) -> list[str]:
    """What the checkpoint of a running turn holds of the answer, piece by piece."""
    files = [path.read_text(encoding="utf-8").splitlines() for path in (home.data / "state" / "turns").glob("*")]
    entries = [json.loads(line) for lines in files for line in lines if line]
    return [entry["text"] for entry in entries if "text" in entry]


def test_keys_of_different_faces_never_see_each_other(served: Home, server: FakeModels):
    """Row 95: isolated runs once fell into the default session."""
    keys = ["cli:direct", "api:direct", "cron:direct", "direct"]

    for key in keys:
        served.ask(f"I am {key}", "-s", key)
    served.ask("who am I?", "-s", "cron:direct")

    users = [users_in(chat.json) for chat in server.chats]
    assert users == [*([f"I am {key}"] for key in keys), ["I am cron:direct", "who am I?"]]


def users_in(request: dict[str, Any]) -> list[str]:
    return [row["content"].split("\n")[0] for row in request["messages"] if row["role"] == "user"]


def test_another_workspace_is_another_room_of_the_same_house(served: Home, server: FakeModels, tmp_path: Path):
    """Row 95: a blank template came up where another folder was named. The data folder stays where it is."""
    served.ask("at home")
    there = served.ask("elsewhere", "-w", str(tmp_path / "other"))
    served.ask("at home again")

    assert there.out == "ok\n"  # the same config, so the same model
    assert [users_in(chat.json) for chat in server.chats] == [["at home"], ["elsewhere"], ["at home", "at home again"]]
    assert not (tmp_path / "other" / "state").exists()
    assert {path.name for path in served.data.iterdir()} >= {"config.json", "workspace"}
    listed = json.loads(served.run("sessions", "list", "--json", "-w", str(tmp_path / "other")).out)
    assert [(row["key"], row["messages"]) for row in listed] == [("cli:direct", 2)]
