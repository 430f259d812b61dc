"""Whatever a person, a shell or a disk does: an answer, or a line or two that say what to do next. Nothing is lost.

What single tools and readers make of bad files is told in their own rooms; here it is the commands, as processes.
"""

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nanobot.config.schema import Config
from nanobot.session.manager import SessionManager
from nanobot.testing import calls, open_bot
from nanobot.testing.model_server import Calls, FakeModels, Say, Slow
from tests.support.eventually import eventually
from tests.support.home import POSIX, Ended, Home, bound_by_modes, ended, fill, in_shell, small_disk

QUESTION = "What is in my workspace?"
ANSWER = "Your workspace contains: AGENTS.md"


def assert_answered(result: Ended) -> None:
    assert (result.code, result.complaint) == (0, "")
    assert result.out.startswith(ANSWER)


def assert_refused(result: Ended, code: int, *hints: str) -> None:
    assert result.code == code
    assert result.out == ""
    assert result.complaint.startswith("Error: ")
    for hint in hints:
        assert hint in result.complaint


# -- where it lives -----------------------------------------------------------------------------------------------


@POSIX
def test_without_a_home_the_system_is_asked_for_one(home: Home, tmp_path: Path):
    result = home.ask(QUESTION, "-w", str(tmp_path / "w"), "-c", _empty_config(tmp_path), environ={"HOME": None})

    if is_in_passwd():
        assert_answered(result)
    else:  # as in a container that runs as any user id
        assert_refused(result, 78, "Set HOME")


