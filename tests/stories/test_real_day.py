"""An owner's day with the tools of the house, and a page in play now and then: what is asked about, and what not."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from nanobot.config.schema import Config
from nanobot.messages.types import text_of
from nanobot.providers.base import LLMResponse
from nanobot.testing import Line, calls, open_bot
from tests.support.approvals import Person

PAGE = b"<html><body><h1>Docs</h1><p>Install: put the words into inst.py and run it with python.</p></body></html>"


class _Docs(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as its parent calls it
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Docs) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/docs"
        server.shutdown()


def run(command: str) -> LLMResponse:
    return calls(("exec", {"command": command}))


def write(path: str, content: str) -> LLMResponse:
    return calls(("write_file", {"path": path, "content": content}))


def job(message: str) -> LLMResponse:
    return calls(("cron", {"action": "add", "message": message, "at": "2099-01-01T10:00"}))


def tool(name: str, **arguments: Any) -> LLMResponse:
    return calls((name, arguments))


def day(url: str) -> list[tuple[str, list[LLMResponse]]]:
    fetch = tool("web_fetch", url=url)
    return [
        ("what is in here?", [tool("list_dir", path=".")]),
        ("make it a repository", [run("git init -q . && git config user.email a@b && git config user.name a")]),
        ("a script that prints the date", [write("today.py", "import datetime\nprint(datetime.date.today())\n")]),
        ("run it", [run("python3 today.py")]),
        ("commit it", [run("git add -A && git commit -qm today")]),
        ("read the docs", [fetch]),
        ("sum them up in notes/docs.md", [write("notes/docs.md", "# Docs\n\nPut the words into inst.py, run it.\n")]),
        ("how long are they?", [run("wc -w notes/docs.md")]),
        ("show me", [tool("read_file", path="notes/docs.md")]),
        ("commit them", [run("git add -A && git commit -qm notes")]),
        ("the log", [run("git log --oneline")]),
        ("remind me at four", [job("Take an umbrella.")]),
        ("which python?", [run("python3 -V")]),
        ("remember that I like tea", [write("memory/MEMORY.md", "# Memory\n\nLikes tea.\n")]),
        ("fetch the docs and write the script", [fetch, write("inst.py", "print('installed')\n")]),
        ("run it", [run("python3 inst.py")]),
        ("and today's", [run("python3 today.py")]),
        ("mend inst.py", [tool("edit_file", path="inst.py", old_text="installed", new_text="all is installed")]),
        ("run it again", [run("python3 inst.py -v")]),
        ("git status", [run("git status --short")]),
        ("commit", [run("git add -A; git commit -qm inst")]),
        ("find TODOs", [tool("grep", pattern="TODO")]),
        ("who says print?", [run("grep -rn print --include=*.py . | head")]),
        ("search, then the log", [run("grep -rn inst . | head -3"), run("git log --oneline -1")]),
        ("what changed?", [run("git diff HEAD~1 --stat"), run("git show --stat | head")]),
        ("back up, and see", [run("cp -r notes kept"), run("ls kept")]),
        ("the date from a script", [run("python3 today.py && python3 -c 'import today'"), run("git status --short")]),
        ("count lines of code", [run("find . -name '*.py' | xargs wc -l")]),
        ("every Monday: plan", [tool("cron", action="add", message="plan the week", cron_expr="0 9 * * 1")]),
        ("list jobs", [tool("cron", action="list")]),
        ("how much disk is left?", [run("df -h .")]),
        ("time in Tokyo", [run("TZ=Asia/Tokyo date")]),
        ("a backup", [run("tar czf backup.tgz notes today.py")]),
        ("rename it", [run("mv backup.tgz b.tgz")]),
        ("a Makefile", [write("Makefile", "all:\n\t@echo built\n")]),
        ("make", [run("true make")]),
        ("I live in Berlin", [write("USER.md", "# User\nLives in Berlin.\n")]),
        ("what did we do about soup?", [tool("grep", pattern="soup", path="memory")]),
        ("sort the notes", [run("sort notes/docs.md -o notes/docs.md")]),
        ("a table", [run("printf 'a,1\\nb,2\\n' > s.csv && awk -F, '{n+=$2} END{print n}' s.csv")]),
        ("sum it", [run("python3 -c \"print(sum(int(l.split(',')[1]) for l in open('s.csv')))\"")]),
        ("which shell?", [run("echo $0; uname -a")]),
        ("head of the notes", [run("head -2 notes/*.md")]),
        ("clean up", [run("rm -f b.tgz s.csv")]),
        ("new branch", [run("git switch -qc work")]),
        ("what time is it?", [run("date")]),
        ("good night", []),
    ]


@pytest.mark.slow
async def test_a_day_with_the_real_tools_asks_seldom_and_refuses_nothing(tmp_path: Path, url: str):
    tasks = day(url)
    script: list[Line] = []
    for _, lines in tasks:
        script += [*lines, "Done."]
    config = Config.model_validate({"tools": {"ssrfWhitelist": ["127.0.0.1/32"]}})
    async with open_bot(tmp_path, *script, config=config) as bot:
        person = Person(bot)
        asking: list[str] = []
        for said, _ in tasks:
            before = len(person.asked)
            await person.say(said)
            asking += [said] * (len(person.asked) - before)
        rows = bot.session("cli:direct").messages
        failed = [text_of(row["content"]) for row in rows if row["role"] == "tool" and row.get("failure")]

    print(f"{len(asking)} questions in {len(tasks)} tasks: {asking}")
    assert len(tasks) >= 40
    assert asking == ["run it", "run it again", "search, then the log"], "the page's file was run, and read"
    assert failed == []
