import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.security.shell.parse import UNREAD, ParsedCommand, Redirect, read_line
from nanobot.security.shell.wrappers import expand_wrappers


def words(text: str) -> list[tuple[str, ...]]:
    return [command.argv for command in read_line(text).commands if command.argv]


def all_run(text: str) -> list[tuple[str, ...]]:
    return [command.argv for command in expand_wrappers(read_line(text))]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("rm -rf /", [("rm", "-rf", "/")]),
        (r"r''m -r\f $'\x2f'", [("rm", "-rf", "/")]),
        ('"rm" "-rf" "/"', [("rm", "-rf", "/")]),
        ("rm${IFS}-rf$IFS/", [("rm", "-rf", "/")]),
        ("a=rm; b='-rf /'; $a $b", [("rm", "-rf", "/")]),
        ("{rm,-rf,/}", [("rm", "-rf", "/")]),
        ("$(echo rm) -rf /", [("echo", "rm"), ("rm", "-rf", "/")]),
        ("`printf rm` x", [("printf", "rm"), ("rm", "x")]),
        ("cd a && b || c; d & e | f |& g", [("cd", "a"), ("b",), ("c",), ("d",), ("e",), ("f",), ("g",)]),
        ("(cd a; { b; })", [("cd", "a"), ("b",)]),
        ("if a; then b; elif c; then d; else e; fi", [("a",), ("b",), ("c",), ("d",), ("e",)]),
        ("for i in x y; do echo $i; done", [("echo", "x")]),
        ("while read l; do echo \"$l\"; done < f", [("read", "l"), ("echo", "$l")]),
        ("A=1 B=2 env", [("env",)]),
        ("echo a#b # rm -rf /", [("echo", "a#b")]),
        ("echo 'it''s' \"$HOME/x\" \\; y", [("echo", "its", "$HOME/x", ";", "y")]),
        ("echo a \\\n b\nnext", [("echo", "a", "b"), ("next",)]),
        ("echo $((1 + (2 * 3))) ${x:-y} ${#z}", [("echo", "$((1 + (2 * 3)))", "y", "${#z}")]),
        ("git log --format='%h > %s'", [("git", "log", "--format=%h > %s")]),
        ("echo \"$(rm -rf /; echo \"in\")\"", [("rm", "-rf", "/"), ("echo", "in")]),
        ("", []),
        ("   # only words", []),
    ],
)  # fmt: skip
def test_a_line_is_taken_apart_as_the_shell_does(text: str, meant: list[tuple[str, ...]]):
    found = words(text)

    assert [words for words in found if words[0] != "echo" or words in meant] == meant


@pytest.mark.parametrize(
    ("text", "run"),
    [
        ("sudo -u root env A=b nice -n 5 sh -c 'rm -rf ~'", ("rm", "-rf", "~")),
        ('eval "rm -rf /"', ("rm", "-rf", "/")),
        ("bash <<< 'rm x'", ("rm", "x")),
        ("cat <<EOF | bash\nrm x\nEOF", ("rm", "x")),
        ("bash <<'EOF'\nrm x\nEOF", ("rm", "x")),
        ("echo 'rm x' | sh", ("rm", "x")),
        ("find / -exec rm -rf {} +", ("rm", "-rf", "/")),
        ("find . -name '*.o' -delete", ("rm", "-rf", "$(found)")),
        ("echo a b | xargs -n 1 rm", ("rm", "a", "b")),
        ("timeout -s KILL 5 rm x", ("rm", "x")),
        ("nohup setsid rm x &", ("rm", "x")),
        ("su - root -c 'rm x'", ("rm", "x")),
        ("env -S 'rm x'", ("rm", "x")),
        ("busybox rm x", ("rm", "x")),
        ("/usr/bin/env bash -ec 'rm x'", ("rm", "x")),
        ("trap 'rm x' EXIT", ("rm", "x")),
    ],
)
def test_what_a_program_runs_for_others_is_seen(text: str, run: tuple[str, ...]):
    assert run in all_run(text)


@pytest.mark.parametrize(
    "text",
    ["grep 'rm -rf /' notes", "echo rm -rf /", "git commit -m 'rm -rf /'", "cat <<'E' >n\nrm -rf /\nE",
     "python3 - <<E\nrm x\nE"],
)  # fmt: skip
def test_a_text_about_a_command_is_none(text: str):
    assert not any(words[0] == "rm" for words in all_run(text))


def test_redirects_know_what_they_write():
    (command,) = read_line("sort < in 2>/dev/null >> out >&2 <<< here").commands

    assert command.argv == ("sort",)
    assert [redirect.target for redirect in command.redirects if redirect.writes] == ["/dev/null", "out"]
    assert Redirect("<", "in") in command.redirects


def test_a_pipe_knows_what_feeds_it():
    *_, last = read_line("a | b | c").commands

    assert [feeder.name for feeder in last.fed_by] == ["a", "b"]


def test_a_here_document_belongs_to_its_command():
    found = read_line("cat <<A - <<B; next\nfirst\nA\nsecond\nB\nlast").commands

    assert [redirect.target for redirect in found[0].redirects] == ["first", "second"]
    assert [command.name for command in found[1:]] == ["next", "last"]


@pytest.mark.parametrize("text", ["echo 'open", 'echo "open', "echo `open"])
def test_what_is_not_closed_is_said(text: str):
    assert not read_line(text).whole


@given(st.text(alphabet="ab $'\"`\\(){}<>|&;\n#*=!-~/", max_size=60) | st.text(max_size=60))
def test_any_text_is_read(text: str):
    assert all(isinstance(command, ParsedCommand) for command in expand_wrappers(read_line(text)))


PIECES = ["(", "{a,b}", "$(", "`", "a b ", "${a", "<<E ", "x=1;", '"', "\\", "$'", "sh -c '", "|a", "a=$a$a;", "env "]
PIECES += ["-exec a ", "-exec b {} {} ;"]


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize(
    "head", ["", *(pytest.param(head, marks=pytest.mark.slow) for head in ("a", "a=b;", "find a b c d "))]
)
def test_no_text_takes_long(head: str, piece: str):
    text = head + piece * (30_000 // len(piece))
    began = time.process_time()

    commands = list(expand_wrappers(read_line(text)))

    assert time.process_time() - began < 1  # a quadratic reader takes far longer
    assert sum(len(command.argv) for command in commands) < 200_000


@pytest.mark.parametrize(
    "text",
    [
        ":;" * 2001 + "sh x.sh",
        "env " * 13 + "sh x.sh",
        "echo " + "$(" * 41 + "sh x.sh" + ")" * 41,
        "a=xxxxxxxxxx;" + "a=$a$a$a$a$a$a;" * 20 + "sh x.sh",
        ": " + "x" * 200_000 + "; sh x.sh",
        "find " + "a " * 5000 + "-exec b " + "{} " * 5000 + ";",
    ],
    ids=["many", "wrapped", "nested", "expanded", "long", "multiplied"],
)
def test_a_line_of_which_not_all_is_read_ends_with_a_mark(text: str):
    *_, last = expand_wrappers(read_line(text))

    assert last is UNREAD