def is_in_passwd() -> bool:
    import pwd  # Windows has none

    try:
        return bool(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return False


def _empty_config(folder: Path) -> str:
    (folder / "config.json").write_text("{}", encoding="utf-8")
    return str(folder / "config.json")


def test_a_home_that_is_a_file_is_named(home: Home, tmp_path: Path):
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")

    for words in (("agent", "-s", "cli:direct", "-m", QUESTION), ("onboard", "--yes"), ("status",)):
        result = home.run(*words, environ={"HOME": str(tmp_path / "file"), "USERPROFILE": str(tmp_path / "file")})
        assert_refused(result, 78, f"{tmp_path / 'file'} is a file where a folder should be", "Move it away")


@POSIX
def test_a_read_only_home_is_said_and_another_workspace_helps(home: Home, tmp_path: Path):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    bound = bound_by_modes()

    refused = home.run("agent", "-s", "cli:direct", "-m", QUESTION, before=bound, environ={"HOME": str(locked)})
    helped = home.run(
        "agent",
        "-s",
        "cli:direct",
        "-m",
        QUESTION,
        "-w",
        str(tmp_path / "w"),
        before=bound,
        environ={"HOME": str(locked)},
    )

    assert_refused(refused, 1, "Permission denied", "--workspace")
    assert helped.code == 0
    assert helped.out.startswith(ANSWER)
    assert helped.complaint in ("", f"Logging to {locked}/.nanobot/logs/agent.log failed: Permission denied.\n")
    assert [*locked.iterdir()] == []


def _file(place: Path) -> None:
    place.write_text("in the way", encoding="utf-8")


def _link_to_itself(place: Path) -> None:
    place.symlink_to(place)


def _link_to_nothing(place: Path) -> None:
    place.symlink_to(place.with_name("gone"))


@pytest.mark.parametrize("make", [_file, *([] if os.name == "nt" else [_link_to_itself, _link_to_nothing])])
def test_a_workspace_that_cannot_be_a_folder_is_named(home: Home, tmp_path: Path, make: Callable[[Path], None]):
    make(tmp_path / "w")

    result = home.ask(QUESTION, "-w", str(tmp_path / "w"))

    assert_refused(result, 1, str(tmp_path / "w"), "There is a file where a folder should be")
    assert not home.data.exists()


@POSIX
def test_a_workspace_may_be_a_link_and_may_lie_deep(home: Home, tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")

    assert_answered(home.ask(QUESTION, "-w", str(tmp_path / "link" / "a" / "b")))
    assert (tmp_path / "real" / "a" / "b" / "AGENTS.md").is_file()


@POSIX
def test_where_the_current_folder_is_gone_a_full_path_still_works(home: Home, tmp_path: Path):
    gone = in_shell("", first=f"mkdir {tmp_path}/gone && cd {tmp_path}/gone && rmdir {tmp_path}/gone")

    assert_refused(
        home.run("agent", "-s", "cli:direct", "-m", QUESTION, "-w", "w", before=gone),
        78,
        "the current folder was deleted",
    )
    assert_answered(home.run("agent", "-s", "cli:direct", "-m", QUESTION, before=gone))


@pytest.mark.parametrize(
    "words", [("agent", "-s", "cli:direct", "-m", "hi"), ("onboard", "--yes"), ("sessions", "list")]
)
def test_a_config_that_is_a_folder_is_refused_and_left_alone(home: Home, words: tuple[str, ...]):
    (home.data / "config.json").mkdir(parents=True)

    assert_refused(home.run(*words), 78, "config.json is a folder")
    assert [*home.data.iterdir()] == [home.data / "config.json"]


# -- folders of ours that are not as we left them -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["workspace/sessions", "workspace/sessions/.locks"])
def test_a_file_where_sessions_should_be_is_named(served: Home, name: str):
    place = _in_the_way(served, name)

    assert_refused(served.ask("hi"), 1, str(place), "There is a file where a folder should be: move it away.")
    assert place.read_text(encoding="utf-8") == "in the way"


@pytest.mark.parametrize("name", ["state", "workspace/memory", "workspace/skills", "logs"])
def test_a_file_in_the_way_of_what_a_turn_can_do_without_costs_no_answer(served: Home, name: str):
    _in_the_way(served, name)

    result = served.ask("hi")

    assert (result.code, result.out, result.complaint) == (0, "ok\n", "")


def _in_the_way(home: Home, name: str) -> Path:
    place = home.data / name
    place.parent.mkdir(parents=True, exist_ok=True)
    _file(place)
    return place


@POSIX
@pytest.mark.parametrize("name", [pytest.param("sessions", marks=pytest.mark.slow), "sessions/cli_direct.jsonl"])
def test_sessions_that_may_not_be_read_are_named_and_left_alone(home: Home, name: str):
    bound = bound_by_modes()
    home.remember("hello")
    (home.workspace / name).chmod(0)

    refused = home.run("agent", "-s", "cli:direct", "-m", "again", before=bound)

    assert_refused(refused, 1, "Permission denied", str(home.sessions), "Check who owns")
    (home.workspace / name).chmod(0o700)
    assert [text for role, text in home.said() if role == "user"] == ["hello"]


@POSIX
@pytest.mark.parametrize("words", ["list", pytest.param("delete cli:direct", marks=pytest.mark.slow)])
def test_a_sessions_folder_that_may_not_be_read_stops_every_command_with_a_word(home: Home, words: str):
    bound = bound_by_modes()
    home.sessions.mkdir(parents=True)
    home.sessions.chmod(0)

    assert_refused(home.run("sessions", *words.split(), before=bound), 1, "Permission denied", "Check who owns")


@POSIX
def test_a_read_only_sessions_folder_can_be_read_and_says_so_when_written(home: Home):
    bound = bound_by_modes()
    home.remember("hello")
    home.sessions.chmod(0o555)
    (home.sessions / ".locks").chmod(0o555)

    shown = home.run("sessions", "show", "cli:direct", before=bound)
    refused = home.run("agent", "-s", "cli:direct", "-m", "hi", "-s", "cli:other", before=bound)

    assert "hello" in shown.out
    assert_refused(refused, 1, "cli:other cannot be locked", "Permission denied")


@POSIX
def test_a_log_that_cannot_be_written_costs_the_log(home: Home):
    bound = bound_by_modes()
    home.remember("hello")
    (home.data / "logs").mkdir(exist_ok=True, mode=0o555)
    (home.workspace / "AGENTS.md").touch(mode=0)  # worth a line in the log

    result = home.run("agent", "-s", "cli:direct", "-m", QUESTION, before=bound)

    assert result.code == 0
    assert result.out.startswith(ANSWER)
    assert result.complaint == f"Logging to {home.data / 'logs' / 'agent.log'} failed: Permission denied.\n"


# -- the streams and the words ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "environ",
    [{"LANG": "C", "LC_ALL": "C", "TERM": "dumb"}, pytest.param({"PYTHONIOENCODING": "ascii"}, marks=pytest.mark.slow)],
)
def test_no_locale_and_no_terminal_keeps_words_from_their_way(served: Home, server: FakeModels, environ):
    server.script(Say("Grüße aus 東京 🎉"))
    environ = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", **environ}

    result = served.ask("schöne 🎉", environ=environ)

    assert (result.code, result.out, result.complaint) == (0, "Grüße aus 東京 🎉\n", "")
    assert server.chats[0].json["messages"][-1]["content"].startswith("schöne 🎉\n")


@POSIX
@pytest.mark.parametrize("closed", [pytest.param(">&-", marks=pytest.mark.slow), "<&- >&- 2>&-"])
def test_closed_streams_are_nobody_and_no_error(home: Home, closed: str):
    assert home.run("agent", "-s", "cli:direct", "-m", "hello", before=in_shell(closed)).complaint == ""
    assert [role for role, _ in home.said()] == ["user", "assistant"]


@POSIX
@pytest.mark.parametrize("words", ["sessions export cli:direct", pytest.param("status", marks=pytest.mark.slow)])
def test_a_command_whose_output_goes_nowhere_ends_well(home: Home, words: str):
    home.remember("hello")

    result = home.run(*words.split(), before=in_shell(">&-"))

    assert (result.code, result.complaint) == (0, "")


@POSIX
def test_a_question_that_nobody_can_answer_is_a_no(home: Home):
    home.remember("hello")

    for closed in ("<&-", ">&-", "2>&-"):
        result = home.run("sessions", "delete", "cli:direct", before=in_shell(closed))
        assert result.code == 1
        assert "--yes" in result.complaint or closed == "2>&-"
    assert home.rows()


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no device that is always full")
@pytest.mark.parametrize("words", ["sessions list", pytest.param("sessions export cli:direct", marks=pytest.mark.slow)])
def test_a_full_device_is_said_once(home: Home, words: str):
    home.remember("hello")

    result = home.run(*words.split(), before=in_shell(">/dev/full"))

    assert result.code == 1
    assert len(result.complaint.splitlines()) == 1
    assert "No space left on device" in result.complaint


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no device that is always full")
def test_where_not_even_an_error_can_be_written_the_exit_code_stays(home: Home):
    (home.data / "config.json").mkdir(parents=True)

    assert home.run("status", before=in_shell("2>/dev/full")).code == 78


@POSIX
def test_an_export_goes_into_a_pipe_and_never_replaces_what_is_no_file(home: Home, tmp_path: Path):
    home.remember("hello")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)

    into_a_pipe = home.run("sessions", "export", "cli:direct", "-o", str(tmp_path / "pipe"))
    into_a_folder = home.run("sessions", "export", "cli:direct", "-o", str(tmp_path))
    exported = os.read(reader, 1 << 16)
    os.close(reader)

    assert into_a_pipe.code == 0
    assert (tmp_path / "pipe").is_fifo()
    assert exported == home.run("sessions", "export", "cli:direct").out.encode()
    assert_refused(into_a_folder, 1, "Is a folder", str(tmp_path))


