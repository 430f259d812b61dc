from pathlib import Path

import pytest

from nanobot.security.files.paths import PathPolicy, key_places
from nanobot.security.shell.guard import Guard, GuardDecision


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PathPolicy:
    monkeypatch.setenv("HOME", str(tmp_path))
    workspace = tmp_path / ".nanobot/workspace"
    workspace.mkdir(parents=True)
    protected = (workspace / "SOUL.md", tmp_path / "taxes")
    return PathPolicy(
        workspace, protected=protected, unreadable=key_places(tmp_path), data_folder=tmp_path / ".nanobot"
    )


@pytest.fixture
def judge(paths: PathPolicy):
    def judge_it(
        command: str, *, deny: tuple[str, ...] = (), allow: tuple[str, ...] = (), sandboxed: bool = False
    ) -> GuardDecision:
        return Guard(paths, deny, allow).check(command, paths.workspace, sandboxed=sandboxed)

    return judge_it


def lines(name: str) -> list[str]:
    """A command a line, in which `\\n` stands for the end of a line."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return [line.replace("\\n", "\n") for line in text.splitlines()]


def test_what_does_harm_is_refused_with_a_reason(judge):
    refusals = {command: judge(command).refusal for command in lines("refused.txt")}

    assert [command for command, said in refusals.items() if not said.startswith("This command was not run: ")] == []


def test_work_of_every_day_passes(judge):
    refusals = {command: judge(command).refusal for command in lines("passes.txt")}

    assert {command: said for command, said in refusals.items() if said} == {}


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
def test_a_line_too_large_to_be_checked_is_refused(judge, text: str):
    assert ["script" in judge(text, sandboxed=sandboxed).refusal for sandboxed in (True, False)] == [True, True]


def test_keys_are_refused_by_name_only_where_no_wall_hides_them(judge):
    assert "secrets" in judge("cat ~/.ssh/id_rsa").refusal
    assert "secrets" in judge("curl -T x --cert=$HOME/.aws/credentials u").refusal
    assert judge("cat ~/.ssh/id_rsa", sandboxed=True).refusal == ""


def refusals(judge, commands: list[str], *, deny: tuple[str, ...] = (), allow: tuple[str, ...]) -> set[str]:
    """Why these commands are refused: the settings named, or an empty text."""
    said = [judge(command, deny=deny, allow=allow).refusal for command in commands]
    return {next((name for name in ("denyPatterns", "allowPatterns") if name in text), text) for text in said}


def test_a_forbidden_command_is_forbidden_however_it_is_written(judge):
    commands = ["git push", "git  push origin", "a && git push", "sh -c 'git push'", "sudo git push", "g''it push"]

    assert refusals(judge, commands, deny=(r"\bgit\s+push\b",), allow=(".*",)) == {"denyPatterns"}


ALLOWED = (r"git (?:status|log)(?: [\w-]+)*", r"ls(?: \S+)*")


def test_an_allowed_command_runs(judge):
    commands = ["git status", "git log -1", "ls -la", "ls a ; git status", "git log | ls", "ls 2>/dev/null"]

    assert refusals(judge, commands, allow=ALLOWED) == {""}


def test_nothing_rides_along_with_an_allowed_command(judge):
    commands = [
        "git push", "git status; rm x", "git status && curl u", "ls | sh", "ls $(rm x)", "ls `rm x`", "ls > f",
        "ls & rm x", "git status # ls\nrm x", "echo git status", "ls \"$(rm x)\"", "ls <(rm x)", "x=1", "ls 'open",
        'ls "open', "ls `open", "ls >&2 >> f", "sudo ls", "env ls", "(rm x)", "{ rm x; }", "PATH=.:$PATH ls",
        "for PATH in .; do ls; done", "ls $((a[$(rm x)]))", "ls $(( `rm x` ))", "x='$(rm x)'; ls ${x@P}", "ls ${y@P}",
        "ls $((y))", 'ls "$(case x in x) rm x;; esac)"',
    ]  # fmt: skip

    assert refusals(judge, commands, allow=ALLOWED) == {"allowPatterns"}


def test_that_an_allowed_program_writes_is_what_is_told_of_it(judge):
    assert "`ls`, which writes to notes.txt by `>`, is none of them" in judge("ls >notes.txt", allow=ALLOWED).refusal


def test_what_brings_words_from_outside_is_known(judge):
    """Also mail, logs, calendars, databases and the clipboard; naming such a program brings nothing."""
    outside = [
        "curl http://x", "git clone u", "git pull https://example.org/r.git main",
        "git fetch git@example.org:r.git", "sudo wget u", "echo a | nc h 1", "cat </dev/tcp/1.2.3.4/80",
        "python3 -c 'import urllib.request'", "python3 <<E\nimport requests\nE", "pip3 download x", "ssh h ls",
        "x=$(curl u)", "himalaya read 7", "notmuch show tag:unread", "mail -H", "mbsync -a",
        "journalctl -u nginx -n 20", "dmesg | tail", "docker logs web", "gcalcli agenda", "khal list",
        "jira issue view A-1", "psql -c 'select * from comments'", "mysql -e 'select 1'", "redis-cli get x",
        "mongosh --eval 'db.x.find()'", "xclip -o", "xsel --output", "wl-paste", "pbpaste | head -1",
    ]  # fmt: skip
    own = [
        "git -C x pull", "git status", "git remote -v", "python3 -c 'print(1)'", "pip install x", "echo curl", "ls",
        "echo mail", "xclip -i notes.md", "docker ps", "man mail",
    ]  # fmt: skip

    assert [command for command in outside if not judge(command).fetches] == []
    assert [command for command in own if judge(command).fetches] == []


def test_a_folder_that_git_updates_stays_the_owners_and_a_new_one_is_somebodys(judge):
    own = ("git pull --rebase", "git fetch origin", "git submodule update --init")
    foreign = ("git clone https://example.org/r.git", "git pull https://example.org/r.git main", "curl -s u | tar xz")

    assert {judge(one).fetches for one in own} == {False}
    assert {judge(one).fetches for one in foreign} == {True}


@pytest.mark.parametrize(
    ("name", "text", "command", "fetches"),
    [
        ("get.py", "import urllib.request as u\nprint(u.urlopen('https://x'))", "python3 get.py", True),
        ("get.py", "# see https://example.org\nprint(1)", "python3 get.py", False),
        ("get.sh", "cd /tmp && curl -s https://x | head", "bash -e get.sh", True),
        ("get", "#!/bin/sh\nwget u", "./get", True),
        ("get.sh", "echo curl", "sh get.sh", False),
        ("get.js", "await fetch('https://x')", "node get.js", True),
    ],
)
def test_a_script_that_asks_the_network_brings_words_from_outside(
    judge, paths: PathPolicy, name: str, text: str, command: str, *, fetches: bool
):
    (paths.workspace / name).write_text(text, encoding="utf-8")

    assert judge(command).fetches is fetches


def test_a_single_program_is_told_by_its_words(judge):
    assert judge("nanobot cron add -m 'drink water' -e 60").single == (
        "nanobot",
        "cron",
        "add",
        "-m",
        "drink water",
        "-e",
        "60",
    )
    assert judge("nanobot cron list | cat").single == ()
    assert judge("nanobot cron list > x").single == ()
