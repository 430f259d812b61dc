"""The chat in a real pseudo-terminal, with a real engine and a model that does as it is told."""

import base64
import json
import os
import re
import signal
import sys
import time

import pytest

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are a POSIX thing", allow_module_level=True)

import pexpect

from tests.support.terminal import on_screen

ESCAPE, CTRL_C, CTRL_D, CTRL_R, TAB, END = "\x1b", "\x03", "\x04", "\x12", "\t", "\x05"
ALT_ENTER = "\x1b\r"
SHIFT_ENTER = "\x1b[13;2u"
BOTTOM_LINE = "obedient"


class Terminal:
    """A person at a terminal: types, and waits to see something."""

    def __init__(self, home, folder=None, **environ: str) -> None:
        inherited = {key: value for key, value in os.environ.items() if key in ("PATH", "PYTHONPATH", "VIRTUAL_ENV")}
        env = {**inherited, "HOME": str(home), "TERM": "xterm-256color", "LANG": "C.UTF-8", **environ}
        command = [sys.executable, "-m", "tests.cli.chat_child", str(home)]
        self.child = on_screen(
            command, env=env, cwd=folder and str(folder), dimensions=(24, 80), encoding="utf-8", timeout=15
        )
        self.child.delaybeforesend = None
        self.seen = ""

    def see(self, pattern: str) -> str:
        """Wait for it; what came before it."""
        self.child.expect(pattern)
        self.seen += self.child.before + self.child.after
        return str(self.child.before)

    def type(self, text: str) -> None:
        self.child.send(text)

    def say(self, line: str) -> None:
        self.type(line + "\r")

    def leave(self) -> int:
        self.type(CTRL_D)
        self.child.expect(pexpect.EOF)
        self.seen += self.child.before
        self.child.close()
        return int(self.child.exitstatus)

    @property
    def words(self) -> str:
        """All that was written, without what moves the cursor or colours."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]", "", self.seen)


@pytest.fixture
def terminal(tmp_path):
    opened = Terminal(tmp_path)
    opened.see(BOTTOM_LINE)
    yield opened
    opened.child.close(force=True)


def test_it_greets_answers_with_a_tool_line_and_its_time_counts_the_window_copies_and_leaves(terminal):
    terminal.say("/copy")
    terminal.see("no answer to copy")
    terminal.say("list")
    terminal.see(r"  list_dir \.  \d+\.\d\ds")
    terminal.see("spoken")
    terminal.see(r"2\.0k in.*3% of 65\.5k window")
    terminal.say("/status")
    terminal.see(r"Window: 2,050 of 65,536 tokens \(3%\)")
    terminal.see(r"3% of 65\.5k window")

    terminal.say("/copy")

    encoded = base64.b64encode(b"The tool has **spoken**.").decode()
    terminal.see(re.escape(f"\x1b]52;c;{encoded}"))
    terminal.see("Copied the last answer")
    terminal.say("/EXIT")
    terminal.child.expect(pexpect.EOF)
    terminal.child.close()
    assert terminal.child.exitstatus == 0
    assert "/help" in terminal.words
    assert "The tool has spoken." in terminal.words


def test_somebody_who_waits_sees_it_at_once_and_how_to_stop_it_and_what_is_running(terminal):
    terminal.say("think")
    terminal.see("thinking")
    terminal.see("I have thought")
    terminal.say("hang")
    terminal.see("Esc stops")
    terminal.see("Half a")
    terminal.say("/status")
    terminal.see("Running turns: cli:direct")


def test_what_a_library_prints_messages_from_elsewhere_and_wide_characters_come_out_whole(terminal):
    terminal.say("print")
    terminal.see("2.0k in")
    terminal.say("post")
    terminal.see("message")
    terminal.see("A word from elsewhere.")
    terminal.see("4.0k in")
    terminal.say("wide")
    terminal.see("終わり")
    terminal.see("6.0k in")
    terminal.leave()

    assert "a stray line" in terminal.words
    assert "Printed." in terminal.words
    assert terminal.seen.count("\a") == 1  # the message rings
    assert "漢字と言葉。" * 40 + "終わり" in re.sub(r"\s", "", terminal.words)


def test_esc_and_ctrl_c_stop_the_turn_keep_what_was_said_and_give_queued_lines_back_to_be_edited(terminal):
    for key in (ESCAPE, CTRL_C):
        terminal.say("hang")
        terminal.see("Half a sentence and")
        terminal.say("changed my mind")
        terminal.see("queued: changed my mind")
        terminal.type(key)
        terminal.see(r"\(stopped\)")
        terminal.say(" twice")
        terminal.see('You said "changed my mind twice"')

    assert terminal.leave() == 0


def test_ctrl_c_empties_the_prompt_and_leaves_only_when_it_is_pressed_twice_at_an_empty_one(terminal):
    terminal.type("half a line")
    terminal.see("half a line")  # the prompt reads keys from here on: before that, Ctrl+C is the terminal's own
    terminal.type(CTRL_C)
    terminal.say("hello")
    terminal.see('You said "hello"')
    terminal.see("2.0k in")
    outcomes: list[int] = []
    while 1 not in outcomes and len(outcomes) < 8:  # two presses, unless the machine is so busy that it takes more
        terminal.type(CTRL_C)
        outcomes.append(terminal.child.expect(["exits", pexpect.EOF, pexpect.TIMEOUT], timeout=1))
    terminal.child.close()

    assert 0 in outcomes
    assert terminal.child.exitstatus == 0


def test_a_line_typed_meanwhile_is_queued_in_sight_and_half_a_line_is_kept(terminal):
    terminal.say("say 60")
    terminal.see("word3")
    terminal.say("second message")
    terminal.see("queued: second message")
    terminal.type("and then")

    terminal.see('You said "second message"')
    terminal.say(" the third")

    terminal.see('You said "and then the third"')
    assert "word59" in terminal.words


@pytest.mark.needs_sandbox
def test_a_line_typed_while_a_tool_runs_joins_the_turn(terminal):
    terminal.say("work")
    terminal.see("exec")
    terminal.say("in French")
    terminal.see("queued: in French")
    terminal.see(r"> .*in French")

    terminal.see('You said "in French"')
    terminal.say("hello")
    terminal.see('You said "hello"')
    assert terminal.words.count('You said "in French"') == 1


@pytest.mark.needs_sandbox
def test_a_chat_that_was_killed_in_the_middle_of_a_tool_goes_on_when_it_is_opened_again(terminal, tmp_path):
    terminal.say("work")
    terminal.see("exec")
    time.sleep(0.2)
    terminal.child.kill(signal.SIGKILL)
    terminal.child.wait()

    again = Terminal(tmp_path)
    again.see("May or may not have run: exec")
    again.see("2.0k in")

    assert again.leave() == 0


def test_new_lines_and_pastes_are_part_of_one_message_and_a_huge_paste_is_shown_short(terminal):
    for keys in (ALT_ENTER, SHIFT_ENTER):
        terminal.type("one" + keys + "two")
        terminal.say("")
        terminal.see(re.escape(r'You said "one\ntwo"'))
    terminal.type("hello\n")  # a line may end in a line feed too
    terminal.see('You said "hello"')
    os.write(terminal.child.child_fd, b"caf\xff\r")  # no text, and the history takes it too
    terminal.see('You said "caf')
    terminal.type("\x1b[200~one\ntwo\n  three\x1b[201~")
    terminal.say("!")
    terminal.see(re.escape(r'You said "one\ntwo\n  three!"'))

    lines = "".join(f"line {number}\n" for number in range(5000))
    terminal.type(f"\x1b[200~{lines}\x1b[201~")
    terminal.see(re.escape("[pasted #1, 5000 lines]"))
    terminal.say("")
    terminal.see(f"You said {len(lines.strip())} characters")


def test_slash_commands_are_completed_with_their_help_and_ctrl_r_finds_an_earlier_line(terminal):
    terminal.type("/hel")
    terminal.see("this list")
    terminal.type(TAB)
    terminal.say("")

    terminal.see("/history +N +the last messages")
    terminal.see("Alt.Enter +start a new line")
    terminal.say("remarkable")
    terminal.see('You said "remarkable"')
    terminal.type(CTRL_R + "remark")
    terminal.see("remark")
    time.sleep(0.1)
    terminal.type("\r" + END)
    terminal.say(" again")
    terminal.see('You said "remarkable again"')


def test_a_shell_command_runs_without_the_model_and_with_two_marks_on_the_terminal_where_the_guard_still_judges(
    terminal,
):
    terminal.say("!echo $((6*7)) bottles")
    terminal.see("42 bottles")
    terminal.say("!true")
    terminal.see("ok")
    assert "Exit code" not in terminal.words

    terminal.say("!!test -t 0 && test -t 1 && echo it is a $((1+1))-way terminal; false")
    terminal.see("it is a 2-way terminal")
    terminal.see("Exit code: 1")
    terminal.say("!!rm -rf /")
    terminal.see("was not run")
    terminal.say("hello")
    terminal.see('You said "hello"')


@pytest.mark.needs_sandbox
def test_a_shell_command_that_the_sandbox_stops_says_what_the_person_can_do(terminal):
    terminal.say("!echo x > /nobodys-folder; sudo -n true")

    terminal.see("It ran in the sandbox. Two marks run it without: !!command")
    terminal.leave()
    assert "tell the owner" not in terminal.words and "call exec" not in terminal.words


def test_a_file_is_completed_by_its_name_and_goes_with_the_message_and_tab_goes_into_a_folder(tmp_path):
    for path in (tmp_path / "project" / "quarry" / "zebra.md", tmp_path / "project" / "annex" / "yak.md"):
        path.parent.mkdir(parents=True)
        path.touch()
    terminal = Terminal(tmp_path, tmp_path / "project")
    terminal.see(BOTTOM_LINE)
    for typed, seen, name in (("@AGE", r"AGENTS\.md", "AGENTS"), ("@zeb", "quarry/zebra", "zebra")):
        terminal.type(f"look at {typed}")
        terminal.see(seen)
        terminal.type(TAB + "\r")
        terminal.say(" please")
        terminal.see(rf"With {name}\.md\.")

    terminal.type("and @ann")
    terminal.see("annex/")
    terminal.type(TAB)
    terminal.see("yak")
    terminal.type(TAB + "\r")
    terminal.say("")

    terminal.see("> and @annex/yak.md")
    terminal.see(r"With yak\.md\.")


def test_a_window_that_changes_its_size_costs_no_word_and_the_prompt_is_drawn_in_the_update_that_erases_it(terminal):
    terminal.say("say 120")
    terminal.see("word119")
    terminal.see("2.0k in")
    seen = terminal.seen.rpartition("\x1b[?2026h")[0]  # the last update may not be complete
    terminal.say("say 60")
    terminal.see("word15")
    terminal.child.setwinsize(12, 40)
    terminal.see("word35")
    terminal.child.setwinsize(40, 120)
    terminal.see("4.0k in")
    terminal.leave()

    updates = re.findall(r"\x1b\[\?2026h(.*?)\x1b\[\?2026l", seen, re.DOTALL)
    outside = re.sub(r"\x1b\[\?2026h.*?\x1b\[\?2026l", "", seen, flags=re.DOTALL)
    assert len(updates) > 1
    assert all("\x1b[J" in update and ">" in update for update in updates)
    assert "\x1b[A\x1b[J" not in outside
    assert all(f"word{number}" in terminal.words.rpartition("say 60")[2] for number in range(60))


def test_no_colour_is_written_where_none_is_wanted_and_a_history_that_cannot_be_written_costs_nothing_else(tmp_path):
    (tmp_path / "history" / "cli_history").mkdir(parents=True)
    terminal = Terminal(tmp_path, NO_COLOR="1")
    terminal.see(BOTTOM_LINE)
    terminal.say("list")
    terminal.see("spoken")
    terminal.leave()

    assert not re.search(r"\x1b\[[0-9;]*\b(?:3[0-8]|4[0-8]|9[0-7])[0-9;]*m", terminal.seen)


def test_a_polite_kill_leaves_the_terminal_as_it_was_and_says_so_in_the_exit_code(terminal):
    terminal.say("hang")
    terminal.see("Half a")

    terminal.child.kill(signal.SIGTERM)
    terminal.child.expect(pexpect.EOF)
    terminal.seen += terminal.child.before
    terminal.child.close()

    assert terminal.child.exitstatus == 128 + signal.SIGTERM
    assert "\x1b[?2004l" in terminal.seen  # bracketed paste is off again


def test_a_line_that_does_not_answer_a_question_stays_in_the_prompt(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    terminal = Terminal(tmp_path, folder)
    terminal.see(BOTTOM_LINE)
    terminal.say("ask")
    terminal.see("y yes, this once")

    terminal.say("sure go ahead")
    terminal.see("First answer")
    terminal.type("\x15")  # Ctrl+U
    terminal.say("yes")

    terminal.see("spoken")
    assert terminal.leave() == 0
    assert (folder / "outside.txt").exists()
    assert "queued: sure" not in terminal.words


def test_sessions_opens_a_menu_from_which_arrow_keys_reopen_a_conversation_also_of_another_session(terminal, tmp_path):
    rows = [{"role": "user", "content": "About plums"}, {"role": "assistant", "content": "Noted."}]
    session = tmp_path / "workspace" / "sessions" / "cli_work.jsonl"
    session.parent.mkdir(exist_ok=True)
    session.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    terminal.say("Plan a trip to Rome")
    terminal.see("You said")
    terminal.say("/new")
    terminal.see("archived")

    terminal.say("/sessions")
    terminal.see("/resume NUMBER")
    terminal.see(r"/resume cli_direct-\d+")
    terminal.say("")
    terminal.see("Reopened: Plan a trip to Rome")
    terminal.see("you: Plan a trip to Rome")

    terminal.say("/resume cli:work")
    terminal.see("you: About plums")
    terminal.say("hello there")
    terminal.see('You said "hello there"')
    assert "hello there" in session.read_text(encoding="utf-8")
