"""How long the first answer takes, and what it weighs."""

import json
import statistics
import sys
from pathlib import Path

import pytest

from nanobot.testing.model_server import FakeModels, Say
from tests.bench.measure import Run, Table, clean_environ, median, nanobot, run_once, runs

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

POST = """
import httpx
reply = httpx.post("{url}/chat/completions", json={{"model": "m", "messages": [{{"role": "user", "content": "hi"}}]}})
print(reply.json()["choices"][0]["message"]["content"])
"""


def test_help_and_status(tmp_path: Path):
    environ = clean_environ(tmp_path)
    bare = median(runs([sys.executable, "-c", "pass"], environ, tmp_path), lambda run: run.wall_s)
    libraries = median(
        runs([sys.executable, "-c", "import typer, pydantic_settings"], environ, tmp_path), lambda run: run.wall_s
    )
    table = Table("Commands that ask no model (whole process, median of 7)")
    table.row("python -c pass", bare, "s")
    table.row("import typer, pydantic_settings", libraries, "s", bare, "python")

    for arguments in (["--version"], ["--help"], ["status"], ["sessions", "list"]):
        taken = median(runs(nanobot(*arguments), environ, tmp_path), lambda run: run.wall_s)
        floor, of, aim = (bare, "python", "6") if arguments[0].startswith("-") else (libraries, "its libraries", "1.5")
        table.row(f"nanobot {' '.join(arguments)}", taken, "s", floor, of, aim)

    table.show()


def one_shots(environ: dict[str, str], cwd: Path, server: FakeModels, times: int = 7) -> list[tuple[Run, float, float]]:
    """Each run with the seconds from start to the request and from the answer to the exit."""
    command = nanobot("agent", "-m", "hi")
    run_once(command, environ, cwd)
    taken = []
    for _ in range(times):
        before = len(server.chats)
        run = run_once(command, environ, cwd)
        request = server.chats[before]
        taken.append((run, request.arrived - run.started, run.ended - request.answered))
    return taken


def test_one_shot(tmp_path: Path):
    with FakeModels(default=Say("hello")) as server:
        environ = clean_environ(tmp_path, NANOBOT_PROVIDERS__CUSTOM__API_BASE=server.v1)
        environ |= {"NANOBOT_AGENTS__DEFAULTS__PROVIDER": "custom", "NANOBOT_AGENTS__DEFAULTS__MODEL": "m"}
        posts = runs([sys.executable, "-c", POST.format(url=server.v1)], environ, tmp_path)
        direct = one_shots(environ, tmp_path, server)
        post = median(posts, lambda run: run.wall_s)
        first_prompt = next(chat for chat in server.chats if chat.json.get("tools"))

        litellm = environ | {"NANOBOT_PROVIDERS__CUSTOM__BACKEND": "litellm"}
        heavy = one_shots(litellm, tmp_path, server, times=3)

    table = Table("One answer and out: nanobot agent -m hi (median of 7)")
    table.row("one httpx POST, whole process", post, "s")
    table.row("whole, direct", statistics.median(run.wall_s for run, _, _ in direct), "s", post, "POST", "0.4 s")
    table.row("start to first request", statistics.median(sent for _, sent, _ in direct), "s", post, "POST", "2.2")
    table.row("last answer to exit", statistics.median(out for _, _, out in direct), "s", aim="0.03 s")
    table.row("CPU", statistics.median(run.cpu_s for run, _, _ in direct), "s")
    floor_mb = median(posts, lambda run: run.peak_mb)
    table.row("peak memory", max(run.peak_mb for run, _, _ in direct), "MB", floor_mb, "POST", "60 MB")
    table.row(
        "whole, through LiteLLM (median of 3)", statistics.median(r.wall_s for r, _, _ in heavy), "s", aim="2.8 s"
    )
    table.row("last answer to exit, through LiteLLM", statistics.median(out for _, _, out in heavy), "s")
    body = first_prompt.json
    table.row(f"first prompt ({len(body['tools'])} tools)", len(first_prompt.body) / 1000, "kB", aim="14 kB")
    table.row("  its system prompt", len(json.dumps(body["messages"][0])) / 1000, "kB")
    table.row("  its tools", len(json.dumps(body["tools"])) / 1000, "kB")
    table.show()
