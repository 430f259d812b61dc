"""Rows of a ledger: made for a test, or read from a home."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from nanobot.usage.types import LedgerRow


def row(when: str = "2026-11-22T12:00:00.000+00:00", **other: Any) -> LedgerRow:
    usual: dict[str, Any] = {
        "when": when,
        "cause": "turn",
        "session": "cli:direct",
        "turn": "t1",
        "provider": "openai",
        "model": "gpt-4o",
        "outcome": "ok",
        "error": None,
        "prompt_tokens": 100,
        "cached_tokens": 0,
        "cache_written_tokens": 0,
        "completion_tokens": 10,
        "reasoning_tokens": 0,
        "usd": 0.5,
        "ms": 800,
        "estimated": False,
        "process": "another",
    }
    return cast("LedgerRow", usual | other)


def rows_of(home: Path) -> list[Mapping[str, Any]]:
    """The rows of the ledger that lies in the home's `.nanobot`, oldest first."""
    files = sorted((home / ".nanobot" / "state" / "usage").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
