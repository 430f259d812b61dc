"""`nanobot sessions`: stored conversations, live and archived, to list, read, search, export and delete.

A live session goes by its key, an archived one by the name of its file. Nothing here writes to a session.
"""

import json as json_text
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nanobot.cli import questions
from nanobot.cli.common import (
    ConfigOption,
    JsonOption,
    WorkspaceOption,
    one_line,
    read_setup,
    say_text,
    show_json,
    show_rows,
    unknown_name,
)
from nanobot.cli.conversation import as_markdown, as_text
from nanobot.config.paths import Places
from nanobot.errors import NanobotError, StorageError
from nanobot.messages.shown import seen_text
from nanobot.messages.types import ChatMessage
from nanobot.security.opening import Opener
from nanobot.security.paths import PathPolicy
from nanobot.session.folder import SessionFolder
from nanobot.session.lines import Row, decode, encode, is_record
from nanobot.session.manager import Session, SessionManager
from nanobot.utils.files import write_atomic
from nanobot.utils.text import counted

if TYPE_CHECKING:
    from nanobot.session.search.index import SearchIndex

HEAD_BYTES = 1 << 16
"""How much of a file is read to find its first words."""
SNIPPET_BEFORE, SNIPPET_AFTER = 40, 100

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="A session, as `nanobot sessions list` names it.")]


class Format(StrEnum):
    """What `export` writes."""

    JSONL = "jsonl"
    MARKDOWN = "markdown"


@dataclass(frozen=True)
class SessionFacts:
    """A session in a list. `name` is what the other commands take."""

    name: str
    key: str
    updated_at: str
    messages: int
    archived: bool
    first_words: str
    path: str


@dataclass(frozen=True)
class Hit:
    """A message with the text in it."""

    name: str
    timestamp: str
    role: str
    snippet: str


def list_(config: ConfigOption = None, workspace: WorkspaceOption = None, json: JsonOption = False) -> None:
    """All conversations, the newest first; archived ones too."""
    facts = list(_facts(_sessions(config, workspace)))
    if json:
        show_json([asdict(fact) for fact in facts])
        return
    show_rows(
        ("Session", "Last used", "Messages", "First words"),
        [(fact.name, _when(fact.updated_at), fact.messages, fact.first_words) for fact in facts],
        empty="There are no sessions yet. Begin one with `nanobot agent`.",
    )


def show(
    key: KeyArgument,
    last: Annotated[int | None, typer.Option("-n", "--last", min=1, help="Only the last so many messages.")] = None,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """One conversation, to read: what was said, and a line for each tool call."""
    session = _read(_sessions(config, workspace), key)
    messages = session.messages[-last:] if last else session.messages
    if json:
        show_json({"key": session.key, "metadata": session.metadata, "messages": messages})
    else:
        say_text(as_text(session.key, messages))


def export(
    key: KeyArgument,
    format_: Annotated[Format, typer.Option("--format", "-f", help="What to write.")] = Format.JSONL,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Where to.")] = None,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
) -> None:
    """One conversation as JSON lines or Markdown, on stdout or in a file."""
    session = _read(_sessions(config, workspace), key)
    data = as_markdown(session).encode() if format_ is Format.MARKDOWN else _as_lines(session)
    if output is None:
        if sys.stdout is not None:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
        return
    _write(output.expanduser(), data)
    typer.echo(f"{counted(len(session.messages), 'message')} written to {output}", err=True)


def delete(
    key: KeyArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
) -> None:
    """Delete one conversation for good: it is kept nowhere."""
    setup = read_setup(config, workspace, secrets=False)
    places = Places(setup.data_dir)
    sessions = SessionManager(setup.workspace, old_folder=places.old_sessions)
    session = _read(sessions, key)
    what = f"{one_line(key)} ({counted(len(session.messages), 'message')})"
    if not yes and not questions.confirm(f"Delete {what} for good?"):
        typer.echo("Kept.")
        return
    sessions.delete(key)
    _forget_traces(session, places.traces)
    _index(setup.workspace, setup.data_dir).clear()
    typer.echo(f"Deleted {what}.")


def search(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to look for; case makes no difference.")],
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="Show at most so many.")] = 100,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Where a text occurs in all conversations, the newest ones first; if nowhere, where all of its words do."""
    if not text.strip():
        raise typer.BadParameter("say what to look for.", param_hint="TEXT")
    hits = list(_hits(_sessions(config, workspace), text))
    if not hits and len(text.split()) > 1:
        hits = _with_all_words(config, workspace, text, limit)
    shown = hits[:limit]
    if json:
        show_json([asdict(hit) for hit in shown])
    else:
        show_rows(
            ("Session", "When", "Who", "Text"),
            [(hit.name, _when(hit.timestamp), hit.role, hit.snippet) for hit in shown],
            empty=f"{one_line(text)!r} occurs in no session.",
        )
    if len(hits) > limit:
        typer.echo(f"{len(hits) - limit} more; show them with --limit {len(hits)}.", err=True)


def _with_all_words(config: Path | None, workspace: Path | None, text: str, limit: int) -> list[Hit]:
    """The messages that hold these words, the best first. Without an index there are none."""
    from nanobot.session.search.recall import Recall  # only where the text as it is occurs nowhere

    setup = read_setup(config, workspace, secrets=False)
    try:
        found = Recall(_index(setup.workspace, setup.data_dir)).search(text, lambda file: bool(file.key), limit=limit)
    except StorageError:
        return []
    return [] if found.is_loose else [Hit(hit.name, hit.time, hit.role, one_line(hit.text)) for hit in found.hits]


def _index(workspace: Path, data_dir: Path) -> "SearchIndex":
    from nanobot.session.search.index import SearchIndex
    from nanobot.session.search.recall import sources_of

    places = Places(data_dir)
    sessions = SessionFolder(workspace, places.old_sessions)
    opener = Opener(PathPolicy(workspace)).descriptor
    return SearchIndex(places.search, lambda: sources_of(sessions, workspace / "memory"), opener)


def _sessions(config: Path | None, workspace: Path | None) -> SessionManager:
    setup = read_setup(config, workspace, secrets=False)
    return SessionManager(setup.workspace, old_folder=Places(setup.data_dir).old_sessions)


def _read(sessions: SessionManager, name: str) -> Session:
    """The whole session of that name. Raises NanobotError, with the nearest names, where there is none."""
    session = sessions.read(name)
    if session is None:
        known = [name for name, _ in _named(sessions)]
        raise unknown_name("session", name, known, "nanobot sessions list")
    return session


def _forget_traces(session: Session, folder: Path) -> None:
    """What was kept of its turns goes with it."""
    from nanobot.agent.trace.folder import TraceFolder  # the engine: only where something is deleted

    TraceFolder(folder).forget(session.key, {str(row["turn_id"]) for row in session.messages if row.get("turn_id")})


def _named(sessions: SessionManager) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each session with the name it goes by."""
    for row in sessions.list_sessions():
        yield Path(row["path"]).stem if row["archived"] else row["key"], row


