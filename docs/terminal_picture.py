"""Makes docs/terminal.svg from a real run: `nanobot agent` in a terminal of its own, under an empty home.

    python docs/terminal_picture.py

No model, no key and no network: the offline stand-in answers. POSIX only, for a pseudo-terminal is needed.
"""

import io
import os
import re
import sys
import tempfile
from pathlib import Path

import pexpect
from rich.console import Console
from rich.text import Text

COLUMNS = 100
QUESTION = "What is in my workspace?"
TARGET = Path(__file__).resolve().with_name("terminal.svg")
_NOT_COLOUR = re.compile(r"\x1b(?:\[[0-9;?>=]*[A-HJ-ln-z]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[=>()][A-Z0-9]?)")

_FONT_FROM_AFAR = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def run(home: Path) -> str:
    """What the terminal receives."""
    environment = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "COLUMNS": str(COLUMNS),
        "PYTHONPATH": str(TARGET.parent.parent),
        "PYTHONUTF8": "1",
    }
    command = ["-m", "nanobot", "agent", "-m", QUESTION]
    child = pexpect.spawn(
        sys.executable, command, cwd=str(home), env=environment, dimensions=(40, COLUMNS), encoding="utf-8", timeout=60
    )
    child.expect(pexpect.EOF)
    child.close()
    if child.exitstatus != 0:
        raise SystemExit(f"the run failed ({child.exitstatus}):\n{child.before}")
    return str(child.before)


def last_screen(output: str, home: Path) -> str:
    """The output as it stands at the end: lines that were drawn over are gone, colours and words are kept."""
    lines: list[str] = [""]
    for piece in re.split(r"(\r\n|\n|\r|\x1b\[\d*[AK]|\x1b\[[02]?J)", output):
        if piece in ("\r\n", "\n"):
            lines.append("")
        elif piece == "\r":
            lines[-1] += "\r"
        elif match := re.fullmatch(r"\x1b\[(\d*)A", piece):
            del lines[max(1, len(lines) - int(match[1] or 1)) :]
            lines[-1] = ""
        elif re.fullmatch(r"\x1b\[2?K", piece):
            lines[-1] = ""
        elif piece:
            lines[-1] = lines[-1].rpartition("\r")[2] + piece if lines[-1].endswith("\r") else lines[-1] + piece
    text = _NOT_COLOUR.sub("", "\n".join(line.replace("\r", "") for line in lines))
    for place in {str(home), os.path.realpath(home)}:
        text = text.replace(place, "~")
    return text.strip("\n")


def picture(screen: str) -> str:
    """The screen as SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.assemble(("$ ", "bold green"), f'nanobot agent -m "{QUESTION}"'))
    console.print(Text.from_ansi(screen), "\n")
    svg = console.export_svg(title="nanobot", unique_id="nanobot")
    return _FONT_FROM_AFAR.sub("", svg)  # a picture asks nobody's server for anything


def main() -> None:
    """Run, draw, write."""
    with tempfile.TemporaryDirectory() as folder:
        svg = picture(last_screen(run(Path(folder)), Path(folder)))
    TARGET.write_text(svg + "\n", encoding="utf-8")
    print(f"{TARGET.name}: {len(svg)} characters")


if __name__ == "__main__":
    main()