def test_a_strange_number_in_the_environment_is_left_alone(home: Home):
    assert_answered(home.ask(QUESTION, environ={"NANOBOT_MAX_CONCURRENT_REQUESTS": "--²"}))


# -- a full disk --------------------------------------------------------------------------------------------------


@POSIX
def test_a_disk_that_is_full_from_the_start_is_said_and_leaves_nothing_half_written(tmp_path: Path):
    with small_disk(tmp_path / "disk", "400k") as disk:
        home = Home(disk)
        filler = fill(disk)

        refused = home.ask(QUESTION)
        filler.unlink()
        again = home.ask(QUESTION)

        assert_refused(refused, 1, "No space left on device. Free some disk space and try again.")
        assert_answered(again)
        assert not [*disk.rglob("*.tmp")]


@POSIX
def test_a_disk_that_fills_up_while_the_model_speaks_shows_the_answer_and_the_next_turn_works(
    tmp_path: Path, server: FakeModels
):
    with small_disk(tmp_path / "disk", "600k") as disk:
        home = Home(disk, server)
        long = "It " + "goes on " * 2_000
        server.script(Slow(Say(long, pieces=20), each_s=0.02), Say("Now there is room."))

        process = home.start("agent", "-s", "cli:direct", "-m", "tell me")
        assert process.stdout is not None
        first = os.read(process.stdout.fileno(), 3).decode()
        filler = fill(disk)
        result = ended(process)
        filler.unlink()
        after = home.ask("again")

        assert result.code == 1
        assert (first + result.out).startswith("It goes on")
        assert "No space left on device. Free some disk space and try again." in result.complaint
        assert (after.code, after.out) == (0, "Now there is room.\n")
        assert [text for role, text in home.said() if role == "user"] == ["tell me", "again"]


