"""Fifty canary secrets, and everything that could let one out: none is shown, kept, or sent to a host not its own."""

import json
import os
import shlex
import subprocess
import sys

import pytest

from nanobot.testing.model_server import Calls, Fail, FakeModels, Fitting, Garbage, Say, Step
from tests.stories.canaries import Planted, planted
from tests.support.home import NANOBOT
from tests.support.toy_gateway import free_port

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the commands are POSIX")

PYTHON = shlex.quote(sys.executable)
COMMANDS = [
    "env",
    "printenv ALLOWED_TOKEN",
    "echo $ALLOWED_TOKEN | rev",
    "echo $ALLOWED_TOKEN | tr a-z A-Z",
    "env | tr a-zA-Z A-Za-z",
    "echo $ALLOWED_TOKEN | base64",
    "echo $ALLOWED_TOKEN | od -An -tx1 | tr -d ' \\n'",
    "echo $ALLOWED_TOKEN >&2; exit 3",
    "env | base64",
    "env | base64 -w 0",
    "set",
    "export -p",
    "cat /proc/self/environ | tr '\\0' '\\n'",
    "cat /proc/$PPID/environ | tr '\\0' '\\n'",
    "cat {config}",
    "base64 {config}",
    "base64 -w 0 {config}",
    "rev {config}",
    "tac {config}",
    "od -An -v -tx1 {config} | tr -d ' \\n' | fold -w 76",
    "cat {keys}/groq",
    "cat {keys}/store; sleep 0",
    "grep -r . {keys}",
    "head -c 100000 {config} | tr -d '\\n '",
    "cat {config} {config} {config} {config} {config} {config} {config} {config}",
    "for i in $(seq 200); do cat {config}; done",
    "{python} -c 'import os; print(dict(os.environ))'",
    "{python} -c 'import json; print(json.load(open(\"{config}\")))'",
    "{python} -c 'raise SystemExit(open(\"{config}\").read())'",
    "{python} -c 'import urllib.parse as p; print(p.quote(open(\"{config}\").read(), safe=str()))'",
    "ps auxeww",
    "cp {config} copy-of-it 2>/dev/null; cat copy-of-it; rm -f copy-of-it",
    "nohup cat {config} 2>&1",
    "strings {config} || cat {config}",
]
CALLS = [
    ("read_file", {"path": "{config}"}),
    ("read_file", {"path": "{keys}/groq"}),
    ("read_file", {"path": "/proc/self/environ"}),
    ("grep", {"pattern": ".", "path": "{keys}"}),
    ("grep", {"pattern": "apiKey", "path": "{data}"}),
    ("glob", {"pattern": "**/*", "path": "{data}"}),
    ("list_dir", {"path": "{data}"}),
    ("write_file", {"path": "{config}", "content": "{}"}),
    ("edit_file", {"path": "{config}", "old_text": "{", "new_text": "{"}),
    ("no_such_tool", {"path": "{config}"}),
    ("exec", "{not json"),
]
WORDS = [
    ("status", "--all"),
    ("status", "--json"),
    ("provider", "list"),
    ("provider", "list", "--json"),
    ("tools", "list", "--json"),
    ("doctor", "--offline", "--json"),
    ("doctor", "--security"),
    ("channels", "status", "--json"),
    ("channels", "login", "telegram"),
    ("sessions", "list", "--json"),
    ("sessions", "show", "cli:direct"),
    ("sessions", "export", "cli:direct"),
    ("sessions", "search", "KEY", "--json"),
    ("replay", "cli:direct", "--json"),
    ("usage", "--json"),
    ("skills", "list"),
    ("cron", "list", "--json"),
    ("pairing", "list", "--json"),
    ("mcp-nonsense",),
]


def filled(here: Planted, text: str) -> str:
    places = {"{config}": here.home.config_path, "{data}": here.home.data, "{keys}": here.home.path / "keys"}
    for name, place in places.items():
        text = text.replace(name, str(place))
    return text.replace("{python}", PYTHON)


def calls_of(here: Planted) -> list[tuple[str, object]]:
    commands: list[tuple[str, object]] = [("exec", {"command": filled(here, command)}) for command in COMMANDS]
    return commands + [
        (name, filled(here, given) if isinstance(given, str) else json.loads(filled(here, json.dumps(given))))
        for name, given in CALLS
    ]


def echoing(body: dict[str, object]) -> Step:
    """A server that tells what it was sent, as some do when they refuse."""
    return Fail(401, message=f"Incorrect API key provided: {KEY[0]}. Headers: Bearer {KEY[0]}", code="invalid_api_key")


KEY: list[str] = []


def nothing_got_out(here: Planted, server: FakeModels, shown: dict[str, bytes]) -> None:
    """No canary in what was shown, on the disk, or in what a model was told (its own key goes in a header)."""
    told = {name: places for name, text in shown.items() if (places := here.canaries.found_in(text))}
    assert told == {}
    assert here.on_disk() == {}
    bodies = [here.canaries.found_in(request.body) for request in server.chats]
    assert [places for places in bodies if places] == []


