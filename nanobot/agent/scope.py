"""Scope: which memory a turn may read. Private memory is visible only in the owner's scope.

The owner's scope is the memory of the workspace. Every chat with other people has a scope of its own: what is
remembered there stays there. What the owner shared (SHARED.md) is visible in every scope.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from nanobot.security.files.paths import PathPolicy, PrivatePaths
from nanobot.session.file_format import hashed_stem


@dataclass(frozen=True, slots=True)
class Scope:
    """The owner's scope, or that of one chat, given as `channel:chat_id`."""

    chat: str = ""

    @property
    def is_owners(self) -> bool:
        """Whether only the owner reads this conversation."""
        return not self.chat

    @property
    def folder(self) -> str:
        """Folder of this scope relative to the memory folder, unique per chat; empty for the owner."""
        return f"chats/{hashed_stem(self.chat)}" if self.chat else ""

    @property
    def notes(self) -> str:
        """Folder of this scope's goal notes, relative to the workspace; each goal has a subfolder."""
        return "/".join(filter(None, [GOAL_NOTES, self.folder]))


async def owners_scope(message: object) -> Scope:
    """The scope of a message where every turn is the owner's."""
    return OWNERS


GOAL_NOTES = "goals"
"""Folder in the workspace with the notes that subagents of a goal write for each other."""
SHARED = "SHARED.md"
"""File in the memory folder with what the owner shared with every chat."""
_OF_THE_OWNER = ("sessions", "cron", "history", "logs")
"""Folders in the data folder that only the owner's scope may read."""
OWNERS = Scope()


@lru_cache(maxsize=64)
def restrict_paths(paths: PathPolicy, scope: Scope) -> PathPolicy:
    """Restrict file access to a scope: outside the owner's scope, private files are denied."""
    if scope.is_owners:
        return paths
    workspace, data, memory = paths.workspace, paths.data_folder, paths.workspace / "memory"
    closed = [memory, workspace / GOAL_NOTES, workspace / "USER.md", workspace / "sessions", workspace / "cron"]
    closed += [data / name for name in _OF_THE_OWNER] if data is not None else []
    private_paths = PrivatePaths(
        closed=tuple(closed),
        open=(memory / scope.folder, memory / SHARED, workspace / scope.notes),
        unlisted=(workspace / ".nanobot", *([data / "media"] if data is not None else [])),
    )
    return replace(paths, private=private_paths)
