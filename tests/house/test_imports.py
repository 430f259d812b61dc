"""Nothing is imported before it is needed: start-up is the first thing a person waits for."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.house.repo import ROOT

HEAVY = {"litellm", "openai", "mcp", "telegram", "prompt_toolkit"}
NOT_FOR_A_WORD = HEAVY | {"pydantic", "httpx", "loguru", "yaml", "jsonschema", "tiktoken", "rich.markdown"}


def imported_by(home: Path, *arguments: str) -> tuple[str, set[str]]:
    """What a command prints, and the modules it imports. (Python's own report, which an early exit cannot hide.)"""
    kept = {name: value for name, value in os.environ.items() if name in {"PATH", "SYSTEMROOT", "TEMP", "TMP"}}
    environment = kept | {"HOME": str(home), "USERPROFILE": str(home), "PYTHONUTF8": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "nanobot", *arguments],
        cwd=home, env=environment, capture_output=True, text=True, encoding="utf-8", stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2_000:]
    rows = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]
    return done.stdout, set(rows)


class _Model(BaseHTTPRequestHandler):
    """Says "Hello from afar." to whatever it is asked, in OpenAI's streamed form."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        choice = {"index": 0, "delta": {"role": "assistant", "content": "Hello from afar."}, "finish_reason": "stop"}
        chunk = json.dumps({"id": "1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(f"data: {chunk}\n\ndata: [DONE]\n\n".encode())

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def model_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Model)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("arguments", [["--version"], ["--help"]], ids=["version", "help"])
def test_a_word_about_itself_imports_next_to_nothing(tmp_path, arguments):
    said, modules = imported_by(tmp_path, *arguments)

    assert "nanobot" in said
    assert modules & NOT_FOR_A_WORD == set()


def test_a_direct_one_shot_imports_no_sdk(tmp_path, model_url):
    config = {
        "agents": {"defaults": {"provider": "custom", "model": "m"}},
        "providers": {"custom": {"apiKey": "k", "apiBase": model_url}},
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")

    said, modules = imported_by(tmp_path, "agent", "-c", str(tmp_path / "config.json"), "-m", "hi")

    assert "Hello from afar." in said
    assert modules & (HEAVY | {"tiktoken", "loguru", "rich.markdown", "nanobot.session.search.index"}) == set()


def test_an_answer_without_a_model_imports_no_sdk(tmp_path):
    said, modules = imported_by(tmp_path, "agent", "-m", "What is in my workspace?")

    assert "AGENTS.md" in said
    assert modules & HEAVY == set()


GATEWAY = """
import asyncio, sys
from pathlib import Path
from nanobot.config.loader import load_config
from nanobot.gateway.service import Options, open_gateway

async def main():
    options = Options(port=0, allow_empty=True)
    async with open_gateway(load_config(None), data_dir=Path(sys.argv[1]), options=options) as gateway:
        print({"uvicorn", "starlette", "h11"} & sys.modules.keys() or "nothing")
        while not {"uvicorn", "nanobot.webui.app", "nanobot.api.app"} <= sys.modules.keys():
            await asyncio.sleep(0.05)
        print("loaded")

asyncio.run(main())
"""


def test_a_gateway_imports_its_http_server_once_it_is_ready(tmp_path):
    environment = {**os.environ, "HOME": str(tmp_path), "USERPROFILE": str(tmp_path), "no_proxy": "*"}
    done = subprocess.run(
        [sys.executable, "-c", GATEWAY, str(tmp_path / "home")], cwd=ROOT, env=environment, capture_output=True,
        text=True,
    )  # fmt: skip

    assert done.stdout.splitlines() == ["nothing", "loaded"], done.stderr[-2_000:]