def said(here: Planted, *words: str) -> bytes:
    done = here.home.run(*words, environ=here.environ)
    return f"{done.out}\n{done.aside}".encode()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_no_tool_lets_a_secret_out(tmp_path, every: int):
    """One turn with all the calls, seen as JSON; and what is kept of it, shown by the other commands."""
    with FakeModels() as server:
        here = planted(tmp_path, server.v1)
        calls = calls_of(here)[::every]
        a_secret = next(value for value, place in here.canaries.made.items() if place == "slack bot")
        steps = [Calls(*calls[at : at + 8]) for at in range(0, len(calls), 8)]
        server.script(*steps, Say(f"Done. It was {a_secret}, I think.", pieces=30, reasoning=f"Was it {a_secret}?"))

        shown = {"agent": said(here, "agent", "--json", "--logs", "-m", f"Do it all; {a_secret} is a word.")}
        told = [json.loads(line) for line in shown["agent"].splitlines() if line.startswith(b"{")]
        shown["deltas"] = "".join(one["text"] for one in told if one["type"].endswith("_delta")).encode()
        shown["show"] = said(here, "sessions", "show", "cli:direct")

        assert shown["deltas"].endswith(b"Was it [key]?Done. It was [key], I think.")
        assert b"[key]" in shown["agent"]
        nothing_got_out(here, server, shown)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_command_lets_a_secret_out(tmp_path):
    with FakeModels(default=Say("Fine.")) as server:
        here = planted(tmp_path, server.v1)
        KEY[:] = [value for value, place in here.canaries.made.items() if place == "key of custom"]
        server.script(Calls(*calls_of(here)[:5]), Say("Done."))
        shown = {"agent": said(here, "agent", "-m", "Do it.")}
        shown |= {" ".join(words): said(here, *words) for words in WORDS}

        server.script(Fitting(echoing))
        shown["bad key"] = said(here, "agent", "-m", "Hello")
        server.script(Fitting(echoing))
        shown["bad key, debug"] = said(here, "agent", "--logs", "--debug", "-m", "Hello")
        server.script(Fitting(echoing))
        shown["probe"] = said(here, "status", "--probe", "--debug")
        server.script(Garbage(f"<html>{KEY[0]}</html>".encode(), status=500), Garbage(KEY[0].encode()))
        shown["garbage"] = said(here, "agent", "-m", "Hello")
        shown["last"] = said(here, "sessions", "show", "cli:direct")

        nothing_got_out(here, server, shown)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_config_error_lets_a_secret_out(tmp_path):
    with FakeModels() as server:
        here = planted(tmp_path, server.v1)
        good = json.loads(here.home.config_path.read_text())
        shown = {}
        for name, path in {
            "a list": ("providers", "openai", "apiKey"),
            "a channel": ("channels", "telegram", "token"),
            "a header": ("providers", "custom", "extraHeaders"),
        }.items():
            bad = json.loads(json.dumps(good))
            holder = bad
            for part in path[:-1]:
                holder = holder[part]
            holder[path[-1]] = [holder[path[-1]]]
            bad["providers"]["mistral"] = bad["providers"]["mistral"]["apiKey"]  # a key in the place of its section
            here.home.config_path.write_text(json.dumps(bad))
            for words in (("status",), ("agent", "-m", "x"), ("doctor", "--json"), ("status", "--debug")):
                shown[f"{name} {words}"] = said(here, *words)
        here.home.config_path.write_text(json.dumps(good)[:-30])
        shown["cut"] = said(here, "status", "--debug")

        nothing_got_out(here, server, shown)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_no_gateway_lets_a_secret_out(tmp_path):
    with FakeModels(default=Say("Fine.")) as server:
        here = planted(tmp_path, server.v1)
        config = json.loads(here.home.config_path.read_text())
        config["channels"]["telegram"] |= {"enabled": True, "apiBase": "http://127.0.0.1:9", "allowFrom": ["1"]}
        config["channels"]["discord"] |= {"enabled": True, "gatewayUrl": "ws://127.0.0.1:9", "allowFrom": ["1"]}
        here.home.config_path.write_text(json.dumps(config))
        own = {
            "HOME": str(here.home.path),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        }
        gateway = subprocess.Popen(
            [*NANOBOT, "gateway", "-v", "--allow-empty", "-p", str(free_port())],
            env={**own, **here.environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            server.script(Calls(*calls_of(here)[:8]), Say("Done."))
            shown = {"asked": said(here, "agent", "-m", "Do it.")}
            shown["status"] = said(here, "gateway", "status", "--json")
            shown["doctor"] = said(here, "doctor", "--offline", "--json")
            shown["logs"] = said(here, "gateway", "logs")
            shown["shell"] = said(here, "status", "--json")
        finally:
            gateway.terminate()
            shown["gateway"] = gateway.communicate(timeout=30)[0]

        assert b"ready" in shown["gateway"]
        nothing_got_out(here, server, shown)
