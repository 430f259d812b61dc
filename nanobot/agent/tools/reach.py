"""What a call reaches for beyond talk and the workspace, so that a hook may ask the owner before it runs.

A tool tells its reaches before it runs; who admits the call hands the rules it grants back in `ToolContext.granted`,
and the tool does nothing that was not granted where its walls ask for it.
"""

from dataclasses import dataclass
from enum import StrEnum


class ReachKind(StrEnum):
    """What is reached for."""

    COMMAND = "command"
    """A shell command. The target is the command as it was written."""
    FOLDER = "folder"
    """Writing in a folder that is not the workspace's. The target is where it really leads."""
    SECRETS = "secrets"
    """Our own state, or a place where keys are kept. The target is the file or folder."""
    DEVICE = "device"
    """A device for a command. The target is its path."""
    SERVICE = "service"
    """A socket of this machine for a command. The target is its path."""
    NETWORK = "network"
    """The network for a command that has none by the config. The target is the command."""
    RECIPIENT = "recipient"
    """A chat that the turn does not come from. The target is channel:chat."""
    HOST = "host"
    """A request that carries data to a host. The target is its name, with a port that is not the usual one."""
    JOB = "job"
    """A job made or changed, which acts later. The target is what it is to do."""
    MEMORY = "memory"
    """What is read into every later prompt: memory and the bootstrap files. The target is the file."""
    SKILL = "skill"
    """Instructions and tools of later turns. The target is the file."""
    TOOL = "tool"
    """A tool that says nothing of its reaches. The target is its name."""


@dataclass(frozen=True, slots=True)
class Reach:
    """One thing a call reaches for.

    `beyond`: the walls do not give it by themselves, so the owner is asked whoever's words the turn answers. The others
    are asked about when words from outside have entered the turn. `detail` is for the person who is asked. `plain`: an
    address, in `detail`, that tells its host little: asked about only where the model may have made it up for somebody.
    """

    kind: ReachKind
    target: str
    beyond: bool = False
    detail: str = ""
    plain: bool = False

    @property
    def rule(self) -> str:
        """What a yes is given to, and what "always" is remembered by."""
        return f"{self.kind}:{self.target}"