@POSIX
def test_a_log_on_a_full_disk_costs_the_log(tmp_path: Path, server: FakeModels):
    with small_disk(tmp_path / "disk", "600k") as disk:
        home = Home(tmp_path, server)
        (home.data / "logs").symlink_to(disk)
        (home.workspace / "skills" / "broken").mkdir(parents=True)
        (home.workspace / "skills" / "broken" / "SKILL.md").write_bytes(b"---\n: [\n---\n")
        (home.workspace / "AGENTS.md").mkdir()
        fill(disk)

        result = home.ask("hi", "--logs")

        assert (result.code, result.out) == (0, "ok\n")
        assert "Traceback" not in result.aside
        assert "Logging error" not in result.aside


@POSIX
def test_a_disk_that_is_read_only_can_be_looked_at(tmp_path: Path):
    with small_disk(tmp_path / "disk", "1m") as disk:
        home = Home(disk)
        home.remember("hello")
        os.system(f"mount -o remount,ro {disk}")

        refused = home.ask("again")
        shown = home.run("sessions", "show", "cli:direct")

        assert_refused(refused, 1, "Read-only file system", "another workspace with --workspace")
        assert "hello" in shown.out


# -- what a model asks of the tools -------------------------------------------------------------------------------


ARRANGED: dict[str, bytes | None] = {
    "binary": bytes(range(256)) * 8,
    "folder": None,
    "not-utf8": b"caf\xe9\nna\xefve\n",
    "twice": b"same\nsame\n",
}
"""Files by their bytes; a folder has none."""
READ = "read_file"
ASKED: list[tuple[str, dict[str, Any], str]] = [
    (READ, {"path": "missing"}, "There is no missing"),
    (READ, {"path": "binary"}, "binary"),
    (READ, {"path": "huge"}, "huge"),
    (READ, {"path": "folder"}, "folder is a folder, not a file. Use list_dir"),
    (READ, {"path": "not-utf8"}, "1\tcaf"),
    (READ, {"path": "/dev/zero"}, "is a device, pipe or socket"),
    (READ, {"path": "x" * 5_000}, "is too long for the file system"),
    ("write_file", {"path": "folder", "content": "x"}, "folder is a folder, not a file"),
    ("write_file", {"path": "twice/below", "content": "x"}, "a part of it is a file, not a folder"),
    ("edit_file", {"path": "twice", "old_text": "same", "new_text": "x"}, "2 times (lines 1, 2)"),
    ("list_dir", {"path": "twice"}, "twice is a file, not a folder"),
    ("exec", {"command": "sleep inf", "timeout": 0.3}, "Timed out after 0.3 s"),
    ("exec", {"command": "yes", "timeout": 0.5}, "The middle is left out"),
    ("exec", {"command": "read -p 'Your name? ' x </dev/tty"}, "There is no terminal"),
]


