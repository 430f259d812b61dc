"""`nanobot agent` as programs and people run it: a real process, a real model server on loopback."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nanobot.cli.main import app
from nanobot.testing.model_server import Calls, CutStream, Fail, FakeModels, Hang, Say, Slow
from tests.support.eventually import wait_until
from tests.support.forkserver import started
from tests.support.home import NANOBOT, POSIX, Home


@pytest.fixture
def server():
    with FakeModels() as running:
        yield running


@pytest.fixture
def home(tmp_path, server):
    return Home(tmp_path, server)


def asked(server: FakeModels) -> str:
    """What the person said in the last request."""
    return str(server.chats[-1].json["messages"][-1]["content"])


def test_a_pipe_gets_the_answer_and_nothing_else(home, server):
    server.script(Calls(("list_dir", {"path": "."})), Say("Some *files*."))

    assert home.run("agent", "-m", "what is here?") == (0, "Some *files*.\n", "")


@pytest.mark.parametrize(
    ("words", "piped", "sent"),
    [
        ((), "what is 漢字?\n", "what is 漢字?\n\n"),
        (("agent", "-m", "-"), "what is 漢字?\n", "what is 漢字?\n\n"),
        (("agent", "-m", "why?"), "12:00 ERROR out of memory\n", "why?\n\n12:00 ERROR out of memory\n\n"),
        (("--model=other", "-s", "cli:work", "why is that?"), None, "why is that?\n\n"),
    ],
    ids=str,
)
def test_a_message_is_words_with_the_options_of_agent_or_comes_through_a_pipe_or_both(home, server, words, piped, sent):
    assert home.run(*words, stdin=piped and piped.encode()) == (0, "ok\n", "")
    assert asked(server).startswith(sent)


def test_an_open_pipe_without_text_is_given_up_and_said_so(home, server):
    server.script(Say("Fine."))
    hasty = "from nanobot.cli.commands import agent; agent._STDIN_WAIT_S = 0.5; import nanobot.__main__ as m; m.main()"
    process = subprocess.Popen(
        [sys.executable, "-c", hasty, "agent", "how are you?"],
        env=home.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None

    out, aside = process.stdout.read(), process.stderr.read()
    process.communicate()

    assert (process.returncode, out) == (0, b"Fine.\n")
    assert b"nothing was piped in within 0.5 s" in aside


def test_messages_without_a_session_are_apart_and_a_command_is_about_the_session_of_the_chat(home, server):
    server.default = Say("Fine.")
    home.run("agent", "-s", "cli:direct", "-m", "of the chat")
    home.run("agent", "-m", "first")

    roles = [[row["role"] for row in chat.json["messages"]] for chat in server.chats]
    assert roles == [["system", "user"]] * 2
    assert "you: of the chat" in home.run("agent", "-m", "/history").out
    home.run("agent", "--continue", "-m", "second")
    assert "first" in str(server.chats[-1].json["messages"])


def test_a_model_is_chosen_by_a_command_and_for_once_on_the_command_line_and_an_unknown_one_is_refused(home, server):
    server.models[:] = ["stand-in", "big", "talk-mini"]
    server.default = Say("Fine.")

    listed, unknown = (home.run("agent", "-s", "cli:work", "-m", f"/model{name}").out for name in ("", " talk-mani"))
    home.run("agent", "-s", "cli:work", "-m", "hi")
    home.run("agent", "-s", "cli:work", "-m", "/model talk-mini")
    home.run("agent", "-s", "cli:work", "--model", "big", "-m", "hi")
    home.run("agent", "-s", "cli:work", "-m", "hi again")

    assert "\n  talk-mini" in listed
    assert "custom has no model 'talk-mani'. Did you mean talk-mini?" in unknown
    assert [chat.json["model"] for chat in server.chats] == ["stand-in", "big", "talk-mini"]


EXAMPLE = 'Example: nanobot "'


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("agent",), EXAMPLE),
        (("-m", " \n "), EXAMPLE),
        (("-m", "-"), EXAMPLE),
        (("--json",), EXAMPLE),
        (("",), EXAMPLE),
        (("agent", "-m", "hi", "-s", "a", "--continue"), "Leave one out"),
        (("agent", "-m", "hi", "-s", " "), "--session cli:work"),
        (("agent", "-m", "hi", "--attach", "nowhere.png"), "does not exist"),
        (("agent", "-m", "hi", "--attach", "."), "is not a file"),
    ],
    ids=str,
)
def test_no_message_and_words_that_do_not_fit_are_refused_in_a_line_with_what_to_write(words, hint):
    done = CliRunner().invoke(app, [*words])

    assert (done.exit_code, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert hint in done.stderr


def test_a_message_of_a_megabyte_arrives_whole(home, server):
    server.default = Say("read")
    text = "0123456789" * 100_000
    config = home.data / "config.json"
    settings = json.loads(config.read_text())
    settings["agents"]["defaults"]["contextWindowTokens"] = 1_000_000
    config.write_text(json.dumps(settings))

    assert home.run("agent", stdin=text.encode()) == (0, "read\n", "")
    assert asked(server).startswith(text)


@POSIX
def test_bytes_that_are_no_text_do_not_break_anything(home, server):
    assert home.run("agent", "-m", os.fsdecode(b"caf\xc3\xa9 \xff\xfe")).code == 0
    assert asked(server).startswith("café ��\n")


def test_json_is_one_event_a_line_from_the_start_of_the_run_to_the_end_of_the_turn(home, server):
    tools = Calls(("list_dir", {"path": "."}), ("message", {"content": "The kettle is on."}))
    server.script(tools, Say("Done.", reasoning="hm"))

    code, out, _ = home.run("agent", "-m", "go", "--json")

    lines = [json.loads(line) for line in out.splitlines()]
    rows = [line for line in lines if line["type"] != "message"]
    assert code == 0
    assert {"type": "message", "text": "The kettle is on."} in lines
    assert [row["seq"] for row in rows] == [*range(len(rows))]
    assert len({row["turn_id"] for row in rows}) == 1
    assert rows[0]["type"] == "run_started"
    assert {"tool_started", "tool_ended", "reasoning_delta", "text_delta", "step_ended"} <= {
        row["type"] for row in rows
    }
    assert rows[-1]["type"] == "turn_ended"
    assert (rows[-1]["outcome"], rows[-1]["text"]) == ("answered", "Done.")


@pytest.mark.parametrize("words", [(), ("--json",)], ids=["plain", "json"])
def test_a_failed_turn_is_one_line_on_stderr_and_exit_code_1_and_the_next_one_works(home, server, words):
    server.script(Fail(401, "bad key"))

    code, out, aside = home.run("agent", "-m", "hi", *words)

    assert code == 1
    assert len(aside.splitlines()) == 1
    assert "providers.custom" in aside
    assert "Traceback" not in out + aside
    assert home.run("agent", "-m", "again")[:2] == (0, "ok\n")


def test_what_was_said_before_a_cut_is_kept_on_stdout(home, server):
    server.default = CutStream("The first half")

    code, out, aside = home.run("agent", "-m", "hi")

    assert code == 1
    assert out.startswith("The first half")
    assert aside.splitlines()[0].strip() == "The answer broke off; asking for the rest of it."
    assert aside.splitlines()[1].startswith("Error: ")


def test_the_answer_comes_out_while_it_is_being_written(home, server):
    server.script(Slow(Say("one two three four", pieces=4), each_s=0.15))

    process = home.start("agent", "-m", "hi")
    assert process.stdout is not None
    first = os.read(process.stdout.fileno(), 100)
    still_writing = process.poll() is None
    rest, _ = process.communicate(timeout=30)

    assert still_writing
    assert len(first) < 10
    assert (first + rest).decode() == "one two three four\n"


@POSIX
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_turn_and_keeps_what_was_said(home, server, number, code):
    server.script(Hang("Half of it"))
    process = home.start("agent", "-m", "hi")
    assert process.stdout is not None
    said = b""
    while b"Half of it" not in said:
        said += os.read(process.stdout.fileno(), 100)

    process.send_signal(number)
    _, aside = process.communicate(timeout=10)

    assert process.returncode == code
    assert aside.decode() == "(stopped)\n"
    kept = "".join(path.read_text() for path in (home.data / "workspace" / "sessions").glob("*.jsonl"))
    assert "Half of it" in kept


@POSIX
def test_a_signal_before_the_first_word_stops_it_too_but_not_one_that_nohup_ignores(home, server):
    server.script(Hang())
    process = home.start("agent", "-m", "hi", before=["sh", "-c", 'trap "" HUP; exec "$@"', "sh"])
    wait_until(lambda: server.chats)

    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    goes_on = process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)

    assert (goes_on, process.returncode) == (True, 130)


def test_a_reader_who_leaves_ends_it_quietly(home, server):
    server.script(Slow(Say("\n".join(f"line {number}" for number in range(50)), pieces=50), each_s=0.05))
    process = home.start("agent", "-m", "hi")
    assert process.stdout is not None
    assert process.stderr is not None

    process.stdout.readline()
    process.stdout.close()
    started = time.monotonic()
    code = process.wait(timeout=10)

    assert code == 0
    assert process.stderr.read() == b""
    assert time.monotonic() - started < 8
    process.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_an_output_that_cannot_be_written_is_an_error_and_the_answer_is_kept(home, server):
    command = [*NANOBOT, "agent", "-m", "hi"]

    with Path("/dev/full").open("w") as full:
        process = started(command, env=home.environ, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE)
    _, aside = process.communicate()

    assert process.returncode == 1
    assert len(aside.splitlines()) == 1
    assert b"No space left" in aside


def test_sessions_are_apart_and_continue_takes_the_newest_of_the_terminal(home, server):
    home.run("agent", "-m", "first", "-s", "two/../☃ x")
    home.run("agent", "-m", "second", "-s", "telegram:7")
    home.run("agent", "-m", "third", "--continue")

    said = [row["content"].split("\n")[0] for row in server.chats[-1].json["messages"] if row["role"] == "user"]
    assert said == ["first", "third"]
    assert len([*(home.data / "workspace" / "sessions").rglob("*.jsonl")]) == 2


def test_another_model_another_workspace_and_files_for_one_message(home, server, tmp_path):
    place, notes = tmp_path / "elsewhere", tmp_path / "notes.txt"
    notes.write_text("milk")

    home.run("agent", "-m", "hi", "--model", "other", "-w", str(place), "--attach", str(notes))

    assert server.chats[-1].json["model"] == "other"
    assert str(notes) in asked(server)
    assert (place / "AGENTS.md").exists()
    assert not (home.data / "workspace").exists()


def test_a_config_that_cannot_be_read_stops_it(home):
    (home.data / "config.json").write_text("{ not json")

    code, out, aside = home.run("agent", "-m", "hi")

    assert (code, out) == (78, "")
    assert "config.json" in aside


if sys.platform != "win32":
    import pexpect

    from tests.support.terminal import on_screen

    def at_terminal(home: Home, *words: str, **environ: str) -> "pexpect.spawn":
        env = {**home.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", **environ}
        command = [*NANOBOT, "agent", *words]
        return on_screen(command, env=env, encoding="utf-8", timeout=15, dimensions=(24, 80))

    def whole(child: "pexpect.spawn") -> str:
        """All that came, and the end of the process."""
        child.expect(pexpect.EOF)
        child.close()
        return str(child.before)

    def words_of(screen: str) -> str:
        """What stands on the terminal in the end: lines that were drawn anew count once."""
        shown = ""
        screen = re.sub(r"\x1b\[\?2026[hl]", "", screen)
        for text in re.split(r"(?=\r(?:\x1b\[\d+A)?\x1b\[J)", screen.replace("\r\n", "\n")):
            erase = re.match(r"\r(?:\x1b\[(\d+)A)?\x1b\[J", text)
            if erase:
                shown = "\n".join([*shown.split("\n")[: -1 - int(erase[1] or 0)], ""])
            shown += re.sub(r"\x1b\[[0-9;]*[a-zA-Z]", "", text).replace("\r", "")
        return shown

    def test_a_terminal_sees_markdown_tool_lines_and_no_trace_of_waiting(home, server):
        server.script(Calls(("list_dir", {"path": "."})), Slow(Say("# Found\n\nSome **files**."), first_s=0.5))

        child = at_terminal(home, "-m", "what is here?")
        child.expect("thinking")
        shown = words_of(child.before + child.after + whole(child))

        assert child.exitstatus == 0
        assert re.fullmatch(r"  list_dir \.  \d\.\d\ds  \d+ lines\n\nFound\n\nSome files\.\n", shown)

    @pytest.mark.parametrize(
        ("words", "environ", "ends"),
        [
            ((), {"NO_COLOR": "1"}, "Found\n\nSome files, code.\n\n▎ x = 1\n"),
            (("--no-markdown",), {}, "# Found\n\nSome **files**, `code`.\n\n```py\nx = 1\n```\n"),
        ],
        ids=["without colours", "without markdown"],
    )
    def test_colours_and_markdown_can_be_left_out(home, server, words, environ, ends):
        server.script(Say("# Found\n\nSome **files**, `code`.\n\n```py\nx = 1\n```"))

        shown = whole(at_terminal(home, "-m", "hi", *words, **environ))

        assert words_of(shown).endswith(ends)
        assert not (environ and re.search(r"\x1b\[[0-9;]*m", shown))

    def test_a_failure_on_a_terminal_goes_to_stderr_wherever_that_leads(home, server, tmp_path):
        server.script(Fail(401, "bad key"))
        log = tmp_path / "errors.txt"
        command = " ".join(f"'{word}'" for word in [*NANOBOT, "agent", "-m", "hi"])
        env = {**home.environ, "TERM": "xterm-256color"}

        child = pexpect.spawn("sh", ["-c", f"{command} 2>'{log}'"], env=env, encoding="utf-8", timeout=15)
        shown = whole(child)

        assert child.exitstatus == 1
        assert words_of(shown).strip() == ""
        assert re.fullmatch(r"Error: .*providers\.custom.*\n", log.read_text())

    def test_a_dumb_terminal_gets_a_plain_chat_that_reopens_a_conversation_by_its_number(home, server):
        home.run("agent", "-s", "cli:work", "-m", "About plums")
        home.run("agent", "-s", "cli:direct", "-m", "About cats")
        server.script(Say("**first**"), Say("second"))

        child = at_terminal(home, TERM="dumb")
        for seen, typed in (
            ("> ", "one"),
            (r"\*\*first\*\*", None),
            ("> ", "/sessions"),
            ("2. About plums", "/resume 2"),
            ("you: About plums", "two and @AGENTS.md"),
            ("second", "exit"),
        ):
            child.expect(seen)
            if typed:
                child.sendline(typed)

        assert "\x1b" not in whole(child)
        assert child.exitstatus == 0
        assert str(home.data / "workspace" / "AGENTS.md") in asked(server)
        sent = str(server.chats[-1].json["messages"])
        assert ("About plums" in sent, "About cats" in sent) == (True, False)

    def test_a_plain_chat_takes_up_what_was_cut_off(home, server):
        server.script(Hang("Half of"), Say(" the answer."))
        killed = home.start("agent", "-s", "cli:direct", "-m", "hi")
        assert killed.stdout is not None
        os.read(killed.stdout.fileno(), 10)
        killed.kill()
        killed.communicate()

        child = at_terminal(home, TERM="dumb")
        child.expect("the answer.")
        child.expect("> ")
        child.sendline("exit")

        whole(child)
        assert child.exitstatus == 0
        assert len(server.chats) == 2

    def test_the_chat_starts_from_the_command_and_names_on_leaving_the_reminders_that_will_not_come(home, server):
        job = ("-n", "stretch", "-m", "Stretch your legs", "--at", "2035-01-01T10:00")
        home.run("cron", "add", *job, "--deliver", "--channel", "cli", "--to", "direct")
        child = at_terminal(home)
        child.expect(r"stand-in \(custom\)")
        child.expect("~/.nanobot/workspace")
        child.expect(">")
        child.send("hello\r")
        child.expect("ok")
        child.send("exit\r")

        shown = " ".join(whole(child).split())

        assert child.exitstatus == 0
        assert (home.data / "history" / "cli_history").stat().st_mode & 0o777 == 0o600
        assert "stretch (2035-01-01 10:00)" in shown
        assert "nanobot gateway install" in shown

    def test_a_reminder_in_an_open_chat_is_headed_by_its_time_and_a_name_it_does_not_say(home, server):
        server.default = Say("Stretch your legs.")
        child = at_terminal(home)
        child.expect(r"stand-in \(custom\)")
        for name in ("break", "stretch"):
            job = ("-n", name, "-m", "Stretch your legs", "--at", "+1s")
            home.run("cron", "add", *job, "--deliver", "--channel", "cli", "--to", "direct")

        shown = ""
        for _ in range(2):
            child.expect("\a")
            shown += child.before
        child.send("exit\r")
        whole(child)

        assert shown.count("Stretch your legs") == 2
        assert re.search(r"break\S*, \d\d:\d\d", shown)
        assert "stretch" not in shown.replace("Stretch", "")
