"""Rows and files of sessions, as tests write and read them."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nanobot.messages.types import ChatMessage
from nanobot.session.manager import Session, SessionManager

KEY = "cli:direct"
STEM = "cli_direct.jsonl"


def user(text: str) -> ChatMessage:
    return {"role": "user", "content": text}


def said(text: str) -> ChatMessage:
    return {"role": "assistant", "content": text}


def turns(first: int, last: int, text: str = "{}") -> list[ChatMessage]:
    """Messages of a user and of the assistant in turn, each with its number."""
    return [(said if at % 2 else user)(text.format(at)) for at in range(first, last)]


def numbers(first: int, last: int) -> list[str]:
    return [str(at) for at in range(first, last)]


def contents(rows: Session | Iterable[Mapping[str, Any]] | None) -> list[Any]:
    assert rows is not None
    return [row["content"] for row in (rows.messages if isinstance(rows, Session) else rows)]


def fresh(workspace: Path) -> Session:
    """The session as another process sees it."""
    return SessionManager(workspace).get_or_create(KEY)


def saved(manager: SessionManager, *texts: str, key: str = KEY) -> Session:
    session = manager.get_or_create(key)
    for text in texts:
        session.add_message("user", text)
    manager.save(session)
    return session


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_rows(path: Path, *rows: object, encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode(encoding))
    return path


def original(workspace: Path, count: int, last_consolidated: int = 0, text: str = "{}") -> Session:
    """A session as the original writes it: one metadata line, then messages. Freshly opened."""
    record = {"_type": "metadata", "key": KEY, "metadata": {}, "last_consolidated": last_consolidated}
    write_rows(workspace / "sessions" / STEM, record, *turns(0, count, text))
    return fresh(workspace)
