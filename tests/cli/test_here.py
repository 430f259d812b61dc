"""The folder a person works in: the agent knows and reads it, and writes there once it was allowed."""

import json
import sys
from contextlib import nullcontext

import pytest

from nanobot.bus.events import InboundMessage
from nanobot.testing.model_server import Calls, FakeModels, Say
from tests.support.home import NANOBOT
from tests.support.toy_gateway import GatewayHome

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are a POSIX thing", allow_module_level=True)

import pexpect

from tests.support.terminal import on_screen


@pytest.fixture
def server():
    with FakeModels() as running:
        yield running


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "work" / "project"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("the secret of the soup")
    return folder


@pytest.fixture
def home(tmp_path, server):
    return GatewayHome(tmp_path / "home", server)


def told(server: FakeModels) -> str:
    """What the model was told with the last message of a person."""
    rows = [row for row in server.chats[-1].json["messages"] if row["role"] == "user"]
    return str(rows[-1]["content"])


@pytest.mark.parametrize("has_gateway", [False, True], ids=["alone", "through the gateway"])
def test_the_folder_of_the_terminal_is_named_and_its_files_can_be_read(home, server, project, has_gateway):
    server.script(Calls(("read_file", {"path": str(project / "notes.txt")})), Say("Read."))

    with home.gateway() if has_gateway else nullcontext():
        assert home.run("what is in notes.txt?", cwd=project).out == "Read.\n"

    assert f"Current Folder: {project} (" in told(server)
    assert "you may read there" in told(server)
    assert "the secret of the soup" in str(server.chats[-1].json["messages"][-1])


async def test_a_folder_counts_only_for_messages_of_the_terminal(home, server, project):
    async with home.hasty() as bot:
        await bot.runtime.loop.run_turn(InboundMessage("toy", "7", "7", "hello", folder=str(project)))

    assert "Current Folder" not in told(server)


def test_a_folder_that_tools_may_not_read_is_not_named_and_here_is_refused_as_is_that_of_nanobots_own_files(
    home, server, project
):
    home.change(tools={"restrictToWorkspace": True})

    home.run("hello there", cwd=project)
    refused = home.run("--here", "hello", cwd=project)
    own = home.run("--here", "hello", cwd=home.path)

    assert "Current Folder" not in told(server)
    assert (own.code, "nanobot's own files" in own.complaint) == (2, True)
    assert refused.code == 1
    assert "tools.restrictToWorkspace" in refused.complaint
    assert len(server.chats) == 1


def test_here_asks_once_for_a_folder_and_is_taken_back_like_other_approvals(home, server, project):
    target = project / "sub" / "new.txt"
    server.script(Calls(("write_file", {"path": str(target), "content": "soup"})), Say("Written."))
    unasked = home.run("--here", "write it", cwd=project)
    command = [*NANOBOT, "--here", "write it"]
    env = {**home.environ, "TERM": "xterm"}

    terminal = on_screen(command, env=env, cwd=str(project), encoding="utf-8", timeout=15)
    terminal.expect("project\r\nMay the agent write there")
    terminal.sendline("y")
    terminal.expect("Written.")
    terminal.expect(pexpect.EOF)
    server.script(Calls(("write_file", {"path": str(target), "content": "more soup"})), Say("Again."))
    again = home.run("--here", "write it again", cwd=project)
    (rule,) = json.loads(home.run("approvals", "list", "--json").out)
    forgotten = home.run("approvals", "forget", f"folder:{project}").out

    assert unasked.code == 1
    assert "--here" in unasked.complaint
    assert again == (0, "Again.\n", "")
    assert target.read_text() == "more soup"
    assert rule["rule"] == f"folder:{project}"
    assert f"I ask about folder:{project} again" in forgotten
    assert "There are no permanent approvals." in home.run("approvals", "list").aside
    assert sorted(path.name for path in project.iterdir()) == ["notes.txt", "sub"]
    assert home.run("--here", "once more", cwd=project).code == 1
