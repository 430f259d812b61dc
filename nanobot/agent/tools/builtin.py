"""The tools every bot has. A new one is a module in this package, and is registered here."""

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
from nanobot.agent.tools.web.fetch import WebFetchTool
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


_FILE_TOOLS = (EditFileTool, GlobTool, GrepTool, ListDirTool, NotebookEditTool, ReadFileTool, WriteFileTool)
BUILTIN = frozenset(tool.name for tool in (*_FILE_TOOLS, ExecTool, InboxTool, WebFetchTool, WebSearchTool))
"""The names of all of them."""
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
    paths, marks = policies.paths, policies.marks
    tools: list[Tool] = [file_tool(paths, marks) for file_tool in _FILE_TOOLS]
    if policies.exec is not None:
        tools.append(ExecTool(paths, policies.exec, find_tool=registry.get, marks=marks))
    if policies.inbox is not None:
        tools.append(InboxTool(policies.inbox))
    if policies.web is not None:
        tools += [WebFetchTool(policies.web, paths), WebSearchTool(policies.web)]
    for tool in tools:
        registry.register(tool)
    return tools
