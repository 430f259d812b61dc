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


@pytest.mark.parametrize("words", [(), ("agent", "-m", "-")], ids=["a pipe alone", "-m -"])
def test_a_message_may_come_through_a_pipe(home, server, words):
    home.run(*words, stdin="what is 漢字?\n".encode())

    assert asked(server).startswith("what is 漢字?\n\n")


def test_piped_text_beside_a_message_is_part_of_it(home, server):
    home.run("agent", "-m", "why?", "-s", "cli:work", stdin=b"12:00 ERROR out of memory\n")

    assert asked(server).startswith("why?\n\n12:00 ERROR out of memory\n\n")


@pytest.mark.parametrize(
    "words",
    [("why is that?",), ("--model=other", "why"), ("-s", "cli:work", "why")],
    ids=str,
)
def test_nanobot_alone_takes_a_sentence_and_the_options_of_agent(home, server, words):
    assert home.run(*words) == (0, "ok\n", "")


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


def test_messages_without_a_session_do_not_see_each_other_and_the_chat_is_not_continued(home, server):
    server.default = Say("Fine.")
    home.run("agent", "-s", "cli:direct", "-m", "of the chat")
    home.run("agent", "-m", "first")
    home.run("agent", "second")

    roles = [[row["role"] for row in chat.json["messages"]] for chat in server.chats]
    assert roles == [["system", "user"]] * 3
    home.run("agent", "--continue", "-m", "third")
    assert "second" in str(server.chats[-1].json["messages"])


def test_a_command_is_about_the_session_of_the_chat(home, server):
    server.default = Say("Fine.")
    home.run("agent", "-s", "cli:direct", "-m", "of the chat")

    assert "you: of the chat" in home.run("agent", "-m", "/history").out


def test_a_model_on_the_command_line_wins_over_the_one_that_was_chosen_by_a_command(home, server):
    server.models[:] = ["stand-in", "big", "small"]
    server.default = Say("Fine.")
    home.run("agent", "-s", "cli:work", "-m", "/model small")

    home.run("agent", "-s", "cli:work", "--model", "big", "-m", "hi")
    home.run("agent", "-s", "cli:work", "-m", "hi again")

    assert [chat.json["model"] for chat in server.chats] == ["big", "small"]


def test_models_of_the_server_are_listed_and_an_unknown_one_is_refused_and_changes_nothing(home, server):
    server.models[:] = ["stand-in", "talk-mini"]
    server.default = Say("Fine.")

    assert "\n  talk-mini" in home.run("agent", "-m", "/model").out
    assert "custom has no model 'talk-mani'. Did you mean talk-mini?" in home.run("agent", "-m", "/model talk-mani").out
    home.run("agent", "-s", "cli:direct", "-m", "hi")
    assert server.chats[-1].json["model"] == "stand-in"


@pytest.mark.parametrize("words", [("agent",), ("-m", ""), ("-m", " \n "), ("-m", "-"), ("--json",), ("",)], ids=str)
def test_an_empty_message_is_wrong_usage_and_the_error_says_what_to_write(words):
    done = CliRunner().invoke(app, list(words))

    assert (done.exit_code, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert 'Example: nanobot "' in done.stderr


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("-s", "a", "--continue"), "Leave one out"),
        (("-s", " "), "--session cli:work"),
        (("--attach", "nowhere.png"), "does not exist"),
        (("--attach", "."), "is not a file"),
    ],
)
def test_words_that_do_not_fit_are_refused_with_the_way_out(words, hint):
    done = CliRunner().invoke(app, ["agent", "-m", "hi", *words])

    assert done.exit_code == 2
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
    server.script(Calls(("list_dir", {"path": "."})), Say("Done.", reasoning="hm"))

    code, out, _ = home.run("agent", "-m", "go", "--json")

    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [row["seq"] for row in rows] == [*range(len(rows))]
    assert len({row["turn_id"] for row in rows}) == 1
    assert rows[0]["type"] == "run_started"
    assert {"tool_started", "tool_ended", "reasoning_delta", "text_delta", "step_ended"} <= {
        row["type"] for row in rows
    }
    assert rows[-1]["type"] == "turn_ended"
    assert (rows[-1]["outcome"], rows[-1]["text"]) == ("answered", "Done.")


