"""Subagents: tasks that run beside the conversation, each in a turn of its own, each reported once.

`SubagentManager` starts and supervises them; `tasks` says what they were asked to do, and in which role; `team` passes
messages between those of one goal.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanobot.agent.subagent.manager import SubagentManager as SubagentManager


def __getattr__(name: str) -> Any:
    """Load the manager when it is asked for: most turns have no subagent."""
    if name == "SubagentManager":
        from nanobot.agent.subagent.manager import SubagentManager

        return SubagentManager
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
