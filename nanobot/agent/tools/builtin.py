"""The tools every bot has, one line each. A new one is a module in this package and a line here."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nanobot.agent.tools.base import Tool
from nanobot.agent.tools.execution import ExecPolicy
from nanobot.agent.tools.filesystem import EditFileTool, ListDirTool, ReadFileTool, WriteFileTool
from nanobot.agent.tools.inbox import InboxPolicy, InboxTool
from nanobot.agent.tools.notebook import NotebookEditTool
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.tools.search import GlobTool, GrepTool
from nanobot.agent.tools.shell import ExecTool
from nanobot.agent.tools.web.fetch import BodyReader, WebFetchTool
from nanobot.agent.tools.web.policy import WebPolicy
from nanobot.agent.tools.web.search import WebSearchTool
from nanobot.security.files.paths import PathPolicy

if TYPE_CHECKING:
    from nanobot.security.provenance import ProvenanceStore


@dataclass(frozen=True, slots=True)
class ToolPolicies:
    """What the built-in tools may do. None for a tool that is switched off; `inbox` also without a mailbox."""

    paths: PathPolicy
    exec: ExecPolicy | None = field(default_factory=ExecPolicy)
    inbox: InboxPolicy | None = None
    web: WebPolicy | None = None
    marks: "ProvenanceStore | None" = None
    """Which files contain untrusted content; None for a bot that does not track files."""
    reads_back: bool = False
    """Whether files that tools wrote are read back and compared."""


def _exec(policies: ToolPolicies, registry: ToolRegistry) -> Tool | None:
    if policies.exec is None:
        return None
    return ExecTool(policies.paths, policies.exec, find_tool=registry.get, marks=policies.marks)


def _web_fetch(policies: ToolPolicies) -> Tool | None:
    return WebFetchTool(policies.web, reader=BodyReader(policies.paths)) if policies.web is not None else None


BUILTIN: dict[str, Callable[[ToolPolicies, ToolRegistry], Tool | None]] = {
    "edit_file": lambda policies, _: EditFileTool(policies.paths, policies.marks),
    "exec": _exec,
    "glob": lambda policies, _: GlobTool(policies.paths, policies.marks),
    "grep": lambda policies, _: GrepTool(policies.paths, policies.marks),
    "inbox": lambda policies, _: InboxTool(policies.inbox) if policies.inbox is not None else None,
    "list_dir": lambda policies, _: ListDirTool(policies.paths, policies.marks),
    "notebook_edit": lambda policies, _: NotebookEditTool(policies.paths),
    "read_file": lambda policies, _: ReadFileTool(policies.paths, policies.marks),
    "web_fetch": lambda policies, _: _web_fetch(policies),
    "web_search": lambda policies, _: WebSearchTool(policies.web) if policies.web is not None else None,
    "write_file": lambda policies, _: WriteFileTool(policies.paths),
}


RESERVED_NAMES = frozenset({
    *BUILTIN, "cron", "goal", "image", "mcp_call", "mcp_find", "message", "save_memory", "session_search", "spawn",
    "tell",
})  # fmt: skip
"""Tool names that no plugin may take, even if nanobot's own tool is switched off or not registered yet."""


def build_tools(policies: ToolPolicies) -> ToolRegistry:
    """Return a registry with the built-in tools that these policies allow."""
    registry = ToolRegistry()
    register_builtin(policies, registry)
    return registry


def register_builtin(policies: ToolPolicies, registry: ToolRegistry) -> list[Tool]:
    """Register the tools these policies allow, replacing those of the same names; return them."""
    registry.reads_back = policies.reads_back
    tools = [tool for make in BUILTIN.values() if (tool := make(policies, registry)) is not None]
    for tool in tools:
        registry.register(tool)
    return tools
