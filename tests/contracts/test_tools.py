"""What every built-in tool promises (`nanobot.testing.tools`, and more). A new one gets these tests by its line in
`builtin`, and a call in CALLS.
"""

from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.tools.base import Effect, Tool
from nanobot.agent.tools.builtin import BUILTIN, ToolPolicies, build_tools
from nanobot.agent.tools.execution import ExecPolicy
from nanobot.agent.tools.inbox import InboxPolicy
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.tools.web.policy import SearchPolicy, WebPolicy
from nanobot.security.files.paths import PathPolicy
from nanobot.testing import Check
from nanobot.testing.tools import tool_checks
from tests.fakes.web import Road
from tests.support.eventually import eventually

CALLS: dict[str, tuple[Effect, dict[str, Any]]] = {
    "edit_file": (Effect.ONCE, {"path": "grüße 🌍.md", "old_text": "hello", "new_text": "bye"}),
    "exec": (Effect.ONCE, {"command": "echo hello"}),
    "glob": (Effect.READ, {"pattern": "*.md"}),
    "grep": (Effect.READ, {"pattern": "hello"}),
    "inbox": (Effect.READ, {"action": "list"}),
    "list_dir": (Effect.READ, {"path": "."}),
    "notebook_edit": (Effect.ONCE, {"path": "grüße 🌍.ipynb", "cell": "0", "source": "print(2)"}),
    "read_file": (Effect.READ, {"path": "grüße 🌍.md"}),
    "web_fetch": (Effect.READ, {"url": "https://93.184.216.34/grüße"}),
    "web_search": (Effect.READ, {"query": "grüße 🌍"}),
    "write_file": (Effect.REPEATABLE, {"path": "dossier/grüße 🌍.md", "content": "hello"}),
}
"""What a crash may repeat, and one call of each tool that succeeds."""


class OneMail:
    """A mailbox with a mail in it."""

    async def find(
        self, *, unread: bool, since: datetime | None, sender: str, subject: str, limit: int
    ) -> dict[str, Any]:
        return {"mails": [{"mail": "1-1", "subject": "Grüße 🌍"}]}

    async def read(self, mail_id: str) -> dict[str, Any]:
        return {"mail": mail_id, "text": "hello"}


def registry_in(workspace: Path) -> ToolRegistry:
    """All tools, in a workspace with a few files."""
    (workspace / "grüße 🌍.md").write_text("hello\n", encoding="utf-8")
    (workspace / "grüße 🌍.ipynb").write_text('{"cells": [{"cell_type": "code", "source": ["print(1)"]}]}', "utf-8")
    inbox = InboxPolicy(OneMail, lambda chat: True)
    search = SearchPolicy("searxng", base_url="https://93.184.216.34")
    web = WebPolicy(search=search, connect=Road(default=b'{"results": []}').connect)
    return build_tools(ToolPolicies(PathPolicy(workspace), ExecPolicy(timeout_s=2), inbox, web))


def built(name: str, workspace: Path) -> Tool:
    return tool_of(registry_in(workspace), name)


def tool_of(registry: ToolRegistry, name: str) -> Tool:
    tool = registry.get(name)
    assert tool is not None
    return tool


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, id=f"{name}-{check}", marks=[pytest.mark.needs_sandbox] * (name == "exec"))
        for name in sorted(BUILTIN)
        for check in tool_checks(partial(built, name), CALLS[name][1], takes_anything=name == "exec")
    ],
)
async def test_a_tool_holds(check: Check, tmp_path: Path):
    await check.run(tmp_path)

    await eventually(lambda: not list(tmp_path.rglob("*.tmp")))  # also after a call that was cancelled


def test_each_has_the_name_of_its_line_says_what_each_argument_is_and_what_a_crash_may_repeat(tmp_path: Path):
    registry = registry_in(tmp_path)
    tools = {name: tool_of(registry, name) for name in BUILTIN}

    assert all(tool.name == name for name, tool in tools.items())
    assert {name: tool.effect for name, tool in tools.items()} == {name: effect for name, (effect, _) in CALLS.items()}
    for tool in tools.values():
        assert all(argument.get("description") for argument in tool.parameters["properties"].values()), tool.name


def test_commands_mails_and_the_web_are_not_offered_where_they_are_switched_off(tmp_path: Path):
    registry = build_tools(ToolPolicies(PathPolicy(tmp_path), exec=None, inbox=None))

    assert set(registry.names) == BUILTIN - {"exec", "inbox", "web_fetch", "web_search"}
