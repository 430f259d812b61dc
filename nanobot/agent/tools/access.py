"""What a call accesses beyond chat and workspace, so that a policy may ask the owner before it runs.

A tool declares its accesses before it runs. The rules that were granted come back in `ToolContext.granted`, and the
tool does nothing the sandbox or path policy forbids without such a grant.
"""

from dataclasses import dataclass
from enum import StrEnum


class AccessKind(StrEnum):
    COMMAND = "command"
    """A shell command. The target is the command as written."""
    FOLDER = "folder"
    """Writing in a folder outside of the workspace. The target is its real path."""
    SECRETS = "secrets"
    """nanobot's own state, or a place where keys are kept. The target is the file or folder."""
    DEVICE = "device"
    """A device, for a command. The target is its path."""
    SERVICE = "service"
    """A Unix socket of this host, for a command. The target is its path."""
    NETWORK = "network"
    """The network, for a command that has none by config. The target is the command."""
    RECIPIENT = "recipient"
    """A chat other than the turn's own. The target is channel:chat."""
    HOST = "host"
    """A request that carries data to a host. The target is the host name, with a non-default port."""
    JOB = "job"
    """A job that is created or changed and acts later. The target is what it is to do."""
    MEMORY = "memory"
    """What every later prompt contains: memory and bootstrap files. The target is the file."""
    SKILL = "skill"
    """Instructions and tools of later turns. The target is the file."""
    AUTORUN = "autorun"
    """What programs of this host run unasked: hooks, editor tasks, build files, and existing programs. The target is
    the file."""
    TOOL = "tool"
    """A tool that does not declare its accesses. The target is its name."""


@dataclass(frozen=True, slots=True)
class Access:
    """One thing a call accesses.

    `needs_approval`: the sandbox does not give it by itself, so the owner is asked in any case. Other accesses are
    asked about only while untrusted content is in play. `detail` is for the person who is asked. `is_plain_url`:
    `detail` is a URL that carries little data; asked about only if the model may have composed it for a third party.
    """

    kind: AccessKind
    target: str
    needs_approval: bool = False
    detail: str = ""
    is_plain_url: bool = False

    @property
    def rule(self) -> str:
        """What a grant allows: `kind:target`."""
        return f"{self.kind}:{self.target}"
