"""What every built-in tool promises. A new tool gets these tests by its line in `builtin`, and a call in CALLS."""

import asyncio
import contextlib
import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from nanobot.agent.tools.base import Effect, Tool, ToolContext, ToolResult
from nanobot.agent.tools.builtin import BUILTIN, ToolPolicies, build_tools
from nanobot.agent.tools.inbox import InboxPolicy
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.tools.shell import ExecPolicy
from nanobot.agent.tools.web.policy import SearchPolicy, WebPolicy
from nanobot.bus.events import Address
from nanobot.messages.types import Provenance
from nanobot.security.paths import PathPolicy
from nanobot.utils.clock import FrozenClock
from tests.security.web import Road

CALLS: dict[str, dict[str, Any]] = {
    "edit_file": {"path": "grüße 🌍.md", "old_text": "hello", "new_text": "bye"},
    "exec": {"command": "echo hello"},
    "glob": {"pattern": "*.md"},
    "grep": {"pattern": "hello"},
    "inbox": {"action": "list"},
    "list_dir": {"path": "."},
    "notebook_edit": {"path": "grüße 🌍.ipynb", "cell": "0", "source": "print(2)"},
    "read_file": {"path": "grüße 🌍.md"},
    "web_fetch": {"url": "https://93.184.216.34/grüße"},
    "web_search": {"query": "grüße 🌍"},
    "write_file": {"path": "dossier/grüße 🌍.md", "content": "hello"},
}
"""One call of each tool that succeeds."""

EFFECTS = {
    "edit_file": Effect.ONCE,
    "exec": Effect.ONCE,
    "glob": Effect.READ,
    "grep": Effect.READ,
    "inbox": Effect.READ,
    "list_dir": Effect.READ,
    "notebook_edit": Effect.ONCE,
    "read_file": Effect.READ,
    "web_fetch": Effect.READ,
    "web_search": Effect.READ,
    "write_file": Effect.REPEATABLE,
}


class OneMail:
    """A mailbox with a mail in it."""

    async def find(
        self, *, unread: bool, since: datetime | None, sender: str, subject: str, limit: int
    ) -> dict[str, Any]:
        return {"mails": [{"mail": "1-1", "subject": "Grüße 🌍"}]}

    async def read(self, mail_id: str) -> dict[str, Any]:
        return {"mail": mail_id, "text": "hello"}


every_tool = pytest.mark.parametrize("name", sorted(BUILTIN))


@pytest.fixture
def ctx(tmp_path: Path) -> ToolContext:
    (tmp_path / "grüße 🌍.md").write_text("hello\n", encoding="utf-8")
    (tmp_path / "grüße 🌍.ipynb").write_text('{"cells": [{"cell_type": "code", "source": ["print(1)"]}]}', "utf-8")
    return ToolContext("cli:direct", Address("cli", "direct"), "turn", tmp_path, FrozenClock(datetime(2026, 1, 1)))


@pytest.fixture
def registry(ctx: ToolContext) -> ToolRegistry:
    inbox = InboxPolicy(OneMail, lambda chat: True)
    search = SearchPolicy("searxng", base_url="https://93.184.216.34")
    web = WebPolicy(search=search, make_transport=Road(default=b'{"results": []}').make)
    return build_tools(ToolPolicies(PathPolicy(ctx.workspace), ExecPolicy(timeout_s=2), inbox, web))


def tool_of(registry: ToolRegistry, name: str) -> Tool:
    tool = registry.get(name)
    assert tool is not None
    return tool


@every_tool
def test_it_is_called_what_the_table_calls_it(registry: ToolRegistry, name: str):
    assert tool_of(registry, name).name == name


@every_tool
def test_its_schema_is_a_json_schema_of_an_object(registry: ToolRegistry, name: str):
    schema = tool_of(registry, name).parameters

    Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert set(schema["required"]) <= schema["properties"].keys()
    assert json.loads(json.dumps(schema)) == schema


