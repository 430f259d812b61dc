"""Every way out of the house is known: who opens connections of their own, or brings a library that does, stands here.

What the agent causes goes through `net/fetch` (or `net/mcp_transport`), what we ask of models through `net/pools`. A
new line in these tables is a decision: can words of a stranger choose where that connection goes?
"""

import ast
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest

from tests.house.repo import ROOT, text_of, tracked_files

NOBODY: frozenset[str] = frozenset()
LIBRARIES: dict[str, AbstractSet[str]] = {
    "httpx": {"net/http", "providers/litellm_provider", "channels/telegram/bot",
              "channels/rest", "sdk/remote"},
    "httpx2": {"net/mcp_transport", "agent/tools/mcp/server"},
    "aiohttp": {"channels/slack", "channels/discord", "channels/matrix/client"},
    "nio": {"channels/matrix"},
    "slack_sdk": {"channels/slack"},
    "discord": {"channels/discord"},
    "telegram": {"channels/telegram"},
    "websockets": {"channels/websocket", "channels/sockets", "channels/dingtalk", "channels/feishu",
                   "channels/qq", "channels/wecom", "channels/whatsapp/bridge"},
    "socketio": {"channels/mochat"},
    "aiosmtplib": {"channels/email"},
    "imap_tools": {"channels/email"},
    "imaplib": {"channels/email"},  # imap_tools names its errors and commands
    "litellm": {"providers/litellm_provider"},
    "mcp": {"agent/tools/mcp"},
    "anyio": {"agent/tools/mcp", "sync"},  # what mcp's streams are made of; an event loop in a thread
    "socket": {"net/egress", "net/http_server", "gateway/process", "gateway/control",
               "channels/email/mailbox",  # ends a connection
               "security/sandbox/landlock"},  # which forbids kinds of them by their numbers
    "urllib.request": {"net/http"},  # reads what the environment says of proxies
    **dict.fromkeys(["requests", "urllib3", "http.client", "ftplib", "smtplib", "poplib", "telnetlib",
                     "xmlrpc.client", "primp", "ddgs", "curl_cffi", "pycurl", "trio", "httpcore"], NOBODY),
}  # fmt: skip
"""Who imports what can connect: a file, or a folder with all that is in it."""

CALLS: dict[str, AbstractSet[str]] = {
    "open_connection": {"net/connection", "net/gateway_socket", "providers/local_servers"},
    "open_unix_connection": {"net/gateway_socket"},
    **dict.fromkeys(
        ["create_connection", "create_unix_connection", "create_datagram_endpoint", "sock_connect"], NOBODY
    ),
}
"""Who connects with what asyncio has."""

HOUSE = [path for path in tracked_files() if path.suffix == ".py" and path.is_relative_to(ROOT / "nanobot")]


def imported(tree: ast.AST) -> Iterator[str]:
    """Every module it imports when it runs: what only types need connects to nothing."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr) or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        yield from imported(node)


def called(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):  # also one that is handed on and called elsewhere
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)


def strangers(path: Path, source: str) -> list[str]:
    """The ways out of this file that nobody knows of."""
    if not any(all(part in source for part in name.split(".")) for name in (*LIBRARIES, *CALLS)):
        return []  # which spares most files the look at their trees
    name = path.relative_to(ROOT / "nanobot").with_suffix("").as_posix()
    tree = ast.parse(source)
    used = {
        **{f"imports {library}": may for module in imported(tree) for library, may in LIBRARIES.items()
           if f"{module}.".startswith(f"{library}.")},
        **{f"calls {call}": CALLS[call] for call in called(tree) if call in CALLS},
    }  # fmt: skip
    return [f"{name} {what}" for what, may in used.items() if not any(f"{name}/".startswith(f"{one}/") for one in may)]


def test_nobody_opens_a_connection_that_is_not_known():
    assert [found for path in HOUSE for found in strangers(path, text_of(path))] == []


@pytest.mark.parametrize(
    "source",
    [
        "import httpx\nhttpx.get('x')",
        "from httpx import AsyncClient",
        "def f():\n    import urllib.request",
        "from urllib import request",
        "import socket as s",
        "from http.client import HTTPSConnection",
        "import asyncio\nasyncio.open_connection('x', 1)",
        "loop.create_connection(f, 'x', 1)",
        "connect = asyncio.open_connection",
        "from asyncio import open_connection as connect",
    ],
)
def test_a_new_way_out_is_found(source):
    assert strangers(ROOT / "nanobot" / "agent" / "tools" / "new.py", source)


def test_the_tables_name_nobody_who_is_gone():
    there = {path.relative_to(ROOT / "nanobot").with_suffix("").as_posix() for path in HOUSE}
    named = {one for may in (*LIBRARIES.values(), *CALLS.values()) for one in may}

    assert [one for one in named if not any(f"{path}/".startswith(f"{one}/") for path in there)] == []
