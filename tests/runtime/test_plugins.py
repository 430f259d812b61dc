"""Packages bring tools and hooks where the config wants them; whatever is wrong with one has its name on it."""

import asyncio
import importlib
import inspect
import pkgutil
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from nanobot import agent
from nanobot.agent.events import ToolEnded
from nanobot.agent.tools.base import Tool
from nanobot.agent.tools.builtin import ToolPolicies, build_tools
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.config.schema import Config
from nanobot.plugins import offers
from nanobot.providers.base import Delta, Finished, LLMResponse
from nanobot.runtime.plugins import load_packages
from nanobot.security.files.paths import PathPolicy
from nanobot.testing import calls, open_bot
from nanobot.utils.aio import WorkerThread
from tests.programs import unruly_plugin
from tests.support.plugin_package import HOOK, TOOL, install

LOOK = ("list_dir", {"path": "."})


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    before = {*sys.modules}
    (place := tmp_path / "site").mkdir()
    monkeypatch.syspath_prepend(place)
    yield place
    for name in {*sys.modules} - before:
        if getattr(sys.modules[name], "__file__", None) and str(place) in str(sys.modules[name].__file__):
            del sys.modules[name]


def on(*packages: str, **more: Any) -> Config:
    return Config.model_validate({"plugins": {"enabled": [*packages], **more}})


def troubles(config: Config) -> list[str]:
    return load_packages(config.plugins, WorkerThread()).troubles()


async def test_a_package_that_is_only_installed_runs_nothing(tmp_path: Path, site: Path):
    install(
        site, "sun-pack", "raise SystemExit('imported')", {"tools": {"weather": "Weather"}, "hooks": {"a": "Audit"}}
    )

    async with open_bot(tmp_path, "done") as bot:
        assert await bot.say("go") == "done"

    assert "weather_of" not in [tool["function"]["name"] for tool in bot.provider.tools[0]]
    assert "sun_pack" not in sys.modules


@pytest.mark.parametrize("config", [on("*"), on("sun-pack")])
def test_disabled_goes_before_enabled(tmp_path: Path, site: Path, config: Config):
    install(site, "sun-pack", TOOL, {"tools": {"weather": "Weather"}})
    config.plugins.disabled = ["sun_pack"]

    found = load_packages(config.plugins, WorkerThread())

    assert "sun-pack" not in [package.name for package in found.packages]


@pytest.mark.parametrize(
    ("code", "points", "requires", "said"),
    [
        ("raise RuntimeError('boom')", {"tools": {"t": "T"}}, [], "its tool t was skipped: RuntimeError: boom"),
        ("import sys; sys.exit(3)", {"hooks": {"h": "H"}}, [], "calls sys.exit when it is imported"),
        ("import no_such_thing", {"hooks": {"h": "H"}}, [], "No module named 'no_such_thing'"),
        ("def (", {"hooks": {"h": "H"}}, [], "SyntaxError"),
        ("", {"hooks": {"h": "H"}}, [], "has no H"),
        ("class H: pass", {"hooks": {"h": "H"}}, [], "does not derive from nanobot.agent.hooks.Hook"),
        ("class T: pass", {"tools": {"t": "T"}}, [], "does not derive from nanobot.agent.tools.base.Tool"),
        (TOOL.replace("weather_of", "read_file"), {"tools": {"t": "Weather"}}, [], "the name is nanobot's own"),
        (TOOL.replace("weather_of", "a b"), {"tools": {"t": "Weather"}}, [], "Its `name` has to be"),
        (HOOK, {"hooks": {"h": "Audit"}}, ["nanobot>=9"], "it is written for nanobot >=9, and this is"),
    ],
)
def test_a_package_that_cannot_be_used_is_named_and_harms_nothing(
    tmp_path: Path, site: Path, code: str, points: dict[str, dict[str, str]], requires: list[str], said: str
):
    install(site, "odd-pack", code, points, requires=requires)
    install(site, "sun-pack", TOOL, {"tools": {"weather": "Weather"}})
    tools = build_tools(ToolPolicies(PathPolicy(tmp_path)))

    found = load_packages(on("odd-pack", "sun-pack").plugins, WorkerThread())
    found.offer(tools)

    (line,) = found.troubles()
    assert line.startswith("odd-pack: ") and said in line
    assert tools.has("weather_of")


