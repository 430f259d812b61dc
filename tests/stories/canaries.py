"""Fifty secrets planted where people keep them, and a hunt for them in everything that is written or shown.

The hunt knows nothing of how nanobot takes secrets out: it looks for each as it is, backwards, in other cases, in hex
and in base64, with all white space gone.
"""

import json
import random
import re
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.home import Home

_ALPHABET = "abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"


@dataclass
class Canaries:
    """Makes them, one a place, and remembers where each was put."""

    made: dict[str, str] = field(default_factory=dict)
    _dice: random.Random = field(default_factory=lambda: random.Random(50))

    def __call__(self, place: str) -> str:
        value = "".join(self._dice.choices(_ALPHABET, k=26))
        self.made[value] = place
        return value

    def found_in(self, data: bytes) -> list[str]:
        """The places of those that stand in this, in any spelling that anybody can read back."""
        text = re.sub(r"\s", "", data.decode("utf-8", "replace"))
        return [place for value, place in self.made.items() if any(one in text for one in _spelled(value))]


def _spelled(value: str) -> Iterator[str]:
    yield value
    yield value[::-1]
    yield from (value.upper(), value.lower(), value.swapcase())
    yield value.encode().hex()
    for before in range(3):
        yield b64encode(b"x" * before + value.encode() + b"xx").decode()[4:-6]


@dataclass(frozen=True)
class Planted:
    """A home full of them."""

    home: Home
    canaries: Canaries
    environ: dict[str, str]
    kept: frozenset[Path]
    """The files that may hold them: the config, and what it points at."""

    def on_disk(self) -> dict[str, list[str]]:
        """Where on the disk they are that they should not be."""
        found = {}
        for path in sorted(self.home.path.rglob("*")):
            if path.is_file() and path not in self.kept and (places := self.canaries.found_in(path.read_bytes())):
                found[str(path.relative_to(self.home.path))] = places
        return found


def planted(folder: Path, api_base: str, **more: Any) -> Planted:
    """Fifty of them, in config, environment, files and commands."""
    canary, home = Canaries(), Home(folder)
    keys = folder / "keys"
    keys.mkdir()
    (keys / "groq").write_text(canary("file: of groq"))
    (keys / "store").write_text(canary("cmd: of gemini"))
    names = ("anthropic", "openai", "openrouter", "deepseek", "moonshot", "zhipu", "dashscope", "minimax", "mistral")
    others = ("huggingface", "aihubmix", "siliconflow", "volcengine", "nvidia", "mine")
    providers: dict[str, Any] = {name: {"apiKey": canary(f"key of {name}")} for name in names + others}
    providers["custom"] = {
        "apiKey": canary("key of custom"),
        "apiBase": api_base,
        "extraHeaders": {"X-Account-Token": canary("header of custom")},
    }
    providers["ollama"] = {"proxy": f"http://me:{canary('proxy of ollama')}@127.0.0.1:9"}
    providers["groq"] = {"apiKey": f"file:{keys / 'groq'}"}
    providers["gemini"] = {"apiKey": f"cmd:cat {keys / 'store'}"}
    channels = {
        "telegram": {"token": f"123456789:{canary('telegram')}"},
        "discord": {"token": canary("discord")},
        "slack": {"botToken": canary("slack bot"), "appToken": canary("slack app")},
        "whatsapp": {"bridgeToken": canary("whatsapp")},
        "feishu": {"appSecret": canary("feishu"), "encryptKey": canary("feishu key")},
        "dingtalk": {"clientSecret": canary("dingtalk")},
        "qq": {"secret": canary("qq")},
        "email": {"imapPassword": canary("imap"), "smtpPassword": canary("smtp")},
        "matrix": {"accessToken": canary("matrix"), "password": canary("matrix password")},
        "mochat": {"clawToken": canary("mochat")},
        "websocket": {"token": canary("websocket")},
        "irc": {"nickPassword": canary("a plugin's")},
    }
    tools = {
        "exec": {"allowedEnvKeys": ["ALLOWED_TOKEN"]},
        "web": {"search": {"apiKey": canary("search")}, "proxy": f"http://me:{canary('web proxy')}@127.0.0.1:9"},
        "mcpServers": {
            "x": {
                "command": "nowhere",
                "args": ["--api-key", canary("args of an MCP server")],
                "env": {"X_SECRET": canary("env of an MCP server")},
            },
            "y": {"url": "http://127.0.0.1:9", "headers": {"Authorization": f"Bearer {canary('header of MCP')}"}},
        },
    }
    config = {
        "agents": {"defaults": {"provider": "custom", "model": "m"}},
        "providers": providers,
        "channels": channels,
        "api": {"token": canary("api")},
        "tools": tools,
    }
    home.configure(**{**config, **more})
    names_of_variables = (
        "ALLOWED_TOKEN",
        "ACME_API_KEY",
        "GITHUB_TOKEN",
        "DB_PASSWORD",
        "AWS_SECRET_ACCESS_KEY",
        "HF_TOKEN",
    )
    environ = {name: canary(f"${name}") for name in names_of_variables}
    environ["DATABASE_URL"] = f"postgres://me:{canary('$DATABASE_URL')}@127.0.0.1:9/x"
    environ["NANOBOT_PROVIDERS__VLLM__API_KEY"] = canary("a NANOBOT_ variable")
    assert len(canary.made) >= 50, len(canary.made)
    json.loads(home.config_path.read_text())
    kept = {home.config_path, keys / "groq", keys / "store"}
    return Planted(home, canary, environ, frozenset(kept))
