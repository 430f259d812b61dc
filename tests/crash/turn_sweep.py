"""A turn of six tools that is killed with -9 at every write and at every step, and taken up again: run as a program, it
prints what it saw as one JSON object.

One process imports everything once and forks a life for each kill. In a life every call to the system that touches the
disk is counted; at the chosen one the process kills itself: before it, in the middle of it (half of a write), or after
it. Some of the lives that follow are killed too, and between two lives files are damaged or lost. The last life takes
the session up, by itself or with the next message, and the parent looks at what is left.

In the kind `plugged` hooks change each message, call and result, one call hands work to a subagent and waits for it,
and one looks for what was said before.

In the modes `refused` and `full` nobody is killed: the disk refuses this write, or each from this one on, and the next
life finds a disk that works.
"""

import asyncio
import errno
import gc
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from nanobot.agent.events import TurnResult
from nanobot.agent.hooks import (
    AnswerSeen,
    CallSeen,
    Hook,
    MessageSeen,
    NewArguments,
    NewResult,
    NewText,
    ResultSeen,
    TurnSeen,
)
from nanobot.agent.tools.base import Effect, Tool
from nanobot.bus.events import InboundMessage
from nanobot.config.schema import Config
from nanobot.messages.tokens import estimate_tokens
from nanobot.messages.types import Provenance
from nanobot.providers.base import Delta, Finished, LLMProvider, LLMResponse, TextDelta, ToolCallRequest
from nanobot.providers.errors import StreamCutError
from nanobot.runtime.build import Runtime, build_runtime
from nanobot.session.checkpoint import Checkpoint
from nanobot.session.manager import SessionManager
from nanobot.testing import RecordingSink
from nanobot.testing.event_rules import turn_problems
from nanobot.testing.protocol_rules import anthropic_problems, openai_problems
from tests.support.work import open_tasks

SESSION = "phone:7"
QUESTION = "do the six things"
PLAN = [
    [("look", "one"), ("once", "two")],
    [("once", "three"), ("again", "four"), ("look", "five")],
    [("once", "six")],
]
PLUGGED = [
    [("look", "one"), ("once", "two")],
    [("once", "three"), ("spawn", "kid"), ("session_search", "old")],
    [("once", "six")],
]
KID = [("once", "kid-one"), ("once", "kid-two")]
COUNTED = ("open", "write", "fsync", "fdatasync", "replace", "unlink", "link", "close", "ftruncate")
REFUSED = ("write", "fsync", "fdatasync", "replace")
KILLS = ("before", "half", "after")
FULL = ("refused", "full")
_write = os.write


@dataclass(frozen=True)
class Kind:
    """What is special about a turn."""

    window: int = 65_536
    result_chars: int = 0
    """How long a result is: long ones make the window move in the middle of the turn."""
    earlier: int = 0
    """Messages the session holds before: of a long one only the end is read."""
    joins: bool = False
    """Whether somebody says more while it works."""
    breaks_off: bool = False
    """Whether the model's answers break off."""
    plugged: bool = False
    """Whether hooks, a subagent and a search have their part in it."""
    same_ids: bool = False
    """Whether the model's server gives the calls of each answer the same ids, as some do."""
    slow: bool = False
    """Whether each piece of what the model says is written at once, as it is when it speaks slowly."""


KINDS = {
    "plain": Kind(),
    "window": Kind(window=14_000, result_chars=9_000),
    "long": Kind(earlier=700),
    "joins": Kind(joins=True),
    "slow": Kind(slow=True),
    "broken": Kind(slow=True, breaks_off=True, joins=True),
    "plugged": Kind(plugged=True),
    "same ids": Kind(same_ids=True),
}
kind = KINDS["plain"]


def plan() -> list[list[tuple[str, str]]]:
    """The steps of the turn, each some calls: a tool and a label."""
    return PLUGGED if kind.plugged else PLAN


def step_of(call: Mapping[str, Any]) -> int:
    """Which step of the plan made this call, as its words tell."""
    said = str(call["function"]["arguments"])
    return next((at for at, step in enumerate(plan()) if any(f'"{label}' in said for _, label in step)), -1)


