"""Every promise about models, over the wire: from a config file to what a server sees and what a person reads.

The server speaks both formats and refuses what the real ones refuse. The Python face plays the many cases, the real
command a handful.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.events import TurnOutcome
from nanobot.testing.model_server import (
    Calls,
    CutStream,
    Fail,
    FakeModels,
    Hang,
    Plain,
    Say,
    Step,
)
from nanobot.testing.protocol_rules import encrypted
from tests.support.home import Home, using
from tests.support.sample_requests import results

LITELLM = [pytest.mark.xdist_group("litellm"), pytest.mark.timeout(180)]  # a busy machine takes long to import it
LIMITS = {"connectTimeoutS": 2, "firstTokenTimeoutS": 1, "idleTimeoutS": 1, "totalTimeoutS": 1.5}


@dataclass(frozen=True)
class Wire:
    """How a server is spoken to: the config that leads there, and how it says a step."""

    config: Callable[[FakeModels], dict[str, Any]]
    plain: bool = False

    def script(self, server: FakeModels, *steps: Step) -> None:
        plain = self.plain
        server.script(*(Plain(step) if plain and isinstance(step, Say | Calls) else step for step in steps))


def openai(server: FakeModels, **section: Any) -> dict[str, Any]:
    return using("openai", "gpt-4.1", apiKey="sk-right", apiBase=server.v1, **section)


def anthropic(server: FakeModels, **section: Any) -> dict[str, Any]:
    return using("anthropic", "claude-opus-4-5", apiKey="sk-ant-right", apiBase=server.url, **section)


def responses(server: FakeModels, **section: Any) -> dict[str, Any]:
    return openai(server, apiType="responses", **section)


WIRES = {
    "openai, streamed": Wire(openai),
    "openai, plain": Wire(openai, plain=True),
    "responses, streamed": Wire(responses),
    "responses, plain": Wire(responses, plain=True),
    "anthropic": Wire(anthropic),
}
on_each_wire = pytest.mark.parametrize(
    "wire", [pytest.param(wire, id=name, marks=LITELLM if name == "anthropic" else []) for name, wire in WIRES.items()]
)


@pytest.fixture
def server() -> Iterator[FakeModels]:
    with FakeModels() as running:
        yield running


SIX_STEPS: list[Step] = [
    Calls(("list_dir", {"path": "."}), ("read_file", {"path": "AGENTS.md"}), reasoning="First I look around."),
    Calls(("write_file", '{"path": "plan.txt", "content": "one\\ntwo"'), text="I write the plan."),
    Calls(("list_directory", {"path": "."}), ("read_file", "]] no JSON at all [[")),
    Say("", reasoning="Hm."),
    Calls(("read_file", {"path": "plan.txt"}), ("glob", {"pattern": "plan*"}), ("list_dir", {"path": "memory"})),
    Say("The plan has two lines.", reasoning="That is all."),
]


@on_each_wire
async def test_a_task_of_six_steps_with_all_that_models_do_wrong(tmp_path: Path, server: FakeModels, wire: Wire):
    home = Home(tmp_path, **wire.config(server))
    wire.script(server, *SIX_STEPS)

    async with home.open() as bot:
        result = await bot.run("Write me a plan")

    assert (result.outcome, result.text) == (TurnOutcome.ANSWERED, "The plan has two lines.")
    assert server.problems == []
    assert len(server.chats) == 6
    assert (home.workspace / "plan.txt").read_text() == "one\ntwo"
    listed, agents, wrote, unknown, broken, read, found, memory = results(server.chats[-1])
    assert "AGENTS.md" in listed and "plan.txt" not in listed
    assert "#" in agents
    assert "plan.txt" in wrote
    assert "list_directory" in unknown and "list_dir" in unknown
    assert "did not run" in broken
    assert "two" in read
    assert "plan.txt" in found
    assert "MEMORY.md" in memory
    assert result.usage.prompt_tokens == 12 * 6
    assert result.usage.completion_tokens == 5 * 6


async def test_a_failure_in_the_middle_of_a_task_keeps_what_was_done(tmp_path: Path, server: FakeModels):
    home = Home(tmp_path, **openai(server, **LIMITS))
    server.script(Calls(("write_file", {"path": "a.txt", "content": "kept"})), Hang(after="I wrote"))

    async with home.open() as bot:
        failed = await bot.run("write a.txt")
        following = await bot.run("what did you do?")

    assert failed.outcome is TurnOutcome.FAILED
    assert following.text == "ok"
    roles = [row["role"] for row in server.chats[-1].json["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert server.chats[-1].json["messages"][4]["content"] == "I wrote"
    assert server.problems == []


@pytest.mark.parametrize("config", [openai, responses, pytest.param(anthropic, marks=LITELLM)])
async def test_the_rest_of_an_answer_that_broke_off_is_asked_for_once_of_the_same_model(
    tmp_path: Path, server: FakeModels, config: Callable[..., dict[str, Any]]
):
    settings = config(server)
    server.script(CutStream("Half of"), Say(" the answer."), CutStream("Half of"), CutStream(" the"), Say("ok"))

    with FakeModels() as other:
        settings["agents"]["defaults"]["fallbackModels"] = [{"model": "deepseek-chat", "provider": "deepseek"}]
        settings["providers"]["deepseek"] = {"apiKey": "k", "apiBase": other.v1}
        async with Home(tmp_path, **settings).open() as bot:
            mended = await bot.run("first")
            failed = await bot.run("second")
            following = await bot.run("third")

    assert (mended.outcome, mended.text) == (TurnOutcome.ANSWERED, "Half of the answer.")
    assert failed.outcome is TurnOutcome.FAILED
    assert "The answer broke off in the middle" in failed.text
    assert following.text == "ok"
    assert (len(server.chats), other.chats) == (5, []), "nobody is switched in silence"
    assert server.problems == []


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("401", Fail(401, "Incorrect API key provided: sk-wrong.", "invalid_api_key")),
        ("silence", Hang()),
        pytest.param("refused", Say("ok"), marks=pytest.mark.slow),  # it waits 7 s
    ],
)
def test_the_command_ends_with_one_line_and_exit_code_1_and_its_session_goes_on(tmp_path: Path, name: str, step: Step):
    with FakeModels(default=step) as server:
        home = Home(tmp_path, **openai(server, **(LIMITS if name == "silence" else {})))
        if name == "refused":
            home.configure(**using("openai", "gpt-4.1", apiKey="sk-right", apiBase="http://127.0.0.1:9/v1"))

        started = time.monotonic()
        failed = home.ask("first")
        seconds = time.monotonic() - started
        server.default = Say("ok")
        home.configure(**openai(server))
        following = home.ask("second")

    *tries, line = failed.aside.splitlines()
    print(f"command, {name}: {seconds:.2f} s: {line}")
    assert failed.code == 1
    assert line.startswith("Error: ")
    assert "openai" in line and "gpt-4.1" in line
    assert len(tries) == (3 if name == "refused" else 0), "who waits is told why, a line a wait"
    assert seconds < 30, "a machine may be busy; the default limit is a minute"
    assert (following.code, following.out, following.aside) == (0, "ok\n", "")
    said = [str(row["content"]).split("\n")[0] for row in server.chats[-1].json["messages"] if row["role"] == "user"]
    assert said == ["first", "second"]
    assert server.problems == []


def test_the_command_speaks_responses_and_sends_the_reasoning_of_earlier_turns_back(tmp_path: Path, server: FakeModels):
    home = Home(tmp_path, **responses(server))
    server.script(*SIX_STEPS, Say("Two lines.", reasoning="I remember."), Say("Yes."))

    done = home.ask("Write me a plan")
    home.ask("How long is it?")
    last = home.ask("Sure?")
    usage = home.run("usage", "--json")

    assert (done.code, done.out, done.aside) == (0, "I write the plan.\n\nThe plan has two lines.\n", "")
    assert (last.code, last.out) == (0, "Yes.\n")
    assert {request.path for request in server.chats} == {"/v1/responses"}
    assert {request.headers["authorization"] for request in server.chats} == {"Bearer sk-right"}
    reasoning = [item["encrypted_content"] for item in server.chats[-1].json["input"] if item["type"] == "reasoning"]
    assert reasoning == [encrypted(text) for text in ("First I look around.", "That is all.", "I remember.")]
    assert f'"prompt_tokens": {12 * 8}' in usage.out, usage.out
    assert server.problems == []


@pytest.mark.slow  # LiteLLM takes seconds to import, and each command does
@pytest.mark.xdist_group("litellm")
def test_the_command_reaches_anthropic_through_litellm(tmp_path: Path, server: FakeModels):
    home = Home(tmp_path, **anthropic(server))
    server.script(*SIX_STEPS[:-1], Say("The plan has two lines."))

    done = home.ask("Write me a plan")

    assert (done.code, done.out, done.aside) == (0, "I write the plan.\n\nThe plan has two lines.\n", "")
    assert server.problems == []


async def test_a_server_that_says_how_small_it_is_answers_the_first_message(tmp_path: Path, server: FakeModels):
    home = Home(tmp_path, **openai(server))
    said = (
        "This model's maximum context length is 8192 tokens. However, you requested 11000 tokens (8192 in the reply)."
    )
    server.script(Fail(400, said, "context_length_exceeded"), Say("Hello."), Say("Read."))

    async with home.open() as bot:
        first = await bot.run("hello")
        second = await bot.run("read this: " + "some words " * 250)

    assert (first.text, second.text) == ("Hello.", "Read.")
    replies = [request.json["max_tokens"] for request in server.chats]
    assert (len(replies), replies[0]) == (3, 8192)
    assert max(replies[1:]) < 8192 * 0.4