@every_tool
def test_it_says_what_it_does_and_what_each_argument_is(registry: ToolRegistry, name: str):
    tool = tool_of(registry, name)

    assert 40 <= len(tool.description) <= 400
    assert tool.description.endswith((".", ")"))
    told = [argument["description"] for argument in tool.parameters["properties"].values() if "description" in argument]
    assert all(len(words) >= 8 for words in told)  # a name that says it all stands alone: each request carries them


@every_tool
def test_it_declares_what_a_crash_may_repeat(registry: ToolRegistry, name: str):
    assert tool_of(registry, name).effect is EFFECTS[name]


@every_tool
async def test_a_right_call_succeeds_with_unicode_names(registry: ToolRegistry, ctx: ToolContext, name: str):
    result = await registry.call(name, CALLS[name], ctx)

    assert not result.error, result.content
    assert isinstance(result.provenance, Provenance)


@every_tool
async def test_it_works_outside_of_a_turn(registry: ToolRegistry, name: str):
    assert not (await registry.execute(name, CALLS[name])).startswith("Error")


@every_tool
async def test_a_call_without_arguments_says_what_is_required(registry: ToolRegistry, ctx: ToolContext, name: str):
    result = await registry.call(name, {}, ctx)

    assert result.error
    for required in tool_of(registry, name).parameters["required"]:
        if required in CALLS[name]:
            assert f"{required} is required" in str(result.content)


@every_tool
async def test_a_made_up_argument_is_named(registry: ToolRegistry, ctx: ToolContext, name: str):
    result = await registry.call(name, {**CALLS[name], "made_up": 1}, ctx)

    assert result.error
    assert "made_up is not known" in str(result.content)


junk = (
    st.none()
    | st.booleans()
    | st.integers(-3, 10**20)
    | st.floats()
    | st.text(max_size=9)
    | st.lists(st.text(max_size=3))
)


@pytest.mark.parametrize("name", sorted(BUILTIN.keys() - {"exec"}))  # a shell takes any text for a command
@given(data=st.data())
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=25
)
async def test_whatever_the_arguments_are_there_is_a_result(ctx: ToolContext, registry: ToolRegistry, name: str, data):
    safe = {
        "path": st.sampled_from(["a", "b/c", "..", "", "\0", "grüße 🌍.md", "x" * 300]),
        "pattern": st.text(max_size=5),
    }
    properties = tool_of(registry, name).parameters["properties"]
    given_values = {key: safe.get(key, junk) for key in properties}
    params = data.draw(st.fixed_dictionaries({}, optional=given_values))

    result = await registry.call(name, params, ctx)

    assert isinstance(result, ToolResult)
    assert result.content


@every_tool
async def test_a_cancel_at_any_moment_leaves_nothing_half_done(registry: ToolRegistry, ctx: ToolContext, name: str):
    call = {"exec": {"command": f"sleep 330.{os.getpid()}"}}.get(name, CALLS[name])

    for delay in (0.0, 0.0005, 0.001, 0.002, 0.005, 0.02):
        task = asyncio.create_task(registry.call(name, call, ctx))
        await asyncio.sleep(delay)
        task.cancel()
        (done,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(done, asyncio.CancelledError | ToolResult)

    assert not running(f"330.{os.getpid()}")
    async with asyncio.timeout(5):  # a write that was under way ends in its thread
        while list(ctx.workspace.rglob("*.tmp")):
            await asyncio.sleep(0.01)


def running(argument: str) -> list[str]:
    """Processes with this word in their command, where /proc shows them."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [str(place)] if argument.encode() in place.read_bytes() else []
    return found


def test_commands_mails_and_the_web_are_not_offered_where_they_are_switched_off(ctx: ToolContext):
    registry = build_tools(ToolPolicies(PathPolicy(ctx.workspace), exec=None, inbox=None))

    assert set(registry.names) == BUILTIN.keys() - {"exec", "inbox", "web_fetch", "web_search"}


def test_what_models_are_told_stays_short(registry: ToolRegistry):
    without_mail = build_tools(ToolPolicies(PathPolicy(Path())))

    assert len(json.dumps(without_mail.get_definitions())) < 5_800
    assert len(json.dumps(registry.get_definitions())) < 7_700
