"""A turn of six tools that is killed with -9 at every write and at every step, and taken up again: run as a program, it
prints what it saw as one JSON object.

One process imports everything once and forks a life for each kill. In a life every call to the system that touches the
disk is counted; at the chosen one the process kills itself: before it, in the middle of it (half of a write), or after
it. Another life then takes the session up, by itself or with the next message, and the parent looks at what is left.
"""

import asyncio
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from nanobot.agent.tools.base import Effect, Tool
from nanobot.bus.events import InboundMessage
from nanobot.config.schema import Config
from nanobot.messages.types import ChatMessage
from nanobot.providers.base import Delta, Finished, LLMProvider, LLMResponse, TextDelta, ToolCallRequest
from nanobot.runtime import Runtime, build_runtime
from nanobot.session.manager import SessionManager
from tests.strict import anthropic_problems, openai_problems

SESSION = "phone:7"
QUESTION = "do the six things"
PLAN = [
    [("look", "one"), ("once", "two")],
    [("once", "three"), ("again", "four"), ("look", "five")],
    [("once", "six")],
]
COUNTED = ("open", "write", "fsync", "fdatasync", "replace", "unlink", "link", "close", "ftruncate")
MODES = ("before", "half", "after")
_write = os.write


class Marking(Tool):
    """Leaves a mark in a file each time it runs, and gives a little time to be killed in."""

    parameters = {"type": "object", "properties": {"label": {"type": "string"}}, "required": ["label"]}  # noqa: RUF012

    def __init__(self, name: str, effect: Effect, marks: Path) -> None:
        self.name, self.description = name, f"{name} marks"
        self.effect = effect  # type: ignore[misc]
        self._marks = marks

    async def execute(self, label: str) -> str:
        descriptor = os.open(self._marks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        _write(descriptor, f"{label}\n".encode())
        os.close(descriptor)
        await asyncio.sleep(0)
        return f"{label} is done"


class Planned(LLMProvider):
    """A model that goes through the plan, wherever it is in it, and does nothing twice."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[str] = []

    def get_default_model(self) -> str:
        return "planned"

    async def chat_stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Delta]:
        self.problems += openai_problems(messages) + anthropic_problems(messages)
        if "and now?" not in str(messages) and QUESTION not in str(messages):
            self.problems.append("no message of a person is in the request")
        done = sum(1 for row in messages if row.get("tool_calls"))
        text = f"Step {done}." if done < len(PLAN) else "All six are done."
        for word in text.split(" "):
            yield TextDelta(word + " ")
            await asyncio.sleep(0)
        wanted = PLAN[done] if done < len(PLAN) else []
        calls = [ToolCallRequest(f"c{done}{at}", name, {"label": label}) for at, (name, label) in enumerate(wanted)]
        yield Finished(LLMResponse(text + " ", calls, "tool_calls" if calls else "stop"))


def runtime(home: Path, provider: Planned) -> Any:
    return build_runtime(Config(), data_dir=home, workspace=home / "workspace", provider=provider, environ={})


def add_tools(bot: Runtime, home: Path) -> None:
    for name, effect in (("look", Effect.READ), ("once", Effect.ONCE), ("again", Effect.REPEATABLE)):
        bot.tools.register(Marking(name, effect, home / "marks"))


async def ask(home: Path) -> None:
    async with runtime(home, Planned()) as bot:
        add_tools(bot, home)
        arm()
        await bot.loop.run_turn(InboundMessage("phone", "ann", "7", QUESTION, message_id="m1"))


async def take_up(home: Path, by: str) -> dict[str, Any]:
    """The next start, or the next message: what came of it."""
    provider = Planned()
    async with runtime(home, provider) as bot:
        add_tools(bot, home)
        arm()
        if by == "start":
            result = await bot.loop.resume(SESSION)
        else:
            message = InboundMessage("phone", "ann", "7", "and now?", message_id="m2")
            result = await bot.loop.run_turn(message)
    return {
        "outcome": result.outcome if result else None,
        "text": result.text if result else "",
        "problems": provider.problems,
    }


_arm: Callable[[], None] = lambda: None  # noqa: E731


def arm() -> None:
    """From here on the calls count."""
    _arm()


def deadly(point: int, mode: str) -> None:
    """Make the call number `point` the last one; a negative number only counts."""
    global _arm
    numbers = itertools.count()
    armed = False

    def switch_on() -> None:
        nonlocal armed
        armed = True

    def wrapped(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not armed:
                return real(*args, **kwargs)
            if next(numbers) != point:  # threads write too, and each call has a number of its own
                return real(*args, **kwargs)
            if mode == "half" and name == "write":
                real(args[0], bytes(args[1])[: len(args[1]) // 2])
            if mode == "after":
                real(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)
            raise SystemExit

        return call

    _arm = switch_on
    for name in COUNTED:
        setattr(os, name, wrapped(name, getattr(os, name)))
    deadly.count = lambda: next(numbers)  # type: ignore[attr-defined]


def life(work: Callable[[], Any]) -> tuple[int, Any]:
    """Do it in a child; its exit status and what it told."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        try:
            told = work()
            _write(writing, json.dumps(told).encode())
        except BaseException as error:
            _write(writing, json.dumps({"problems": [f"a life ended with {error!r}"]}).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    return status, json.loads(told) if told else None


def look(home: Path, by: str, before: Counter[str], told: dict[str, Any], counts: Counter[str]) -> list[str]:
    """What is wrong with what the kill left and the next life made of it."""
    problems = list(told["problems"])
    session = SessionManager(home / "workspace").get_or_create(SESSION)
    rows = session.messages
    marks = Counter((home / "marks").read_text().split()) if (home / "marks").exists() else Counter()
    results = {str(row["content"]).split(" ")[0]: row for row in rows if row["role"] == "tool"}
    for tool, label in [call for step in PLAN for call in step]:
        if tool != "look" and marks[label] > 1:
            problems.append(f"{label} ran {marks[label]} times")
        if before[label] and marks[label] != before[label]:
            problems.append(f"{label} had its result and ran again")
        if label in results and not marks[label]:
            problems.append(f"{label} has a result and never ran")
    counts["unknown"] += sum("Outcome unknown" in str(row["content"]) for row in rows if row["role"] == "tool")
    accepted = any(QUESTION in str(row["content"]) for row in rows if row["role"] == "user")
    counts["accepted"] += accepted
    if accepted and not (rows[-1]["role"] == "assistant" and not rows[-1].get("tool_calls")):
        problems.append("an accepted message has no outcome")
    if accepted and "All six are done" not in str(rows[-1]["content"]):
        problems.append(f"the turn did not go on to its end: {rows[-1]}")
    if accepted and by == "start":
        counts["taken up by itself"] += told["outcome"] is not None
    questions = [row for row in rows if row["role"] == "user" and QUESTION in str(row["content"])]
    if len(questions) > 1:
        problems.append("the message is there twice")
    strays = [path for path in home.rglob("*") if path.name.endswith(".tmp")]
    strays += [path for path in (home / "state" / "turns").glob("*") if b"\n" in path.read_bytes()]
    problems += [f"a stray file: {path.name}" for path in strays]
    if by == "message" and not any("and now?" in str(row["content"]) for row in rows):
        problems.append("the second message is not there")
    return problems


def finished(home: Path) -> Counter[str]:
    """The labels whose results were on the disk when the kill came, and how often they had run by then."""
    manager = SessionManager(home / "workspace")
    path = home / "workspace" / "sessions" / "phone_7.jsonl"
    if not path.exists():
        return Counter()
    rows: list[ChatMessage] = manager.get_or_create(SESSION).messages
    done = {str(row["content"]).split(" ")[0] for row in rows if row["role"] == "tool"}
    marks = Counter((home / "marks").read_text().split()) if (home / "marks").exists() else Counter()
    return Counter({label: marks[label] for label in done})


def main() -> None:
    """`every_write EACH SEED`: every EACH-th point; every other life that takes up is killed too, somewhere."""
    each, chance = int(sys.argv[1]), random.Random(int(sys.argv[2]))
    first = chance.randrange(each)
    counts: Counter[str] = Counter()
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        template = Path(folder) / "template"
        asyncio.run(warm(template))

        def count() -> int:
            deadly(-2, "before")
            home = Path(folder) / "counted"
            shutil.copytree(template, home)
            asyncio.run(ask(home))
            return int(deadly.count())  # type: ignore[attr-defined]

        _, points = life(count)
        counts["points"] = points
        for number, (point, mode, by) in enumerate(
            (point, mode, by) for point in range(points) for mode in MODES for by in ("start", "message")
        ):
            if number % each != first:
                continue
            home = Path(folder) / f"life-{number}"
            shutil.copytree(template, home)

            def die(home: Path = home, point: int = point, mode: str = mode) -> None:
                deadly(point, mode)
                asyncio.run(ask(home))

            status, _ = life(die)
            counts["kills"] += os.WIFSIGNALED(status)
            before = finished(home)
            if chance.random() < 0.5:
                again = chance.randrange(points)

                def die_again(home: Path = home, point: int = again, mode: str = mode) -> Any:
                    deadly(point, mode)
                    return asyncio.run(take_up(home, "start"))

                status, told = life(die_again)
                counts["killed again"] += os.WIFSIGNALED(status)
                problems += told["problems"] if told else []
                before |= finished(home)

            def go_on(home: Path = home, by: str = by) -> Any:
                return asyncio.run(take_up(home, by))

            _, told = life(go_on)
            found = look(home, by, before, told or {"problems": ["no word"], "outcome": None}, counts)
            problems += [f"{mode} call {point}, by {by}: {one}" for one in found]
            shutil.rmtree(home)
    print(json.dumps({"counts": counts, "problems": problems[:30], "wrong": len(problems)}))


async def warm(home: Path) -> None:
    """A workspace that is there already, and modules that are loaded."""
    async with runtime(home, Planned()):
        pass


if __name__ == "__main__":
    main()
