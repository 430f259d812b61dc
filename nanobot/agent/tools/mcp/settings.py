"""The settings of a server, and what follows from them alone."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit


class Transport(StrEnum):
    STDIO = "stdio"
    SSE = "sse"
    HTTP = "streamableHttp"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    """Absolute path of the working directory of the program; empty: a folder of its own in the state folder."""
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    type: Transport | None = None
    """None: determined by command or URL."""
    tool_timeout_s: float = 30.0
    enabled_tools: frozenset[str] = frozenset({"*"})

    @property
    def transport(self) -> Transport | None:
        """The transport; None if there is no command or URL for it."""
        if self.type is Transport.STDIO or (self.type is None and self.command):
            return Transport.STDIO if self.command else None
        if not self.url:
            return None
        by_path = Transport.SSE if urlsplit(self.url).path.rstrip("/").endswith("/sse") else Transport.HTTP
        return self.type or by_path

    @property
    def location(self) -> str:
        """The command line or URL, for a person to read: without possible secrets."""
        if self.transport is Transport.STDIO:
            return " ".join((self.command, *self.args))
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()

    @property
    def fingerprint(self) -> str:
        """Changes with everything that determines which tools the server has. Reveals no secret."""
        parts = [
            self.command,
            *self.args,
            "\0",
            self.cwd,
            self.url,
            *sorted(self.env),
            *sorted(self.headers),
            str(self.transport),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def offers(self, tool: str, offered_as: str) -> bool:
        """Return whether the config enables this tool, by its own name or the offered one."""
        return not self.enabled_tools.isdisjoint({"*", tool, offered_as})
