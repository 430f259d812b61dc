"""Whatever happened in a session, the strictest server takes its next request, and the head of it has not moved."""

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from nanobot.agent.events import TurnOutcome
from nanobot.sdk import Nanobot
from nanobot.testing.model_server import Calls, CutStream, Fail, FakeModels, Garbage, Hang, Raw, Reset, Say, Step
from tests.support.eventually import eventually
from tests.support.home import Home, using
from tests.support.sample_requests import heads_of_each_other, same_head

LITELLM = pytest.mark.xdist_group("litellm")
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)


@pytest.fixture
def server() -> Iterator[FakeModels]:
    with FakeModels() as running:
        yield running


def openai(server: FakeModels, model: str = "gpt-4.1") -> dict[str, Any]:
    return using("openai", model, apiKey="sk-x", apiBase=server.v1)


def anthropic(server: FakeModels) -> dict[str, Any]:
    return using("anthropic", "claude-opus-4-5", apiKey="sk-ant-x", apiBase=server.url)


on_each_wire = pytest.mark.parametrize(
    "config", [pytest.param(openai, id="openai"), pytest.param(anthropic, id="anthropic", marks=LITELLM)]
)

WORK: list[Step] = [
    Calls(("list_dir", {"path": "."}), ("read_file", {"path": "AGENTS.md"}), reasoning="Look.", text="I look."),
    Calls(("list_dir", {"path": "memory"}), ids=["list_dir:0"]),
    Say("Done."),
]
BLOWS: list[Step] = [Fail(500), Fail(429), Reset(), CutStream("Half"), Garbage(), Say(""), Say("And", finish="length")]


async def said_until_stopped(bot: Nanobot, server: FakeModels, *steps: Step) -> None:
    """Say something and stop the turn when the model was asked for the last of these steps."""
    server.script(*steps)
    asked = len(server.chats) + len(steps)
    turn = asyncio.create_task(bot.run("work"))
    await eventually(lambda: len(server.chats) >= asked)
    await asyncio.sleep(0.05)
    turn.cancel()
    await asyncio.wait([turn])


@pytest.mark.parametrize(
    ("config", "steps"),
    [
        pytest.param(openai, range(3), id="openai"),
        pytest.param(anthropic, [1], id="anthropic", marks=LITELLM),
        pytest.param(anthropic, [0, 2], id="anthropic, the others", marks=[LITELLM, pytest.mark.slow]),
    ],
)
async def test_after_any_failure_at_any_step_the_next_message_is_answered(
    tmp_path: Path, server: FakeModels, config: Callable[..., dict[str, Any]], steps: Sequence[int]
):
    home = Home(tmp_path, **config(server))
    async with home.hasty() as bot:
        for at in steps:
            for number, blow in enumerate(BLOWS):
                server.script(*WORK[:at], blow)
                await bot.say(f"work {at} {number}")

                assert (await bot.say("and now?")).result.outcome is TurnOutcome.ANSWERED

    assert server.problems == []


@on_each_wire
async def test_after_a_stop_at_any_moment_the_next_message_is_answered(
    tmp_path: Path, server: FakeModels, config: Callable[..., dict[str, Any]]
):
    home = Home(tmp_path, **config(server))
    moments: list[list[Step]] = [
        [Hang()],
        [Hang(after="Half of")],
        [WORK[0], Hang()],
        [Calls(("list_dir", {"path": "."}), ("exec", {"command": "sleep 30"}))],
    ]
    async with home.open() as bot:
        for steps in moments:
            await said_until_stopped(bot, server, *steps)

            assert (await bot.run("and now?")).text == "ok"

    assert server.problems == []


