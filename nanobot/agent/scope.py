"""Scope: whose memory a turn may be told of. What one person said in private is nobody else's to read.

The owner's scope is the memory of the workspace. Every chat in which others write or read has a scope of its own: what
is remembered there is told there only. What the owner shared is told everywhere.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from nanobot.security.paths import Apart, PathPolicy
from nanobot.session.stems import other_stem_of


@dataclass(frozen=True, slots=True)
class Scope:
    """The owner alone, or one chat by its `channel:chat_id`."""

    chat: str = ""

    @property
    def is_owners(self) -> bool:
        """Whether nobody but the owner reads what is said here."""
        return not self.chat

    @property
    def folder(self) -> str:
        """Where below the memory folder its files are, no two scopes in one; the owner's are in the folder itself."""
        return f"chats/{other_stem_of(self.chat)}" if self.chat else ""

    @property
    def notes(self) -> str:
        """Where in the workspace the notes of its goals are, a folder a goal: of a chat, below a folder of its own."""
        return "/".join(filter(None, [GOAL_NOTES, self.folder]))


GOAL_NOTES = "goals"
"""In the workspace: what subagents that work for goals write down for each other."""
SHARED = "SHARED.md"
"""In the memory folder: what the owner shared with every chat."""
_OF_THE_OWNER = ("sessions", "cron", "history", "logs")
"""In the data folder: conversations and jobs of old, what was typed at the terminal, what the gateway noted of all."""
OWNERS = Scope()
"""The terminal, and where nobody but an owner reads."""


@lru_cache(maxsize=64)
def apart(paths: PathPolicy, scope: Scope) -> PathPolicy:
    """These policies as they are for a scope: where others read along, without what was told in private."""
    if scope.is_owners:
        return paths
    workspace, data, memory = paths.workspace, paths.data_folder, paths.workspace / "memory"
    closed = [memory, workspace / GOAL_NOTES, workspace / "USER.md", workspace / "sessions", workspace / "cron"]
    closed += [data / name for name in _OF_THE_OWNER] if data is not None else []
    told = Apart(
        closed=tuple(closed),
        open=(memory / scope.folder, memory / SHARED, workspace / scope.notes),
        unlisted=(workspace / ".nanobot", *([data / "media"] if data is not None else [])),
    )
    return replace(paths, apart=told)