def _facts(sessions: SessionManager) -> Iterator[SessionFacts]:
    for name, row in _named(sessions):
        yield SessionFacts(
            name=name,
            key=row["key"],
            updated_at=row["updated_at"],
            messages=row["messages"],
            archived=row["archived"],
            first_words=_first_words(Path(row["path"])),
            path=row["path"],
        )


def _first_words(path: Path) -> str:
    """What the person said first, if it stands near the beginning of the file."""
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError:  # gone since it was listed
        return ""
    rows = (row for line in head.splitlines() for row in decode(line)[0] if row.get("role") == "user")
    words = (one_line(seen_text(_message(row))) for row in rows)
    return next((said[:200] for said in words if said), "")


def _hits(sessions: SessionManager, text: str) -> Iterator[Hit]:
    """Every message a person may see with the text in it."""
    wanted = text.casefold()
    for name, row in _named(sessions):
        for message in _rows_with(Path(row["path"]), text):
            said = seen_text(_message(message))
            at = said.casefold().find(wanted)
            if at >= 0:
                snippet = one_line(said[max(0, at - SNIPPET_BEFORE) : at + len(text) + SNIPPET_AFTER])
                yield Hit(name, str(message.get("timestamp", "")), str(message.get("role", "")), snippet)


def _rows_with(path: Path, text: str) -> Iterator[Row]:
    """The rows of a file that may hold the text. Parsing is what costs, so lines without it are not parsed."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise NanobotError(f"{path} cannot be read: {error.strerror}.") from error
    for line in _lines_with(data, text):
        yield from (row for row in decode(line)[0] if not is_record(row))


def _lines_with(data: bytes, text: str) -> Iterator[bytes]:
    """The lines that may hold the text, whatever its case, as JSON writes it."""
    written = json_text.dumps(text, ensure_ascii=False)[1:-1]
    if written.casefold() != written.lower():  # one letter for two, as in Straße: only the words themselves tell
        yield from data.split(b"\n")
        return
    if any(not letter.isascii() and letter.lower() != letter.upper() for letter in written):
        pattern = re.compile(re.escape(written), re.IGNORECASE)
        for line in data.split(b"\n"):
            if b"\\u" in line or pattern.search(line.decode(errors="replace")):
                yield line
        return
    folded, needle = data.lower(), written.lower().encode("utf-8", "replace")
    places = sorted({*_begins(folded, needle), *_begins(folded, b"\\u")})  # letters may be written as escapes
    for begin in places:
        end = data.find(b"\n", begin)
        yield data[begin : end if end >= 0 else len(data)]


def _begins(data: bytes, needle: bytes) -> Iterator[int]:
    """Where the lines begin in which it stands."""
    at = data.find(needle)
    while at >= 0:
        yield data.rfind(b"\n", 0, at) + 1
        end = data.find(b"\n", at)
        at = data.find(needle, end) if end >= 0 else -1


def _write(place: Path, data: bytes) -> None:
    """A file in one step; into a pipe or a device (`/dev/stdout`) as it comes. Raises OSError."""
    if place.exists() and not place.is_file() and not place.is_dir():
        place.write_bytes(data)
    else:
        write_atomic(place, data)


def _message(row: Row) -> ChatMessage:
    return row  # type: ignore[return-value]  # a row of a file, whatever it holds


def _as_lines(session: Session) -> bytes:
    """The session as a file of its own: the metadata line, then its sound messages."""
    record = {
        "_type": "metadata",
        "key": session.key,
        "created_at": session.created_at.isoformat(),
        "updated_at": session.updated_at.isoformat(),
        "metadata": session.metadata,
        "last_consolidated": session.last_consolidated,
    }
    return b"".join(encode(dict(row)) for row in (record, *session.messages))


def _when(text: str) -> str:
    """A stored time as people read it."""
    try:
        return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M}"
    except ValueError:
        return text
