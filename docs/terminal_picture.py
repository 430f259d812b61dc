"""Write docs/terminal.svg: a real chat of `nanobot` in a terminal, with a model that follows a script.

    python docs/terminal_picture.py

Needs tmux; no key and no network.
"""

import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from nanobot.testing.model_server import Calls, FakeModels, Say

COLUMNS, ROWS = 96, 60
TARGET = Path(__file__).resolve().with_name("terminal.svg")
REMOTE_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
BILLS = """# Bills

electricity  84.20  due 2026-12-03
internet     39.90  due 2026-11-28
insurance   212.00  due 2026-12-15
"""
QUESTION = "I have paid the internet bill. Mark it in bills.md and show me what is left."
ANSWER = """The internet bill is marked as paid. **Two bills** are left:

| Bill | Amount | Due |
|---|---:|---|
| electricity | 84.20 | Thursday, 3 December |
| insurance | 212.00 | Tuesday, 15 December |

Shall I remind you on the day before?
"""


def usage(prompt: int, cached: int, completion: int) -> dict[str, object]:
    """What a model with this much in its prompt reports."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


SCRIPT = (
    Calls(("read_file", {"path": "bills.md"}), usage=usage(7842, 7168, 24)),
    Calls(
        (
            "edit_file",
            {
                "path": "bills.md",
                "old_text": "internet     39.90  due 2026-11-28",
                "new_text": "internet     39.90  paid",
            },
        ),
        usage=usage(7931, 7808, 71),
    ),
    Say(ANSWER, usage=usage(8064, 7872, 96)),
)


def chat(home: Path, models: FakeModels) -> str:
    """Type the question into a chat; return the screen with its colours."""
    workspace = home / ".nanobot" / "workspace"
    workspace.mkdir(parents=True)
    (workspace / "bills.md").write_text(BILLS, encoding="utf-8")
    config = {
        "agents": {"defaults": {"provider": "custom", "model": "demo-model"}},
        "providers": {"custom": {"apiBase": models.v1, "apiKey": "none"}},
    }
    (home / ".nanobot" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONUTF8": "1", "COLORTERM": "truecolor"}
    environment["PYTHONPATH"] = str(TARGET.parent.parent)
    tmux = ["tmux", "-L", f"picture-{os.getpid()}"]

    def run(*words: str) -> str:
        return subprocess.run(
            [*tmux, *words], env=environment, cwd=home, capture_output=True, text=True, check=True, encoding="utf-8"
        ).stdout

    def wait_for(text: str) -> None:
        for _ in range(300):
            if text in run("capture-pane", "-p"):
                return
            time.sleep(0.1)
        raise SystemExit(f"{text!r} did not appear:\n{run('capture-pane', '-p')}")

    run("-f", os.devnull, "new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), sys.executable, "-m", "nanobot")
    try:
        wait_for("demo-model")
        time.sleep(2)  # the chat asks the server for the model's window
        run("send-keys", "-l", QUESTION)
        run("send-keys", "Enter")
        wait_for("Shall I remind you")
        time.sleep(1)  # the status line below it
        return run("capture-pane", "-e", "-p")
    finally:
        run("kill-server")


def picture(screen: str) -> str:
    """The screen as SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(screen.strip("\n")))
    svg = console.export_svg(title="nanobot", unique_id="nanobot")
    return REMOTE_FONT.sub("", svg)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, FakeModels(models=("demo-model",), context_length=128_000) as models:
        models.script(*SCRIPT)
        svg = picture(chat(Path(folder), models).replace(folder, "~"))
    TARGET.write_text(svg + "\n", encoding="utf-8")
    print(f"{TARGET.name}: {len(svg)} characters")


if __name__ == "__main__":
    main()