@pytest.mark.parametrize(
    ("config", "turns", "each"),  # the file does not know the wire
    [
        pytest.param(openai, 1, 1, id="openai"),
        pytest.param(anthropic, 1, 3, id="anthropic", marks=LITELLM),
        pytest.param(openai, 2, 1, id="openai, two turns", marks=pytest.mark.slow),
        pytest.param(anthropic, 2, 1, id="anthropic, two turns", marks=[LITELLM, pytest.mark.slow]),
    ],
)
async def test_a_session_file_cut_anywhere_goes_on(
    tmp_path: Path, server: FakeModels, config: Callable[..., dict[str, Any]], turns: int, each: int
):
    home = Home(tmp_path / "whole", **config(server))
    async with home.open() as bot:
        for _ in range(turns):
            server.script(*WORK)
            await bot.run("work")
    file = next(home.workspace.glob("sessions/*.jsonl"))
    written = file.read_bytes()
    ends = [at for at, byte in enumerate(written) if byte == ord("\n")]

    cuts = sorted({*ends, *(end + 20 for end in ends[:-1])})
    for number, end in enumerate(cuts[::each]):
        other = Home(tmp_path / f"cut-{number}", **config(server))
        shutil.copytree(home.workspace, other.workspace)
        (other.workspace / file.relative_to(home.workspace)).write_bytes(written[: end + 1])
        async with other.open() as bot:
            assert (await bot.run("and now?")).text == "ok"

    assert server.problems == []


@pytest.mark.xdist_group("litellm")
async def test_a_session_goes_on_with_another_model_and_back(tmp_path: Path, server: FakeModels):
    both = {**openai(server)["providers"], **anthropic(server)["providers"]}
    presets = {
        "gpt": {"model": "gpt-4.1", "provider": "openai"},
        "thinker": {"model": "deepseek-reasoner", "provider": "openai"},
        "claude": {"model": "claude-opus-4-5", "provider": "anthropic", "reasoningEffort": "low"},
    }
    home = Home(tmp_path, providers=both, modelPresets=presets, agents={"defaults": {"modelPreset": "gpt"}})
    names = ("gpt", "claude", "thinker", "claude", "gpt", "thinker", "thinker")
    models = []
    async with home.open() as bot:
        for name in names:
            await bot.run(f"/model {name}")
            server.script(*WORK)

            result = await bot.run(f"work with {name}")

            assert result.text == "Done.", result.text
            models.append(server.chats[-1].json["model"])

    assert models == [presets[name]["model"] for name in names]
    assert server.problems == []


async def test_a_switch_in_the_middle_of_a_task_is_taken_over(tmp_path: Path, server: FakeModels):
    server.reasoning = "required"
    home = Home(tmp_path, **openai(server, "deepseek-reasoner"))
    server.script(Calls(("list_dir", {"path": "."})), Fail(500))
    async with home.open() as bot:
        await bot.run("work")
        server.script(*WORK)

        assert (await bot.run("go on")).text == "Done."

    assert server.problems == []


@pytest.mark.parametrize(
    ("config", "turns"),  # what is sent grows with the square of them
    [
        pytest.param(openai, 5, id="openai"),
        pytest.param(anthropic, 2, id="anthropic", marks=[LITELLM, pytest.mark.slow]),
        pytest.param(openai, 10, id="openai, long", marks=pytest.mark.slow),
        pytest.param(anthropic, 5, id="anthropic, long", marks=[LITELLM, pytest.mark.slow]),
    ],
)
async def test_many_turns_with_tools_and_thoughts_and_restarts_keep_their_head(
    tmp_path: Path, server: FakeModels, config: Callable[..., dict[str, Any]], turns: int
):
    settings = config(server)
    settings["agents"]["defaults"]["memoryWindow"] = 1000  # a consolidation moves the head, rightly
    home = Home(tmp_path, **settings)
    for _ in range(5):
        async with home.open() as bot:
            for _ in range(turns):
                server.script(*WORK)
                assert (await bot.run("work")).text == "Done."

    assert server.problems == []
    assert len(server.chats) == 15 * turns
    assert heads_of_each_other(server) if config is openai else same_head(server)


