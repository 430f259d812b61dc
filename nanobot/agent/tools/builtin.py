"""The tools every bot has, one line each. A new tool is a file beside this one and a line here."""

from collections.abc import Callable
from dataclasses import dataclass, field

from nanobot.agent.tools.base import Tool
from nanobot.agent.tools.filesystem import EditFileTool, ListDirTool, ReadFileTool, WriteFileTool
from nanobot.agent.tools.inbox import InboxPolicy, InboxTool
from nanobot.agent.tools.notebook import NotebookEditTool
from nanobot.agent.tools.origins import MarkChanged, NothingRead, WatchReading, WordsOf, nothing_known, nothing_marked
from nanobot.agent.tools.registry import ToolRegistry, Watch
from nanobot.agent.tools.search import GlobTool, GrepTool
from nanobot.agent.tools.shell import ExecPolicy, ExecTool
from nanobot.agent.tools.web.bodies import Bodies
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
    words_of: WordsOf = nothing_known
    """Whose words files hold."""
    mark_changed: MarkChanged = nothing_marked
    """Told of the files that a command changed while they were."""
    watch_reading: WatchReading = NothingRead
    """Watches which files a command reads."""
    watch: Watch | None = None
    """Sees the calls of all tools through."""


def _exec(policies: ToolPolicies, registry: ToolRegistry) -> Tool | None:
    if policies.exec is None:
        return None
    return ExecTool(
        policies.paths,
        policies.exec,
        find_tool=registry.get,
        mark_changed=policies.mark_changed,
        watch_reading=policies.watch_reading,
    )


def _web_fetch(policies: ToolPolicies) -> Tool | None:
    return WebFetchTool(policies.web, reader=Bodies(policies.paths)) if policies.web is not None else None


BUILTIN: dict[str, Callable[[ToolPolicies, ToolRegistry], Tool | None]] = {
    "edit_file": lambda policies, _: EditFileTool(policies.paths, policies.words_of),
    "exec": _exec,
    "glob": lambda policies, _: GlobTool(policies.paths, policies.words_of),
    "grep": lambda policies, _: GrepTool(policies.paths, policies.words_of),
    "inbox": lambda policies, _: InboxTool(policies.inbox) if policies.inbox is not None else None,
    "list_dir": lambda policies, _: ListDirTool(policies.paths, policies.words_of),
    "notebook_edit": lambda policies, _: NotebookEditTool(policies.paths),
    "read_file": lambda policies, _: ReadFileTool(policies.paths, policies.words_of),
    "web_fetch": lambda policies, _: _web_fetch(policies),
    "web_search": lambda policies, _: WebSearchTool(policies.web) if policies.web is not None else None,
    "write_file": lambda policies, _: WriteFileTool(policies.paths),
}


def build_tools(policies: ToolPolicies) -> ToolRegistry:
    """A registry with the built-in tools that these policies allow."""
    registry = ToolRegistry(policies.watch)
    for make in BUILTIN.values():
        tool = make(policies, registry)
        if tool is not None:
            registry.register(tool)
    return registry
