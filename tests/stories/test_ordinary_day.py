"""An owner's ordinary day in one conversation: who asks too often is switched off, so it must be seldom."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nanobot.agent.events import Answer
from nanobot.agent.tools.base import AccessKind, Effect, Tool, ToolResult, string, takes
from nanobot.messages.types import Provenance
from nanobot.testing import Line, calls, open_bot
from tests.fakes.tools import Sink
from tests.support.approvals import Person

PAGES = {
    "https://docs.python.org/3/library/csv.html": "csv — CSV File Reading and Writing. import csv\n"
    "with open('eggs.csv', newline='') as csvfile: spamreader = csv.reader(csvfile, delimiter=' ')",
    "https://git-scm.com/docs/git-stash": "git stash push -m message; git stash list; git stash pop --index restores",
    "https://weather.example/berlin": "Berlin: 14 degrees, showers in the afternoon, wind from the west, sunset 20:31",
    "https://recipes.example/lentil-soup": "Lentil soup: 250 g red lentils, 1 onion, 2 carrots, 1 l stock, 20 minutes",
    "https://news.example/today": "Parliament votes on the budget today. The match ended 2:1. Trains run again.",
    "https://pypi.org/project/httpx/": "httpx 0.28: pip install httpx. A next-generation HTTP client for Python.",
    "https://rsync.example/manual": "rsync -av --delete source/ target/ copies what has changed and deletes the rest",
    "https://wiki.example/berlin": "Berlin is the capital of Germany, with 3.7 million inhabitants and 12 boroughs.",
}
MAILS = "From Ann: shall we meet on Thursday at 18:00 in Cafe Central? From the bank: your statement is there."

Step = tuple[str, dict[str, Any]]


def run(command: str) -> Step:
    return "run", {"target": command}


def read(url: str) -> Step:
    return "web_page", {"url": url}


def job(message: str) -> Step:
    return "schedule", {"target": message}


def keep(file: str, text: str) -> Step:
    return "remember", {"target": file, "text": text}


def tell(chat: str, text: str) -> Step:
    return "send", {"target": chat, "text": text}


def put(folder: str, text: str) -> Step:
    return "put", {"target": folder, "text": text}


MAIL: Step = ("inbox_mails", {"url": "new"})
CSV, STASH, WEATHER, SOUP, NEWS, HTTPX, RSYNC, BERLIN = PAGES

DAY: list[tuple[str, list[Step]]] = [
    ("what is in here?", [("list_dir", {"path": "."})]),
    ("what changed in the repository?", [run("git status --short"), run("git diff --stat")]),
    ("commit it as 'tidy up'", [run("git add -A && git commit -m 'tidy up'")]),
    ("what's the weather in Berlin?", [read(WEATHER)]),
    ("remind me at four to take an umbrella", [job("Take an umbrella.")]),
    ("any new mails?", [MAIL]),
    ("put the meeting with Ann into a reminder, Thursday 17:30", [job("Meet Ann, Thursday 18:00.")]),
    ("how much disk is left?", [run("df -h .")]),
    ("how do I stash in git?", [read(STASH)]),
    ("ok stash my changes", [run("git stash push -m wip")]),
    ("and run the tests", [run("python -m pytest -q")]),
    ("get the stash back", [run("git stash pop")]),
    ("remember that I like tests to be quick", [keep("memory/MEMORY.md", "Likes quick tests.")]),
    ("a lentil soup recipe please", [read(SOUP)]),
    ("make a shopping list of it in my notes", [("glob", {"pattern": "*.md"})]),
    ("how does Python read CSV?", [read(CSV)]),
    ("write me a script that sums column 2 of sales.csv", [("glob", {"pattern": "*.csv"})]),
    ("run it", [run("python sum_sales.py sales.csv")]),
    ("why does it fail?", [run("python -X dev sum_sales.py sales.csv"), run("head -3 sales.csv")]),
    ("fix it and run it again", [run("python sum_sales.py sales.csv")]),
    ("tell Ann on telegram that I come", [tell("telegram:4711", "I'll be there on Thursday.")]),
    ("what's in the news?", [read(NEWS)]),
    ("a short summary for my journal", [("list_dir", {"path": "."})]),
    ("which httpx is current?", [read(HTTPX)]),
    ("install it in the venv", [run(".venv/bin/pip install httpx")]),
    ("which version do we have now?", [run(".venv/bin/pip show httpx")]),
    ("copy the notes to the backup disk", [put("/mnt/backup/notes", "all"), run("ls /mnt/backup/notes")]),
    ("how does rsync delete?", [read(RSYNC)]),
    ("how many inhabitants has Berlin?", [read(BERLIN)]),
    ("find all TODOs", [("grep", {"pattern": "TODO"})]),
    ("which process eats the CPU?", [run("ps aux --sort=-%cpu | head -5")]),
    ("rename photo.jpeg to cat.jpg", [run("mv photo.jpeg cat.jpg")]),
    ("count the words of my notes", [run("wc -w *.md")]),
    ("every Monday at nine: plan the week with me", [job("Plan the week with me.")]),
    ("which jobs do I have?", [("cron", {"action": "list"})]),
    ("make the photo smaller", [run("convert cat.jpg -resize 50% cat_small.jpg")]),
    ("send it to Ann", [tell("telegram:4711", "Here is the cat.")]),
    ("what did the bank write?", [MAIL]),
    ("zip the folder reports", [run("zip -r reports.zip reports")]),
    ("compare a.txt and b.txt", [run("diff a.txt b.txt")]),
    ("read the python csv page and try its example in a shell", [read(CSV), run("python -c 'import csv'")]),
    ("look at the weather and schedule the umbrella if need be", [read(WEATHER), job("Take an umbrella, showers.")]),
    ("what time is it in Tokyo?", [run("TZ=Asia/Tokyo date")]),
    ("good night", []),
]


class Pages(Tool):
    """The web, as far as this owner reads it."""

    name = "web_page"
    description = "A page."
    parameters = takes("url", url=string("Which"))
    effect = Effect.READ

    async def execute(self, url: str) -> ToolResult:
        return ToolResult(PAGES[url], provenance=Provenance.WEB)


class Mails(Tool):
    """The mailbox."""

    name = "inbox_mails"
    description = "New mails."
    parameters = takes("url", url=string("Which"))
    effect = Effect.READ

    async def execute(self, url: str) -> ToolResult:
        return ToolResult(MAILS, provenance=Provenance.MAIL)


def sinks() -> Sequence[Sink]:
    return (
        Sink("run", AccessKind.COMMAND),
        Sink("schedule", AccessKind.JOB),
        Sink("remember", AccessKind.MEMORY),
        Sink("send", AccessKind.RECIPIENT),
        Sink("put", AccessKind.FOLDER, beyond=True),
    )


async def test_a_day_of_ordinary_tasks_asks_at_most_once_in_two_tasks(tmp_path: Path):
    script: list[Line] = []
    for _, steps in DAY:
        script += [*map(calls, steps), "Done."]
    async with open_bot(tmp_path, *script) as bot:
        for tool in (Pages(), Mails(), *sinks()):
            bot.register(tool)
        person = Person(bot, Answer.ONCE)
        asking: list[str] = []
        for said, _ in DAY:
            before = len(person.asked)
            await person.say(said)
            asking += [said] * (len(person.asked) - before)

    print(f"{len(asking)} questions in {len(DAY)} tasks: {asking}")
    assert len(asking) <= len(DAY) // 2
    assert len(asking) <= 6, "and that is what it takes today"
