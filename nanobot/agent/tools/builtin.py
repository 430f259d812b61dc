"""The tools every bot has, one line each. A new tool is a file beside this one and a line here."""

from collections.abc import Callable
from dataclasses import dataclass, field

from nanobot.agent.tools.base import Tool
from nanobot.agent.tools.filesystem import EditFileTool, ListDirTool, ReadFileTool, WriteFileTool
from nanobot.agent.tools.inbox import InboxPolicy, InboxTool
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.tools.search import GlobTool, GrepTool
from nanobot.agent.tools.shell import ExecPolicy, ExecTool
from nanobot.agent.tools.web.fetch import WebFetchTool
from nanobot.agent.tools.web.policy import WebPolicy
from nanobot.agent.tools.web.search import WebSearchTool
from nanobot.security.paths import PathPolicy


@dataclass(frozen=True, slots=True)
class ToolPolicies:
    """What the built-in tools may do. None where a tool is switched off, `inbox` also without a mailbox."""

    paths: PathPolicy
    exec: ExecPolicy | None = field(default_factory=ExecPolicy)
    inbox: InboxPolicy | None = None
    web: WebPolicy | None = None


BUILTIN: dict[str, Callable[[ToolPolicies], Tool | None]] = {
    "edit_file": lambda policies: EditFileTool(policies.paths),
    "exec": lambda policies: ExecTool(policies.paths, policies.exec) if policies.exec is not None else None,
    "glob": lambda policies: GlobTool(policies.paths),
    "grep": lambda policies: GrepTool(policies.paths),
    "inbox": lambda policies: InboxTool(policies.inbox) if policies.inbox is not None else None,
    "list_dir": lambda policies: ListDirTool(policies.paths),
    "read_file": lambda policies: ReadFileTool(policies.paths),
    "web_fetch": lambda policies: WebFetchTool(policies.web) if policies.web is not None else None,
    "web_search": lambda policies: WebSearchTool(policies.web) if policies.web is not None else None,
    "write_file": lambda policies: WriteFileTool(policies.paths),
}


def build_tools(policies: ToolPolicies) -> ToolRegistry:
    """A registry with the built-in tools that these policies allow."""
    registry = ToolRegistry()
    for make in BUILTIN.values():
        tool = make(policies)
        if tool is not None:
            registry.register(tool)
    return registry
