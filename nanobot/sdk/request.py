"""What a run is asked for: its message, and what it does differently from the bot's other runs."""

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from nanobot.agent.events import TurnEvent
from nanobot.agent.hooks import Hook
from nanobot.sdk.result import ApprovalRequest

if TYPE_CHECKING:
    from nanobot.agent.tools.base import Tool
    from nanobot.sdk.output import OutputFormat

DEFAULT_SESSION = "sdk:default"

Approval = bool | Literal["always"]
Approve = Callable[[ApprovalRequest], Approval | Awaitable[Approval]]
Watcher = Callable[[TurnEvent], object]
"""Sees each event of a run. What it returns is awaited if it can be, and dropped."""


class RunOptions(TypedDict, total=False):
    """The options of `run` and `stream`."""

    session: str
    """The conversation. Runs of one session take turns."""
    media: Sequence[str | Path]
    """Files that come with the message."""
    tools: "Sequence[Tool | Callable[..., Any]]"
    """More tools: functions, or objects of the class Tool."""
    hooks: Sequence[Hook | Watcher]
    """More hooks: objects of the class Hook, or functions that see the events."""
    instructions: str
    """Added to the system prompt."""
    model: str | None
    """A model or a preset of the config."""
    approve: Approve | None
    """Decides about calls that need the owner's approval. Without it they are refused."""
    attended: bool
    """Whether the caller answers each ApprovalAsked with `Nanobot.answer`."""
    timeout: float | None
    """Seconds after which the run is stopped; its result says so."""
    budget_usd: float | None
    """What the model calls may cost. Needs a model with a known price."""
    ephemeral: bool
    """Whether nothing is kept of it but its cost and its trace."""
    session_key: str
    """The original's name for `session`."""
    channel: str
    chat_id: str
    sender_id: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A message with its options, checked."""

    message: str
    session: str = DEFAULT_SESSION
    media: Sequence[str | Path] = ()
    tools: "Sequence[Tool | Callable[..., Any]]" = ()
    hooks: Sequence[Hook] = ()
    watchers: Sequence[Watcher] = ()
    instructions: str = ""
    model: str | None = None
    approve: Approve | None = None
    attended: bool = False
    timeout: float | None = None
    budget_usd: float | None = None
    ephemeral: bool = False
    output: "OutputFormat | None" = None
    channel: str = "sdk"
    chat_id: str = "direct"
    sender_id: str = "owner"
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, message: str, output: object, options: RunOptions) -> "RunRequest":
        """Check the options. Raises TypeError for an unknown one, and for an `output` that has no schema.

        Raises FileNotFoundError if a file of `media` does not exist.
        """
        fields: dict[str, Any] = {**options}
        if "session_key" in fields:
            fields["session"] = fields.pop("session_key")
        if fields.get("ephemeral"):
            fields["session"] = f"sdk:ephemeral-{secrets.token_hex(8)}"
        if output is not None:
            from nanobot.sdk.output import OutputFormat  # brings pydantic

            fields["output"] = OutputFormat(output)
        fields["hooks"], fields["watchers"] = split_hooks(fields.get("hooks", ()))
        request = cls(message=message, **fields)
        if (missing := next((path for path in request.paths if not Path(path).is_file()), None)) is not None:
            raise FileNotFoundError(f"There is no file {missing}, which media= names.")
        return request

    @property
    def is_attended(self) -> bool:
        """Whether somebody answers approval questions."""
        return self.attended or self.approve is not None

    @property
    def schema(self) -> dict[str, Any] | None:
        """The JSON schema of the answer; None for text."""
        return self.output.schema if self.output is not None else None

    @property
    def paths(self) -> list[str]:
        """The absolute paths of the files. Relative ones start in the current folder."""
        return [str(Path(path).expanduser().absolute()) for path in self.media]


def split_hooks(hooks: Sequence[Hook | Watcher]) -> tuple[list[Hook], list[Watcher]]:
    """Return the objects and the functions among hooks. Raises TypeError for what is neither."""
    turn_hooks = [hook for hook in hooks if isinstance(hook, Hook)]
    watchers = [hook for hook in hooks if not isinstance(hook, Hook)]
    for watcher in watchers:
        if not callable(watcher):
            raise TypeError(f"{watcher!r} is no hook: pass an object of a class that derives from Hook, or a function.")
    return turn_hooks, watchers
