"""The same words, whichever way they come in: a one-shot, a chat, a channel of a gateway, a chat through that gateway.

Each scenario is said over all of them, to real child processes with a model on loopback. What people read must be the
same, or one way must say at once that it cannot; and all offer the model the very same tools.
"""

import json
import re
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import pytest

from nanobot.testing.model_server import Calls, Fail, FakeModels, Fitting, Say, Step
from tests.support.home import NANOBOT
from tests.support.mcp import MCP_SERVER
from tests.support.toy_gateway import GatewayHome, written

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are a POSIX thing", allow_module_level=True)


from tests.support.eventually import wait_until
from tests.support.terminal import on_screen

pytestmark = pytest.mark.xdist_group("every way in")

NO_GATEWAY = "No gateway is running: jobs run once `nanobot gateway` is started."


def echo(body: dict[str, Any]) -> Step:
    """The model tells what its tools said."""
    asked = max(number for number, row in enumerate(body["messages"]) if row["role"] == "assistant")
    return Say("\n".join(str(row["content"]) for row in body["messages"][asked + 1 :]))


def knows(body: dict[str, Any]) -> Step:
    return Say("You like tea." if "She likes tea." in json.dumps(body["messages"][0]) else "I know nothing of you.")


def cron(**arguments: Any) -> Calls:
    return Calls(("cron", arguments))


def delegates(body: dict[str, Any]) -> Step:
    """The agent hands on what it is asked, the subagent does it, and the agent tells of it."""
    last = str(next(row["content"] for row in reversed(body["messages"]) if row["role"] == "user"))
    if "Your task:" in last:
        return Say("found: 3 euros")
    if "[A subagent has ended" in last:
        return Say("It costs 3 euros.")
    asked = Calls(("spawn", {"task": "find the prices", "label": "prices"}))
    return Say("I am on it.") if body["messages"][-1]["role"] == "tool" else asked


def soon(body: dict[str, Any]) -> Step:
    at = datetime.now().astimezone() + timedelta(seconds=1.1)
    return cron(action="add", message="Say that it is time", at=at.isoformat(timespec="milliseconds"))


@dataclass(frozen=True)
class Turn:
    """What is said, what the model does about it, and what is the last that is read of it."""

    said: str
    script: Sequence[Step]
    ends: str


@dataclass(frozen=True)
class Scenario:
    turns: Sequence[Turn]
    other: Mapping[str, str] = field(default_factory=dict)
    """By way in, the words that refuse, or that are said besides: the one difference there may be."""


def one(said: str, *script: Step, ends: str, **other: str) -> Scenario:
    return Scenario([Turn(said, script, ends)], {way.replace("_", " "): words for way, words in other.items()})


NOT_FROM_HERE = "Nothing goes to toy from here: no gateway runs. Nothing was sent."

SCENARIOS = {
    "files, and memory in the next turn": Scenario(
        [
            Turn(
                "note it; and I like tea",
                [
                    Calls(("write_file", {"path": "notes.txt", "content": "milk\n"})),
                    Calls(
                        ("read_file", {"path": "notes.txt"}),
                        ("exec", {"command": "mkdir -p memory && echo 'She likes tea.' > memory/MEMORY.md"}),
                    ),
                    Fitting(echo),
                ],
                "Exit code: 0",
            ),
            Turn("what do you know?", [Fitting(knows)], "tea."),
        ]
    ),
    "a message to this very chat, and a plain answer": one(
        "tea?", Calls(("message", {"content": "The kettle is on."})), Say("That was all."), ends="That was all."
    ),
    "a message to another chat": one(
        "tell Ben",
        Calls(("message", {"content": "hello Ben", "channel": "toy", "chat_id": "8"})),
        Fitting(echo),
        ends="oy",
        one_shot=NOT_FROM_HERE,
        chat=NOT_FROM_HERE,
    ),
    "a reminder that rings": Scenario(
        [Turn("remind me", [Fitting(soon), Say("It is set."), Say("It is time!")], "It is time!")],
        {"one shot": NO_GATEWAY},
    ),
    "a command": one("/raise", ends="nearly reached"),
    "a command that is none": one("/hlep", ends="/help"),
    "nothing to stop": one("/stop", ends="running"),
    "a model that fails": one("hello?", Fail(401, "bad key"), ends="providers.custom"),
    "a tool of an MCP server": one("the lamp!", Calls(("mcp_home_echo", {"n": 1})), Fitting(echo), ends='{"n": 1}'),
    "a subagent, and what it found": one(
        "delegate",
        *[Fitting(delegates)] * 4,
        ends="It costs 3 euros.",
        one_shot="Waiting for 1 subagent: prices",
    ),
    "what nobody can do: a chat that is none, a time that is past, a tool that is none": one(
        "do what you cannot",
        Calls(
            ("message", {"content": "hello Ben", "channel": "pigeon", "chat_id": "8"}),
            ("cron", {"action": "add", "message": "x", "at": "2001-01-01T00:00"}),
            ("mcp_home_lamp", {}),
        ),
        Fitting(echo),
        ends="'mcp_home_lamp'.",
    ),
}


class Way(ABC):
    """A way in."""

    @abstractmethod
    def say(self, turn: Turn, *, until_it_says: str) -> str:
        """Say it; all that is read because of it, once that is read."""