@pytest.mark.needs_sandbox
@POSIX
async def test_every_bad_thing_a_model_asks_for_comes_back_as_words_and_the_turn_goes_on(tmp_path: Path):
    (tmp_path / "workspace").mkdir()
    for name, content in ARRANGED.items():
        place = tmp_path / "workspace" / name
        place.mkdir() if content is None else place.write_bytes(content)
    with open(tmp_path / "workspace" / "huge", "wb") as file:
        file.truncate(1 << 30)
    wanted = [(tool, arguments) for tool, arguments, _ in ASKED]

    async with open_bot(tmp_path, calls(*wanted), "I saw it all.") as bot:
        began = time.monotonic()
        reply = await bot.say("try everything")
        took = time.monotonic() - began

    told = [str(row["content"]) for row in bot.provider.requests[1] if row["role"] == "tool"]
    assert reply == "I saw it all."
    assert took < 10
    for (_, _, hint), said in zip(ASKED, told, strict=True):
        assert hint in said
        assert len(said) < 20_000


WILD = {
    "waits": "sleep inf",
    "prints": "yes",
    "forks": "f() { sleep 0.01; g & g & wait; }; g() { f; }; f & exec sleep inf",  # what calls itself the guard refuses
    "asks": "htop || top || cat /dev/tty; sleep inf",
    "ignores": "trap '' TERM INT HUP; while :; do sleep 1; done",
    "spins": "while :; do :; done",
}


@pytest.mark.needs_sandbox
@POSIX
@pytest.mark.parametrize("command", WILD.values(), ids=WILD)
async def test_while_a_command_runs_wild_another_chat_is_answered(tmp_path: Path, command: str):
    config = Config.model_validate({"tools": {"exec": {"timeout": 60}}})
    bounded = f"ulimit -u 200 2>/dev/null; {command}"

    async with open_bot(tmp_path, calls(("exec", {"command": bounded})), config=config) as bot:
        wild = asyncio.create_task(bot.turn("go wild", "cli:wild"))
        await eventually(lambda: "tool_started" in bot.sink.types)
        await asyncio.sleep(0.3)
        bot.provider.script("Here I am.")
        began = time.monotonic()
        reply = await bot.say("are you there?", "cli:other")
        answered = time.monotonic() - began
        stopped = await bot.stop("cli:wild")
        result = await wild
        took = time.monotonic() - began - answered

    assert reply == "Here I am."
    assert answered < 3
    assert stopped
    assert result.outcome == "stopped"
    assert took < 3


# -- what is ours is not the model's ------------------------------------------------------------------------------

OURS = [
    "sessions/cli_direct.jsonl",
    "sessions/new.jsonl",
    "memory/HISTORY.md",
    "cron/jobs.json",
    "../config.json",
    "../pairing.json",
    "../state/turns/cli_direct.jsonl",
    "../sessions/old.jsonl",
    "link/cli_direct.jsonl",
]


@POSIX
async def test_file_tools_do_not_write_into_our_state(tmp_path: Path):
    workspace = tmp_path / "workspace"
    (workspace / "sessions").mkdir(parents=True)
    (workspace / "link").symlink_to(workspace / "sessions")
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    wanted = [("write_file", {"path": path, "content": "{}"}) for path in OURS]
    wanted.append(("edit_file", {"path": "../config.json", "old_text": "{", "new_text": "["}))

    async with open_bot(tmp_path, calls(*wanted), "I may not.") as bot:
        await bot.say("change your own state")

    told = [str(row["content"]) for row in bot.provider.requests[1] if row["role"] == "tool"]
    assert len(told) == len(wanted)
    assert all("nanobot's own state" in said or "holds secrets" in said for said in told)
    assert (tmp_path / "config.json").read_text(encoding="utf-8") == "{}"
    assert not (workspace / "sessions" / "new.jsonl").exists()
    assert not (workspace / "memory" / "HISTORY.md").exists()