def test_a_plugin_takes_the_name_of_no_tool_of_nanobot(tmp_path: Path, site: Path):
    modules = [importlib.import_module(one.name) for one in pkgutil.walk_packages(agent.__path__, "nanobot.agent.")]
    classes = {one for module in modules for one in vars(module).values() if isinstance(one, type)}
    names = {name for one in classes if issubclass(one, Tool) and isinstance(name := vars(one).get("name"), str)}
    for name in names:
        install(site, f"taking-{name}", TOOL.replace("weather_of", name), {"tools": {"t": "Weather"}})
    tools = ToolRegistry()

    found = load_packages(on("*").plugins, WorkerThread())
    found.offer(tools)

    assert {"tell", "mcp_find", "mcp_call", "exec", "spawn"} <= names
    assert tools.names == []
    assert len(found.troubles()) == len(names)


def test_a_name_that_no_package_has_is_told_with_those_that_there_are(tmp_path: Path, site: Path):
    install(site, "sun-pack", TOOL, {"tools": {"weather": "Weather"}})

    (line,) = troubles(on("son-pack"))

    assert line.startswith("son-pack: plugins.enabled lists it") and "sun-pack" in line


async def test_a_hook_that_blocks_its_thread_holds_up_nobody_and_is_told_of(tmp_path: Path, site: Path):
    install(site, "odd-pack", HOOK, {"hooks": {"hangs": "Hangs"}})
    install(site, "rude-pack", HOOK, {"hooks": {"raises": "Raises"}})
    config = on("odd-pack", "rude-pack", hookTimeoutS=0.05)

    began = time.monotonic()
    async with open_bot(tmp_path, calls(LOOK), "done", config=config) as bot:
        assert await bot.say("go") == "done"
        assert time.monotonic() - began < 5
        status = await bot.say("/status")

    told = [line.removeprefix("Plugins: ") for line in status.splitlines() if line.startswith("Plugins: ")]
    assert all(one.ok for one in bot.sink.events if isinstance(one, ToolEnded))
    assert told == [
        "hangs of odd-pack: before_tool took more than 0.05 s",
        "raises of rude-pack: on_answer raised ValueError: no such thing",
    ]


async def test_a_tool_that_blocks_its_thread_keeps_no_hook_of_another_chat_from_its_work(tmp_path: Path, site: Path):
    slow = TOOL.replace("return f", "import time; time.sleep(0.8); return f")
    install(site, "slow-pack", slow, {"tools": {"weather": "Weather"}})
    install(site, "sun-pack", HOOK, {"hooks": {"audit": "Audit"}})
    config = on("slow-pack", "sun-pack", hookTimeoutS=0.5)

    async with open_bot(tmp_path, calls(("weather_of", {})), "hi", "done", config=config) as bot:
        slow_turn = asyncio.create_task(bot.say("weather?", "cli:a"))
        while len(bot.provider.requests) < 1 or "tool_started" not in bot.sink.types:
            await asyncio.sleep(0.01)
        assert await bot.say("hello", "cli:b") == "hi"
        was_blocked = not slow_turn.done()
        assert await slow_turn == "done"
        status = await bot.say("/status")

    assert was_blocked
    assert "hello (audited)" in str(bot.provider.requests[1])
    assert "sunny in nowhere" in str(bot.provider.requests[2])
    assert "Plugins:" not in status


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        ("nanobot", True),
        ("nanobot>=0.1,<1", True),
        ("nanobot[slack] (>=0.1)", True),
        ("nanobot~=0.1.0", True),
        ("nanobot==0.1.*", True),
        ("nanobot==0.2.*", False),
        ("nanobot<0.1", False),
        ("nanobot!=0.1", False),
        ("Nano_bot>=9", True),
        ("nanobot-weather>=9", True),
        ("nanobot>9 ; python_version < '4'", False),
        ("nanobot @ file:///somewhere", True),
    ],
)
def test_a_package_for_another_version_is_known_before_it_is_loaded(site: Path, wanted: str, fits: bool):
    install(site, "odd-pack", "", {"tools": {"t": "T"}}, requires=["somebody-else>=7", wanted])

    (offer,) = (one for one in offers("nanobot.tools") if one.package == "odd-pack")

    assert (offer.misfit == "") is fits