class OneShot(Way):
    def __init__(self, home: GatewayHome) -> None:
        self._home = home

    def say(self, turn: Turn, *, until_it_says: str) -> str:
        end = self._home.ask(turn.said)
        return end.out + end.aside


class Chat(Way):
    """A plain chat on a pseudo-terminal."""

    def __init__(self, home: GatewayHome) -> None:
        environ = {**home.environ, "TERM": "dumb"}
        self.child = on_screen([*NANOBOT, "agent"], env=environ, encoding="utf-8", timeout=15, echo=False)
        self.child.delaybeforesend = None
        self.child.expect("> $")

    def say(self, turn: Turn, *, until_it_says: str) -> str:
        self.child.sendline(turn.said)
        self.child.expect_exact(until_it_says)
        read = self.child.before + self.child.after
        self.child.expect("> $")
        return str(read + self.child.before)


class Channel(Way):
    """A chat of a platform."""

    def __init__(self, home: GatewayHome) -> None:
        self._toy = home.toy
        self._numbers = count(1)

    def say(self, turn: Turn, *, until_it_says: str) -> str:
        before = len(self._toy.got("7"))
        self._toy.write(turn.said, message_id=f"m{next(self._numbers)}")
        wait_until(lambda: until_it_says in "\n".join(self._toy.got("7")[before:]))
        return "\n".join(self._toy.got("7")[before:])


@pytest.fixture(scope="module")
def server() -> Iterator[FakeModels]:
    with FakeModels() as server:
        yield server


MakeHome = Callable[[str], GatewayHome]


@pytest.fixture(scope="module")
def make_home(server: FakeModels, tmp_path_factory: pytest.TempPathFactory) -> MakeHome:
    """A home with an MCP server that was met before: a first meeting may be over only after the first turn."""
    met: list[GatewayHome] = []

    def make(name: str) -> GatewayHome:
        home = GatewayHome(tmp_path_factory.mktemp(name), server)
        lamp = {"command": sys.executable, "args": ["-I", "-S", MCP_SERVER], "enabledTools": ["echo"]}
        home.change(tools={"mcpServers": {"home": lamp}})
        if met:
            shutil.copytree(met[0].data / "state" / "mcp", home.data / "state" / "mcp")
        else:
            met.append(home)
            subprocess.run([sys.executable, "-m", "nanobot", "mcp", "test", "home"], env=home.environ, check=True)
        return home

    return make


@pytest.fixture(scope="module")
def daemon(make_home: MakeHome) -> Iterator[GatewayHome]:
    home = make_home("daemon")
    written(home.data / "pairing.json", {"owners": {"toy": ["7"]}, "approved": {"toy": ["7"]}})
    with home.gateway():
        yield home


@pytest.fixture(scope="module")
def ways(daemon: GatewayHome, make_home: MakeHome) -> Iterator[dict[str, Way]]:
    alone, chatting = (make_home(name) for name in ("alone", "chatting"))
    with ExitStack() as stack:
        chats = [Chat(chatting), Chat(daemon)]
        for chat in chats:
            stack.callback(chat.child.close, force=True)
        yield {
            "one shot": OneShot(alone),
            "chat": chats[0],
            "channel": Channel(daemon),
            "chat through the gateway": chats[1],
        }


TOOL_LINE = re.compile(r"^  \w+(?: .*)?  \d+\.\d\ds(?: .*)?$")
DIFFERS = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d(?: [+-]\d\d:\d\d)? \([^)]*\)", "TIME"),
    (r"^[> ]*\*\*.*\*\*, \d\d:\d\d\s*$", ""),
    (r"\b[0-9a-f]{8}\b|(?<=message )[\w-]+", "ID"),
    (r"cli:direct|toy:7", "HERE"),
    (r"^Error: ", ""),
)


def plain(text: str) -> list[str]:
    """The lines that were read, without what has to differ: ids, times, this chat's name; prompts and tool lines."""
    for pattern, name in DIFFERS:
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    lines = [line for line in text.splitlines() if not TOOL_LINE.match(line)]
    return [line.removeprefix("> ").strip() for line in lines if line.strip("> ")]


@pytest.mark.needs_sandbox
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_every_way_in_has_the_same_tools_and_says_the_same_or_says_why_not(
    ways: dict[str, Way], server: FakeModels, scenario: Scenario
):
    read: dict[str, list[str]] = {}
    before = len(server.chats)
    for name, way in ways.items():
        read[name] = []
        for turn in scenario.turns:
            server.script(*turn.script)
            read[name] += plain(way.say(turn, until_it_says=scenario.other.get(name, turn.ends)))
            server.forget()

    for name, words in scenario.other.items():
        assert words in "\n".join(read.pop(name))
    told = read["channel"]
    assert read == dict.fromkeys(read, told)
    assert scenario.turns[-1].ends in "\n".join(told)
    agents = [asked for asked in server.chats[before:] if b"Your task:" not in asked.body]
    assert len({json.dumps(asked.json["tools"]) for asked in agents}) <= 1


@pytest.mark.needs_sandbox
def test_a_one_shot_through_a_gateway_prints_what_was_sent_to_it(daemon: GatewayHome, server: FakeModels):
    server.script(Calls(("message", {"content": "The kettle is on."})), Say("That was all."))

    end = daemon.ask("tea?", "-s", "cli:other")

    assert (end.out, end.aside) == ("The kettle is on.\n\nThat was all.\n", "")
