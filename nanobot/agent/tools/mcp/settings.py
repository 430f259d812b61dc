"""What is known of a server before anybody has talked to it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit


class Wire(StrEnum):
    """How a server is reached."""

    STDIO = "stdio"
    SSE = "sse"
    HTTP = "streamableHttp"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """One server, as its owner set it up."""

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    type: Wire | None = None
    """None where command or URL decide."""
    tool_timeout_s: float = 30.0
    enabled_tools: frozenset[str] = frozenset({"*"})

    @property
    def wire(self) -> Wire | None:
        """How it is reached; None where there is neither a command nor a URL for it."""
        if self.type is Wire.STDIO or (self.type is None and self.command):
            return Wire.STDIO if self.command else None
        if not self.url:
            return None
        by_path = Wire.SSE if urlsplit(self.url).path.rstrip("/").endswith("/sse") else Wire.HTTP
        return self.type or by_path

    @property
    def place(self) -> str:
        """Where it is, for a person to read: without what may be secret."""
        if self.wire is Wire.STDIO:
            return " ".join((self.command, *self.args))
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()

    @property
    def fingerprint(self) -> str:
        """Changes with what decides which tools it has. No secret can be read from it."""
        of = [self.command, *self.args, "\0", self.url, *sorted(self.env), *sorted(self.headers), str(self.wire)]
        return hashlib.sha256(json.dumps(of).encode()).hexdigest()[:16]

    def offers(self, tool: str, offered_as: str) -> bool:
        """Whether its owner lets the agent have this tool, under its own name or the one it is offered as."""
        return not self.enabled_tools.isdisjoint({"*", tool, offered_as})