def arguments_of(name: str, label: str) -> dict[str, Any]:
    """What a call is made with."""
    others: dict[str, dict[str, Any]] = {
        "spawn": {"task": "kid: do the two things", "wait": True},
        "session_search": {"query": "six things"},
    }
    return others.get(name, {"label": label})


class Changing(Hook):
    """Leaves its mark on whatever it may change, and takes its time."""

    mark = "'"

    async def on_message(self, message: MessageSeen) -> NewText:
        await asyncio.sleep(0)
        return NewText(message.text + self.mark)

    async def on_answer(self, answer: AnswerSeen) -> None:
        await asyncio.sleep(0)

    async def before_tool(self, call: CallSeen) -> NewArguments | None:
        await asyncio.sleep(0)
        return NewArguments({"label": call.arguments["label"] + self.mark}) if "label" in call.arguments else None

    async def after_tool(self, result: ResultSeen) -> NewResult:
        await asyncio.sleep(0)
        return NewResult(result.text + self.mark)

    async def on_turn_end(self, turn: TurnSeen) -> None:
        await asyncio.sleep(0)


class Marking(Tool):
    """Leaves a mark in a file each time it runs, and gives a little time to be killed in."""

    parameters = {"type": "object", "properties": {"label": {"type": "string"}}, "required": ["label"]}  # noqa: RUF012

    def __init__(self, name: str, effect: Effect, marks: Path) -> None:
        self.name, self.description = name, f"{name} marks"
        self.effect = effect
        self._marks = marks

    async def execute(self, label: str) -> str:
        descriptor = os.open(self._marks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        _write(descriptor, f"{label}\n".encode())
        os.close(descriptor)
        await asyncio.sleep(0)
        return f"{label} is done" + " and this is what it says" * (kind.result_chars // 25)


class Planned(LLMProvider):
    """A model that goes through the plan, wherever it is in it, and does nothing twice."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[str] = []
        self.say_more: Callable[[], None] = lambda: None

    def get_default_model(self) -> str:
        return "planned"

    async def chat_stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Delta]:
        self.problems += openai_problems(messages) + anthropic_problems(messages)
        if any(str(row["content"]).startswith("Your task:") for row in messages):
            yield Finished(self._of_the_kid(messages))
            return
        if "and now?" not in str(messages) and QUESTION not in str(messages):
            self.problems.append("no message of a person is in the request")
        if estimate_tokens(messages) > kind.window:
            self.problems.append("a request is above the window")
        steps = [step_of(call) for row in messages for call in row.get("tool_calls") or ()]
        done = max(steps, default=-1) + 1
        if done == 1 and kind.joins:
            self.say_more()
        text = f"Step {done}." if done < len(plan()) else "All six are done."
        broken = kind.breaks_off and done == 1 and "broke off" not in str(messages[-1]["content"])
        for word in text.split(" "):
            yield TextDelta(word + " ")
            await asyncio.sleep(0)
            if broken:
                raise StreamCutError("cut")
        wanted = plan()[done] if done < len(plan()) else []
        first = "c" if kind.same_ids else f"c{done}"
        calls = [
            ToolCallRequest(f"{first}{at}", name, arguments_of(name, label)) for at, (name, label) in enumerate(wanted)
        ]
        yield Finished(LLMResponse(text + " ", calls, "tool_calls" if calls else "stop"))

    def _of_the_kid(self, messages: Any) -> LLMResponse:
        done = sum(len(row.get("tool_calls") or ()) for row in messages)
        if done >= len(KID):
            return LLMResponse("The kid is done.")
        name, label = KID[done]
        return LLMResponse(None, [ToolCallRequest(f"k{done}", name, {"label": label})], "tool_calls")


def runtime(home: Path, provider: Planned) -> Any:
    defaults = {"contextWindowTokens": kind.window, "maxTokens": 500}
    config = Config(agents={"defaults": defaults})  # type: ignore[arg-type]
    return build_runtime(
        config,
        data_dir=home,
        workspace=home / "workspace",
        provider=provider,
        environ={},
        own_hooks=[Changing()] * kind.plugged,
    )


def add_tools(bot: Runtime, home: Path) -> None:
    for name, effect in (("look", Effect.READ), ("once", Effect.ONCE), ("again", Effect.REPEATABLE)):
        bot.tools.register(Marking(name, effect, home / "marks"))


async def spend(home: Path, said: str) -> dict[str, Any]:
    """A life in which a person says this, or nothing: then what was cut off is taken up. What came of it."""
    provider = Planned()
    sink = RecordingSink()
    async with runtime(home, provider) as bot:
        more: list[asyncio.Task[TurnResult]] = []
        provider.say_more = lambda: more.append(asyncio.create_task(bot.loop.submit(of_ann("and this too"))))
        add_tools(bot, home)
        arm()
        result = await (bot.loop.run_turn(of_ann(said), sink) if said else bot.loop.resume(SESSION, sink))
        others = await asyncio.gather(*more)
        await bot.subagents.recover(SESSION)  # as the chat and the gateway do
        await bot.subagents.wait_reported(SESSION)
        disarm()
        users = [str(row["content"]) for row in bot.sessions.get_or_create(SESSION).messages if row["role"] == "user"]
    if any(one.outcome == "answered" for one in others) and "and this too" not in users:
        provider.problems.append("what joined was answered and is not there")
    return {
        "outcome": result.outcome if result else None,
        "text": result.text if result else "",
        "problems": provider.problems + turn_problems(sink.events),
    }


def of_ann(text: str) -> InboundMessage:
    return InboundMessage("phone", "ann", "7", text, provenance=Provenance.OWNER)


_armed = False


def arm() -> None:
    """From here on the calls count."""
    global _armed
    _armed = True


def disarm() -> None:
    """No call counts any more."""
    global _armed
    _armed = False


Wrap = Callable[[str, Callable[..., Any]], Callable[..., Any]]


def deadly(point: int, mode: str) -> Wrap:
    """Make the call number `point` the last one, or the one that is refused; a negative number only counts.

    In the mode `term` the call is the one at which somebody says stop, politely. What it returns makes other calls
    count too, under a name.
    """
    numbers = itertools.count()

    def wrapped(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not _armed:
                return real(*args, **kwargs)
            number = next(numbers)  # threads write too, and each call has a number of its own
            if mode in FULL:
                if name not in REFUSED or not (number == point or (mode == "full" and 0 <= point < number)):
                    return real(*args, **kwargs)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if number != point:
                return real(*args, **kwargs)
            if mode == "term":
                os.kill(os.getpid(), signal.SIGTERM)
                return real(*args, **kwargs)
            if mode == "half" and name == "write":
                real(args[0], bytes(args[1])[: len(args[1]) // 2])
            if mode == "after":
                real(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)
            raise SystemExit

        return call

    for name in COUNTED:
        setattr(os, name, wrapped(name, getattr(os, name)))
    deadly.count = lambda: next(numbers)  # type: ignore[attr-defined]
    return wrapped


def life(home: Path, said: str, point: int, mode: str) -> tuple[int, Any]:
    """A life in a child; its exit status and what it told."""
    if kind.slow:
        cast("dict[str, float]", Checkpoint.__init__.__kwdefaults__)["every_s"] = 0
    return in_child(lambda wrapped: spend(home, said), point, mode)


def in_child(live: Callable[[Wrap], Coroutine[Any, Any, dict[str, Any]]], point: int, mode: str) -> tuple[int, Any]:
    """Run this in a child that dies at that point; its exit status and what it told."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        wrapped = deadly(point, mode)
        try:
            told = asyncio.run(live(wrapped))
            told["points"] = deadly.count()  # type: ignore[attr-defined]
            _write(writing, json.dumps(told).encode())
        except BaseException:
            _write(
                writing, json.dumps({"problems": [f"a life ended: {traceback.format_exc()}"], "outcome": None}).encode()
            )
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        words = pipe.read()
    _, status = os.waitpid(child, 0)
    return status, json.loads(words) if words else None


def look(home: Path, before: Counter[str], said: list[str], counts: Counter[str]) -> list[str]:
    """What is wrong with what the lives left. `before`: what had its result when a life ended; `said`: by a person."""
    problems: list[str] = []
    session = SessionManager(home / "workspace").get_or_create(SESSION)
    counts["window moved"] += bool(session.metadata.get("window", {}).get("shrunk"))
    rows = session.messages
    marks = marks_of(home, problems)
    results = {str(row["content"]).split(" ")[0].rstrip(Changing.mark): row for row in rows if row["role"] == "tool"}
    for tool, label in [call for step in plan() for call in step] + KID * kind.plugged:
        if tool != "look" and marks[label] > 1:
            problems.append(f"{label} ran {marks[label]} times")
        if before[label] and marks[label] != before[label]:
            problems.append(f"{label} had its result and ran again")
        if label in results and not marks[label]:
            problems.append(f"{label} has a result and never ran")
    called: dict[str, str] = {}
    for row in rows:
        called = {call["id"]: call["function"]["arguments"] for call in row.get("tool_calls") or ()} or called
        if "Outcome unknown" in str(row["content"]) and not any(
            label in called[row["tool_call_id"]] for label in marks
        ):
            counts["unknown and never ran"] += 1
    counts["unknown"] += sum("Outcome unknown" in str(row["content"]) for row in rows if row["role"] == "tool")
    users = [str(row["content"]) for row in rows if row["role"] == "user" and row.get("origin") != "system"]
    if kind.plugged:
        counts["the kid had ended"] += marks["kid-two"]
        problems += [f"not changed once: {text}" for text in users if text.count(Changing.mark) != 1]
        users = [text.removesuffix(Changing.mark) for text in users]
    accepted = any(text in users for text in said if text)
    counts["accepted"] += accepted
    if accepted and not (rows[-1]["role"] == "assistant" and not rows[-1].get("tool_calls")):
        problems.append("an accepted message has no outcome")
    if accepted and "All six are done" not in str(rows[-1]["content"]):
        problems.append(f"the turn did not go on to its end: {str(rows[-1])[:300]}")
    problems += [f"{text} is there {users.count(text)} times" for text in {*said} if users.count(text) > 1]
    if said[-1] not in ("", QUESTION) and said[-1] not in users:
        problems.append(f"{said[-1]} is not there")
    for one, other in itertools.pairwise(rows):
        if one["role"] == other["role"] == "assistant" and str(one["content"]).startswith(str(other["content"])):
            problems.append(f"said {other['content']} twice")
    strays = [*home.rglob("*.tmp")]
    strays += [path for path in (home / "state" / "turns").rglob("*.jsonl") if b"\n" in path.read_bytes()]
    problems += [f"an open task: {task}" for task in open_tasks(home)]
    problems += [f"a stray file: {path.name}" for path in strays]
    return problems


def marks_of(home: Path, problems: list[str]) -> Counter[str]:
    """How often each label ran; where a hook changes them, each has to be changed once."""
    labels = (home / "marks").read_text().split() if (home / "marks").exists() else []
    if kind.plugged:
        problems += [f"run as {label}" for label in labels if label.count(Changing.mark) != 1]
    return Counter(label.rstrip(Changing.mark) for label in labels)


def finished(home: Path) -> Counter[str]:
    """The labels whose results were on the disk when the kill came, and how often they had run by then."""
    manager = SessionManager(home / "workspace")
    rows = [row for one in manager.list_sessions() for row in manager.get_or_create(str(one["key"])).messages]
    done = {str(row["content"]).split(" ")[0].rstrip(Changing.mark) for row in rows if row["role"] == "tool"}
    marks = marks_of(home, [])
    return Counter({label: marks[label] for label in done})


def session_file(home: Path) -> Path:
    return home / "workspace" / "sessions" / "phone_7.jsonl"


def hurt(home: Path, chance: random.Random, counts: Counter[str]) -> bool:
    """What else may happen to files while nobody lives; whether what was accepted may be gone now."""
    turns = home / "state" / "turns"
    what = chance.choice(["nothing", "nothing", "nothing", "half lines", "no turns"])
    counts[what] += what != "nothing"
    if what == "half lines":
        for path in (session_file(home), *turns.glob("*.jsonl")):
            if path.exists():
                with path.open("ab") as stream:
                    stream.write(b'{"key": "phone:7", "role": "user", "content": "hal')
    if what == "no turns":
        shutil.rmtree(turns, ignore_errors=True)
    return what == "no turns"


def killed(home: Path, point: int, mode: str, points: int, chance: random.Random, counts: Counter[str]) -> list[str]:
    """Life after life until one is not killed; what is wrong then."""
    problems: list[str] = []
    said, before, deaths, forgotten = [QUESTION], Counter[str](), 0, False
    while True:
        status, told = life(home, said[-1], point, mode)
        counts["kills"] += os.WIFSIGNALED(status)
        problems += told["problems"] if told else []
        if not os.WIFSIGNALED(status) and deaths:
            break
        deaths += 1
        counts["killed again"] += deaths > 1
        before |= finished(home)
        forgotten |= hurt(home, chance, counts)
        said.append(chance.choice(["", f"and now? {deaths}"]))
        point = chance.randrange(points) if deaths < 3 and chance.random() < 0.4 else -1
        mode = chance.choice(KILLS)
    counts["taken up by itself"] += not said[-1] and told["outcome"] is not None
    if forgotten and not said[-1]:  # without its file nothing is taken up by itself; the next message does it
        _, told = life(home, "and now? at last", -1, "before")
        said.append("and now? at last")
        problems += told["problems"]
    return problems + look(home, before, said, counts)


def refused(home: Path, point: int, mode: str, counts: Counter[str]) -> list[str]:
    """A life on a disk that refuses, and one on a disk that works again; what is wrong then."""
    _, told = life(home, QUESTION, point, mode)
    before = finished(home)
    problems: list[str] = list(told["problems"])
    counts[f"{mode}: {told['outcome']}"] += 1
    if told["outcome"] == "failed" and "o space left" not in told["text"]:
        problems.append(f"the person is not told why: {told['text']}")
    if told["outcome"] not in ("failed", "answered"):
        problems.append(f"the turn ended as {told}")
    _, told = life(home, "and now?", -1, "before")
    if told["outcome"] != "answered":
        problems.append(f"the next turn ended as {told}")
    problems += told["problems"]
    return problems + look(home, before, [QUESTION, "and now?"], counts)


def main() -> None:
    """`every_write EACH SEED KIND MODES`: every EACH-th point; MODES is `kill` or `full`."""
    global kind
    each, chance = int(sys.argv[1]), random.Random(int(sys.argv[2]))
    kind = KINDS[sys.argv[3]]
    modes = KILLS if sys.argv[4] == "kill" else FULL
    first = chance.randrange(each)
    counts: Counter[str] = Counter()
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        template = Path(folder) / "template"
        asyncio.run(warm(template))
        gc.freeze()  # else each life copies what the collector looks at
        home = Path(folder) / "counted"
        shutil.copytree(template, home)
        _, told = life(home, QUESTION, -1, "before")
        points = counts["points"] = told["points"]
        for number, (point, mode) in enumerate(itertools.product(range(points), modes)):
            if number % each != first:
                continue
            home = Path(folder) / f"life-{number}"
            shutil.copytree(template, home)
            if mode in FULL:
                found = refused(home, point, mode, counts)
            else:
                found = killed(home, point, mode, points, chance, counts)
            problems += [f"{mode} call {point}: {one}" for one in found]
            shutil.rmtree(home)
    print(json.dumps({"counts": counts, "problems": problems[:30], "wrong": len(problems)}))


async def warm(home: Path) -> None:
    """A workspace that is there already, modules and tables that are loaded, and what was said before."""
    async with runtime(home, Planned()) as bot:
        session = bot.sessions.get_or_create(SESSION)
        for number in range(kind.earlier // 2):
            session.add_message("user", f"question {number}", turn_id=f"before-{number}")
            session.add_message("assistant", f"answer {number}", turn_id=f"before-{number}")
        bot.sessions.save(session)
    another = home.parent / "another"
    await spend(another, QUESTION)
    shutil.rmtree(another)


if __name__ == "__main__":
    main()