def test_what_the_agent_sends_to_this_chat_is_a_line_of_its_own_among_the_events(home, server):
    server.script(Calls(("message", {"content": "The kettle is on."})), Say("Done."))

    _, out, _ = home.run("agent", "-m", "tea?", "--json")

    rows = [json.loads(line) for line in out.splitlines()]
    assert {"type": "message", "text": "The kettle is on."} in rows
    assert rows[-1]["text"] == "Done."


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
def test_a_signal_before_the_first_word_stops_it_too(home, server):
    server.script(Hang())
    process = home.start("agent", "-m", "hi")
    wait_until(lambda: server.chats)

    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)

    assert process.returncode == 130


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
    home.run("agent", "-m", "first", "-s", "cli:one")
    home.run("agent", "-m", "second", "-s", "two/../☃ x")
    home.run("agent", "-m", "third", "-s", "telegram:7")
    home.run("agent", "-m", "fourth", "--continue")

    said = [row["content"].split("\n")[0] for row in server.chats[-1].json["messages"] if row["role"] == "user"]
    assert said == ["second", "fourth"]
    sessions = (home.data / "workspace" / "sessions").rglob("*.jsonl")
    assert len([*sessions]) == 3


def test_another_model_another_workspace_for_one_message(home, server, tmp_path):
    place = tmp_path / "elsewhere"

    home.run("agent", "-m", "hi", "--model", "other", "-w", str(place))

    assert server.chats[-1].json["model"] == "other"
    assert (place / "AGENTS.md").exists()
    assert not (home.data / "workspace").exists()


def test_files_may_go_with_the_message(home, server, tmp_path):
    (tmp_path / "notes.txt").write_text("milk")

    home.run("agent", "-m", "what is this?", "--attach", str(tmp_path / "notes.txt"))

    assert str(tmp_path / "notes.txt") in asked(server)


def test_a_slash_command_is_answered_without_a_model(home, server):
    code, out, _ = home.run("agent", "-m", "/help")

    assert code == 0
    assert "/new" in out
    assert not server.chats


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

    def test_no_colour_means_no_escape_sequence_for_colour_or_weight(home, server):
        server.script(Say("# Found\n\nSome **files**, `code`.\n\n```py\nx = 1\n```"))

        shown = whole(at_terminal(home, "-m", "hi", NO_COLOR="1"))

        assert "Some files, code." in shown
        assert not re.search(r"\x1b\[[0-9;]*m", shown)

    def test_without_markdown_the_text_is_shown_as_it_is(home, server):
        server.script(Say("# Found\n\n\nSome **files**."))

        shown = words_of(whole(at_terminal(home, "-m", "hi", "--no-markdown")))

        assert shown.endswith("# Found\n\n\nSome **files**.\n")

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

    def test_ctrl_c_on_a_terminal_keeps_what_was_said(home, server):
        server.script(Hang("Half of it"))
        child = at_terminal(home, "-m", "hi")
        child.expect("Half of it")

        child.sendintr()
        shown = whole(child)

        assert child.exitstatus == 130
        assert words_of(shown).endswith("Half of it\n\n(stopped)\n")

    def test_a_dumb_terminal_gets_a_plain_chat(home, server):
        server.script(Say("**first**"), Say("second"))
        child = at_terminal(home, TERM="dumb")
        child.expect("> ")
        child.sendline("one")
        child.expect(r"\*\*first\*\*")
        child.expect("> ")
        child.sendline("two and @AGENTS.md")
        child.expect("second")
        child.sendline("exit")

        assert "\x1b" not in whole(child)
        assert child.exitstatus == 0
        assert str(home.data / "workspace" / "AGENTS.md") in asked(server)

    def test_a_plain_chat_reopens_a_conversation_of_another_session_by_its_number(home, server):
        home.run("agent", "-s", "cli:work", "-m", "About plums")
        home.run("agent", "-s", "cli:direct", "-m", "About cats")

        child = at_terminal(home, TERM="dumb")
        child.expect("> ")
        child.sendline("/sessions")
        child.expect("2. About plums")
        child.sendline("/resume 2")
        child.expect("you: About plums")
        child.sendline("Go on")
        child.expect("ok")
        child.sendline("exit")

        whole(child)
        sent = str(server.chats[-1].json["messages"])
        assert "About plums" in sent
        assert "About cats" not in sent

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

    def test_the_chat_starts_from_the_command_and_leaves(home, server):
        child = at_terminal(home)
        child.expect(r"stand-in \(custom\)")
        child.expect("~/.nanobot/workspace")
        child.expect(">")
        child.send("hello\r")
        child.expect("ok")
        child.send("exit\r")

        whole(child)

        assert child.exitstatus == 0
        assert (home.data / "history" / "cli_history").stat().st_mode & 0o777 == 0o600

    def test_leaving_names_the_reminders_that_will_not_come_and_what_to_start(home, server):
        job = ("-n", "stretch", "-m", "Stretch your legs", "--at", "2035-01-01T10:00")
        home.run("cron", "add", *job, "--deliver", "--channel", "cli", "--to", "direct")
        child = at_terminal(home)
        child.expect(">")
        child.send("exit\r")

        shown = " ".join(whole(child).split())

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