@pytest.mark.parametrize(
    ("model", "wants", "turns"),
    [
        ("deepseek-reasoner", "required", 5),
        pytest.param("kimi-k2-thinking", "required", 3, marks=pytest.mark.slow),
        ("gpt-4.1", "forbidden", 3),
        pytest.param("deepseek-reasoner", "required", 10, marks=pytest.mark.slow),
        pytest.param("kimi-k2-thinking", "required", 10, marks=pytest.mark.slow),
        pytest.param("gpt-4.1", "forbidden", 10, marks=pytest.mark.slow),
    ],
)
async def test_over_fifty_turns_thoughts_go_back_to_who_wants_them_and_to_nobody_else(
    tmp_path: Path, server: FakeModels, model: str, wants: Literal["required", "forbidden"], turns: int
):
    """Row 50: sessions died after a few turns, since a thought was missing beside a call that was replayed."""
    server.reasoning = wants
    home = Home(tmp_path, **openai(server, model))
    for _ in range(5):
        async with home.open() as bot:
            for _ in range(turns):
                server.script(*WORK)
                assert (await bot.run("work")).text == "Done."

    assert server.problems == []
    assert len(server.chats) == 15 * turns
    thoughts = [row.get("reasoning_content") for row in server.chats[-1].json["messages"] if row.get("tool_calls")]
    assert ("Look." in thoughts) is (wants == "required")


def test_requests_of_one_process_after_the_other_share_their_head_with_an_image_in_it(
    tmp_path: Path, server: FakeModels
):
    home = Home(tmp_path, **openai(server))
    picture = tmp_path / "pixel.png"
    picture.write_bytes(PIXEL)
    server.script(*WORK, Say("A pixel.", reasoning="Small."), *WORK)

    home.ask("look around")
    home.ask("what is this?", "--attach", str(picture))
    home.ask("once more")

    assert len(server.chats) == 7
    assert "data:image/png" in server.chats[-1].body.decode()
    assert heads_of_each_other(server)
    assert server.problems == []


CHUNK = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def streamed(*deltas: dict[str, Any], usage: dict[str, Any] | None = None) -> Raw:
    events = [{**CHUNK, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    end = {**CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    return Raw.events(*events, end, *([{**CHUNK, "choices": [], "usage": usage}] if usage else []))


async def test_a_call_that_gemini_signed_goes_back_with_its_signature_and_to_nobody_else(
    tmp_path: Path, server: FakeModels
):
    signature = {"google": {"thought_signature": "AY89a18IwQsQ8in/+=="}}
    call = {"index": 0, "id": "c1", "function": {"name": "list_dir", "arguments": "{}"}, "extra_content": signature}
    home = Home(tmp_path, **openai(server, "gemini-3-pro-preview"))
    server.script(streamed({"tool_calls": [call]}), Say("Done."))

    async with home.open() as bot:
        await bot.run("work")
    async with home.open() as bot:
        await bot.run("and now?")
    home.configure(**openai(server))
    async with home.open() as bot:
        await bot.run("and you?")

    sent = [request.json["messages"][2]["tool_calls"][0].get("extra_content") for request in server.chats[1:]]
    assert sent == [signature, signature, None]
    assert server.problems == []


@pytest.mark.parametrize("ids", [["same", "same"], ["", ""], [None, None], ["a b:c", "a_b_c"], ["x" * 90, "y"]])
async def test_calls_with_doubled_empty_or_strange_ids_are_answered_one_by_one(
    tmp_path: Path, server: FakeModels, ids: list[str | None]
):
    calls = [
        {"index": at, "id": ids[at], "function": {"name": "list_dir", "arguments": json.dumps({"path": path})}}
        for at, path in enumerate([".", "memory"])
    ]
    home = Home(tmp_path, **openai(server))
    server.script(streamed({"tool_calls": calls}), Say("Done."))

    async with home.open() as bot:
        result = await bot.run("work")
        await bot.run("and now?")

    assert result.text == "Done."
    assert server.problems == []
    rows = server.chats[-1].json["messages"]
    assert ["AGENTS.md" in row["content"] for row in rows if row["role"] == "tool"] == [True, False]