@POSIX
def test_what_a_command_did_to_the_session_and_the_log_is_survived(served: Home, server: FakeModels):
    damage = (
        'printf \'garbage\\377\\000 {"role": 1}\\n{"role":"user","content":7}\\n\' >> sessions/cli_direct.jsonl;'
        "printf '\\377\\376 no entry\\n\\n\\n[broken' >> memory/HISTORY.md"
    )
    server.script(Say("first"), Calls(("exec", {"command": damage})), Say("done"), Say("third"))
    served.ask("one")
    served.ask("break it")

    result = served.ask("three")

    said = [row["content"].split("\n")[0] for row in server.chats[-1].json["messages"] if row["role"] == "user"]
    assert (result.code, result.out, result.complaint) == (0, "third\n", "")
    assert said[0] == "one"
    assert said[-1].endswith("three")
    assert served.run("sessions", "show", "cli:direct").code == 0


# -- messages and keys --------------------------------------------------------------------------------------------


def test_a_message_of_a_megabyte_is_kept_and_refused_with_what_to_do_and_the_next_one_is_answered(
    served: Home, server: FakeModels
):
    text = "word " * 200_000

    long = served.run("agent", "-s", "cli:direct", stdin=text.encode())
    after = served.ask("and now?")

    assert (long.code, long.out, after.out) == (1, "", "ok\n")
    assert "too long for the model" in long.complaint
    assert "in parts" in long.complaint
    assert served.said()[0] == ("user", text)
    assert len(server.chats) == 1
    assert len(json.dumps(server.chats[-1].json)) < 1_000_000


def test_a_session_key_of_any_shape_is_its_own_session_inside_the_folder(served: Home, server: FakeModels):
    keys = ["a/b/../../etc", "..", "🎉 🎉", "x" * 3_000]

    for key in keys:
        assert served.ask(f"I am {key[:20]}", "-s", key).out == "ok\n"

    for key, chat in zip(keys, server.chats, strict=True):
        assert [row["role"] for row in chat.json["messages"]] == ["system", "user"], key
    listed = json.loads(served.run("sessions", "list", "--json").out)
    assert sorted(row["key"] for row in listed) == sorted(keys)
    state = served.data / "state"
    folders = {served.sessions, state / "traces"}
    assert {path.parent for path in served.path.rglob("*.jsonl")} == folders


async def test_a_clock_far_in_the_past_or_future_changes_nothing(tmp_path: Path):
    sessions = tmp_path / "workspace" / "sessions"
    sessions.mkdir(parents=True)
    rows = [
        {"role": "user", "content": when, "timestamp": when} for when in ("0001-01-01T00:00:00", "9999-12-31T23:59")
    ]
    head = {"_type": "metadata", "key": "cli:direct", "created_at": "9999-12-31T23:59:59", "updated_at": "never"}
    (sessions / "cli_direct.jsonl").write_text("\n".join(map(json.dumps, [head, *rows])) + "\n", encoding="utf-8")
    os.utime(sessions / "cli_direct.jsonl", (0, 0))

    async with open_bot(tmp_path, "hi") as bot:
        assert await bot.say("hello") == "hi"
        assert [row["key"] for row in SessionManager(bot.workspace).list_sessions()] == ["cli:direct"]


def test_two_hundred_sessions_are_listed_in_a_moment(home: Home):
    home.sessions.mkdir(parents=True)
    for number in range(200):
        row = json.dumps({"role": "user", "content": f"I am {number}", "timestamp": "2026-01-01T00:00:00"})
        (home.sessions / f"cli_{number}.jsonl").write_text(row + "\n", encoding="utf-8")
    began = time.monotonic()

    result = home.run("sessions", "list")

    assert len(result.out.splitlines()) == 200
    assert time.monotonic() - began < 5  # about 0.4 on the machine it was written on


def test_a_session_of_a_hundred_thousand_messages_opens_in_a_moment(served: Home, server: FakeModels):
    served.sessions.mkdir(parents=True)
    pair = [json.dumps({"role": role, "content": "some words " * 5}) + "\n" for role in ("user", "assistant")]
    (served.sessions / "cli_direct.jsonl").write_text("".join(pair) * 50_000, encoding="utf-8")
    began = time.monotonic()

    result = served.ask("hello")

    assert result.out == "ok\n"
    assert time.monotonic() - began < 5  # about 0.5 on the machine it was written on
    assert server.chats[0].json["messages"][-1]["content"].startswith("hello")
