"""The checkout that the house tests look at."""

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def tracked_files() -> tuple[Path, ...]:
    """Every file that is, or with the next commit will be, in the repository."""
    git = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        names = subprocess.run(git, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
        return tuple(path for name in sorted(set(names)) if name and (path := ROOT / name).is_file())
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive: what it holds, less what tools leave behind
        hidden = {".git", ".venv", ".mypy_cache", ".ruff_cache", ".hypothesis", "__pycache__", ".import_linter_cache"}
        every = (path for path in ROOT.rglob("*") if path.is_file())
        return tuple(sorted(path for path in every if not hidden.intersection(path.relative_to(ROOT).parts)))


def text_of(path: Path) -> str:
    """The text of a tracked file; empty where it is none."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def documents() -> tuple[Path, ...]:
    """Every page that people read."""
    return tuple(path for path in tracked_files() if path.suffix == ".md" and "tests" not in path.parts)