def test_a_package_that_takes_for_ever_to_load_is_left_out_and_nobody_waits_for_it(tmp_path: Path, site: Path):
    install(site, "slow-pack", f"import time; time.sleep(0.5)\n{TOOL}", {"tools": {"weather": "Weather"}})
    install(site, "sun-pack", TOOL, {"tools": {"weather": "Weather"}})

    found = load_packages(on("slow-pack", "sun-pack").plugins, WorkerThread(), 0.1)
    time.sleep(0.5)

    assert found.troubles() == ["slow-pack: it was skipped: loading it took more than 0.1 s"]
    assert [[tool.name for tool in package.tools] for package in found.packages] == [[], ["weather_of"]]


async def test_a_secret_in_what_is_wrong_with_a_package_is_not_told(
    tmp_path: Path, site: Path, caplog: pytest.LogCaptureFixture
):
    install(site, "odd-pack", "raise RuntimeError('no: plain-0123456789-secret')", {"hooks": {"h": "H"}})
    config = on("odd-pack", **{"odd-pack": {"apiKey": "plain-0123456789-secret"}})

    async with open_bot(tmp_path, config=config) as bot:
        status = await bot.say("/status")

    assert "its hook h was skipped: RuntimeError: no: " in status
    assert "0123456789" not in status + caplog.text


UNRULY = inspect.getsource(unruly_plugin)
WAYS = [
    "raises_odd", "exits", "interrupts", "cancels_itself", "cancels_all", "number_for_text", "nothing_for_text",
    "broken_blocks", "claims_trust", "stops_its_loop", "good",
]  # fmt: skip


async def test_whatever_a_tool_of_a_package_does_or_returns_its_turn_and_the_next_go_on(tmp_path: Path, site: Path):
    code = UNRULY + "".join(f"tool_{way} = tool_of({way})\n" for way in WAYS)
    install(site, "unruly", code, {"tools": {way: f"tool_{way}" for way in WAYS}})
    script = [step for way in WAYS for step in (calls((way, {})), f"after {way}")]

    async with open_bot(tmp_path, *script, config=on("unruly")) as bot:
        said = [await bot.say(f"go {way}") for way in WAYS]
        rows = bot.session("cli:direct").messages

    results = {row["name"]: row for row in rows if row["role"] == "tool"}
    assert said == [f"after {way}" for way in WAYS]
    assert results["good"]["content"] == "good"
    assert "it raised SystemExit: 3" in str(results["exits"]["content"])
    assert "it cancelled itself" in str(results["cancels_all"]["content"])
    assert {row["provenance"] for row in results.values()} == {"tool"}
    assert all(isinstance(row["content"], str) for row in results.values())


@pytest.mark.parametrize("way", ["raises_odd", "exits", "interrupts", "cancels_itself", "cancels_all"])
async def test_whatever_a_hook_of_a_package_raises_the_turn_goes_on(tmp_path: Path, site: Path, way: str):
    install(site, "unruly", f"{UNRULY}made = hook_of({way})\n", {"hooks": {"h": "made"}})

    async with open_bot(tmp_path, "one", "two", config=on("unruly")) as bot:
        assert [await bot.say("go"), await bot.say("go")] == ["one", "two"]
        assert "on_message raised" in await bot.say("/status")


@pytest.mark.parametrize("odd", [SystemExit(3), BaseException("odd")])
async def test_a_provider_that_calls_for_the_end_of_the_process_ends_its_turn_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: BaseException
):
    async def raises(*_: object, **__: object) -> AsyncIterator[Delta]:
        for one in [odd]:
            raise one
        yield Finished(LLMResponse(None))

    async with open_bot(tmp_path, "fine") as bot:
        with monkeypatch.context() as patched:
            patched.setattr(bot.provider, "chat_stream", raises)
            failed = await bot.say("go")

        assert f"the provider raised {type(odd).__name__}" in failed
        assert await asyncio.wait_for(bot.say("go"), 5) == "fine"
