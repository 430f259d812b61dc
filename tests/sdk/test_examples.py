"""The examples of the guide run as they are written, with a scripted model; and their types are right."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from nanobot import Nanobot
from nanobot.agent.tools.base import ToolResult
from nanobot.config.paths import use_config
from nanobot.messages.types import Provenance
from nanobot.sdk import ApprovalRequest
from nanobot.testing import Pause, ScriptedProvider, calls
from nanobot.testing.model_server import Calls, FakeModels, Say
from tests.house.repo import ROOT, text_of
from tests.support.eventually import eventually

PAGE = text_of(ROOT / "docs" / "guides" / "sdk.md")
BLOCKS = re.findall(r"^## (.+?)$|^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def example(heading: str, number: int = 0) -> dict[str, Any]:
    """The names that an example of this section defines."""
    return run_block(blocks()[heading][number])


def blocks() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for heading, body in BLOCKS:
        if heading:
            last = found.setdefault(heading, [])
        else:
            last.append(body)
    return found


def run_block(body: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(body, "docs/guides/sdk.md", "exec"), names)
    return names


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeModels]:
    """The model of the config that `from_config()` finds."""
    with FakeModels() as server:
        config = {
            "agents": {"defaults": {"provider": "custom", "model": "m", "workspace": str(tmp_path / "workspace")}},
            "providers": {"custom": {"apiBase": server.v1, "prices": {"m": {"input": 1000, "output": 0}}}},
        }
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        use_config(tmp_path / "config.json")
        yield server


def local(*script: Any, **options: Any) -> Nanobot:
    return Nanobot.local(model=ScriptedProvider(*script), **options)


def contents(bot: Nanobot) -> list[Any]:
    return [row["content"] for row in bot.sessions.get_or_create("sdk:default").messages]


TYPED = """
from pydantic import BaseModel
from nanobot import Nanobot
from nanobot.sync import Nanobot as Blocking

class Invoice(BaseModel):
    number: str

async def main(bot: Nanobot, blocking: Blocking) -> None:
    reveal_type((await bot.run("a", output=Invoice)).output)
    reveal_type((await bot.run("a")).output)
    reveal_type(blocking.run("a", output=list[int]).output)
    reveal_type(await bot.stream("a", output=Invoice).result())
    await bot.run("a", sessions="b")
"""


async def test_ask(server: FakeModels, capsys: pytest.CaptureFixture[str]):
    server.script(Say("Nothing today."))

    await example("Ask")["main"]()

    assert capsys.readouterr().out == "Nothing today.\n"


def test_without_asyncio(server: FakeModels, capsys: pytest.CaptureFixture[str]):
    server.script(Say("Rows sleep in one file.", pieces=4))

    example("Without asyncio")["haiku"]()

    assert capsys.readouterr().out == "Rows sleep in one file."


async def test_a_tool_is_a_function():
    bot = local(calls(("stock", {"item": "M4", "depot": "south"})), "There are 12.")
    names = example("A tool is a function")

    async with bot:
        text = await names["count"](bot)

    assert text == "There are 12."


async def test_marked_functions_are_tools(tmp_path: Path):
    marked = example("A tool is a function", 1)
    asked: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> bool:
        asked.append(request)
        return False

    script = [calls(("order", {"item": "M4", "count": 2}), ("price", {"item": "M4"})), "Not ordered."]
    async with local(*script, tools=[marked["order"], marked["price"]]) as bot:
        result = await bot.run("Order two M4", approve=approve)

    order, price = result.steps[0].calls
    assert [request.arguments for request in asked] == [{"item": "M4", "count": 2}]
    assert (order.ok, price.ok, price.text) == (False, True, "0.12")


async def test_a_typed_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inv.pdf").touch()
    model = ScriptedProvider("It is invoice 7.", '{"number": "7", "total": "12.50", "due": "2026-12-01"}')

    async with Nanobot.local(model=model) as bot:
        invoice = await example("A typed answer")["read_invoice"](bot)

    assert (invoice.number, invoice.total, invoice.due) == ("7", Decimal("12.50"), date(2026, 12, 1))
    assert f"[file: {tmp_path / 'inv.pdf'}]" in str(model.requests[0][-1])
    assert '"total"' in str(model.requests[0][-1]), "the schema comes with the message"
    assert "Invalid JSON" in str(model.requests[1][-1]), "the second request says what is wrong with the first answer"


async def test_approvals(server: FakeModels):
    def read_mail() -> ToolResult:
        """Read a mail from somebody else, so that each command needs approval on every machine."""
        return ToolResult("Say hi in a shell!", provenance=Provenance.MAIL)

    server.script(Calls(("read_mail", {})), Calls(("exec", {"command": "echo hi"})), Say("You said no."))
    names = example("Approvals")
    questions: list[str] = []

    async def ask_me(question: str) -> bool:
        questions.append(question)
        return False

    names["ask_me"] = ask_me
    async with Nanobot.from_config(approve=names["approve"], tools=[read_mail]) as bot:
        result = await bot.run("Do what the mail says")

    assert result.text == "You said no."
    assert "echo hi" in questions[0]
    assert [call.ok for step in result.steps for call in step.calls] == [True, False]


async def test_a_conversation_a_branch_its_cost(server: FakeModels, capsys: pytest.CaptureFixture[str]):
    server.script(Say("Day one..."), Say("By bus."))

    async with Nanobot.from_config() as bot:
        await example("A conversation, a branch, its cost")["plan"](bot)
        original = [row["content"] for row in bot.sessions.get_or_create("trip").messages]

    cost, cached = capsys.readouterr().out.split()
    assert float(cost) > 0
    assert cached == "4", "as the server says"
    assert original == ["Plan a week in Kyoto", "Day one..."], "the branch left it alone"
    assert "Day one..." in str(server.chats[1].json["messages"]), "the branch knows it"


async def test_stop(monkeypatch: pytest.MonkeyPatch):
    ran: list[str] = []

    def look(topic: str) -> str:
        """Look something up."""
        ran.append(topic)
        return f"much about {topic}"

    names = example("Stop")
    pause = Pause("So far ")
    model = ScriptedProvider(calls(("look", {"topic": "tea"})), pause, "It is green.")
    real_timeout = asyncio.timeout
    expiring: list[asyncio.Task[None]] = []

    def timeout(seconds: float | None) -> asyncio.Timeout:
        """Twenty seconds are over when the model has begun to answer."""
        limit = real_timeout(None if seconds == 20 else seconds)

        async def expire() -> None:
            await pause.reached.wait()
            limit.reschedule(asyncio.get_running_loop().time())

        if seconds == 20:
            expiring.append(asyncio.create_task(expire()))
        return limit

    async with Nanobot.local(model=model, tools=[look]) as bot:
        monkeypatch.setattr(asyncio, "timeout", timeout)

        text = await names["research"](bot)

    assert text == "It is green."
    assert ran == ["tea"]
    assert "much about tea" in str(model.requests[-1]), "what was done before the stop is there"


async def test_many_at_once(tmp_path: Path):
    model = ScriptedProvider(*(f"answer {number}" for number in range(8)))
    async with Nanobot.local(model=model, workspace=tmp_path) as bot:
        answers = await example("Many at once")["ask_all"](bot, [f"question {number}" for number in range(8)])
        stored = bot.sessions.list_sessions()

    assert sorted(answers) == [f"answer {number}" for number in range(8)]
    assert stored == []
    assert [*tmp_path.rglob("turns/*")] == []
    assert not any("question" in str(request[:-1]) for request in model.requests), "each has a history of its own"


def test_a_web_handler():
    bot = local("It streams.")
    client = TestClient(example("A web handler")["create_app"](bot))

    assert client.get("/ask", params={"q": "Does it?"}).text == "It streams."


async def test_a_web_handler_whose_browser_goes_away_stops_the_turn():
    pause = Pause("It ")
    app = example("A web handler")["create_app"](bot := local(pause))
    came: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    gone = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "GET", "path": "/ask", "query_string": b"q=hi", "headers": [], "asgi": {}}
    async with bot:
        serving = asyncio.create_task(app(scope, receive, came.put))
        await pause.reached.wait()
        gone.set()
        await serving
        await eventually(lambda: contents(bot) == ["hi", "It "])


async def test_a_test_without_a_model():
    await example("A test without a model")["test_screws"]()


async def test_a_hook_is_a_function(capsys: pytest.CaptureFixture[str]):
    async with local(calls(("list_dir", {"path": "."})), "Tidy.") as bot:
        await example("Options of a run")["watched"](bot)

    assert capsys.readouterr().out == "list_dir {'path': '.'}\n"


@pytest.mark.slow
def test_the_types_of_the_examples_are_right(tmp_path: Path):
    pieces = [body for section in blocks().values() for body in section]
    for number, body in enumerate(pieces):
        (tmp_path / f"example_{number}.py").write_text(body, encoding="utf-8")
    (tmp_path / "typed.py").write_text(TYPED, encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", *map(str, sorted(tmp_path.glob("*.py")))],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )

    revealed = re.findall(r'Revealed type is "(.*)"', done.stdout)
    errors = re.findall(r": error: (.*?);", done.stdout)
    assert revealed == ["typed.Invoice", "None", "list[int]", "nanobot.sdk.result.RunResult[typed.Invoice]"]
    assert errors == ['Unexpected keyword argument "sessions" for overloaded function "run" of "Nanobot"'], done.stdout
    assert "Found 2 errors in 1 file" in done.stdout, done.stdout
