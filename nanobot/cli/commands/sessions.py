"""`nanobot sessions`: list, show, search, import, export and delete stored conversations.

A live session is named by its key, an archived one by its file name. No command changes an existing session.
"""

import json as json_text
import sys
from collections.abc import Iterator
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from nanobot.cli.common import JsonOption, Setup, read_setup, unknown_name_error
from nanobot.cli.output import print_json, print_line, print_list, print_text, to_one_line, when
from nanobot.cli.setup import prompts
from nanobot.errors import NanobotError, StorageError
from nanobot.messages.shown import visible_text
from nanobot.security.files.open import Opener
from nanobot.security.files.paths import PathPolicy
from nanobot.session.file import session_title
from nanobot.session.file_format import decode, is_record
from nanobot.session.folder import SessionFolder
from nanobot.session.import_export import describe_import, format_markdown, format_text, read_conversations, to_jsonl
from nanobot.session.manager import Session, SessionManager
from nanobot.utils.files import write_atomic
from nanobot.utils.text import count_noun

if TYPE_CHECKING:
    from nanobot.session.search.index import SearchIndex

SNIPPET_BEFORE, SNIPPET_AFTER = 40, 100
_MAX_PROBLEMS = 10

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The session, from `nanobot sessions list`.")]


class ExportFormat(StrEnum):
    JSONL = "jsonl"
    MARKDOWN = "markdown"


class SessionHit(NamedTuple):
    name: str
    timestamp: str
    role: str
    snippet: str


def list_(json: JsonOption = False) -> None:
    rows = [
        {
            **{key: row[key] for key in ("name", "key", "updated_at", "messages", "archived", "path")},
            "title": session_title(Path(row["path"]), row["metadata"]),
        }
        for row in _open_sessions()[1].list_sessions()
    ]
    columns = {"Session": "name", "Last used": when("updated_at"), "Messages": "messages", "Title": "title"}
    print_list(rows, columns, as_json=json, empty="There are no sessions yet. Start one with `nanobot agent`.")


def show(
    key: KeyArgument,
    last: Annotated[
        int | None, typer.Option("-n", "--last", metavar="N", min=1, help="Show only the last N messages.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Print one conversation: the messages, and a line for each tool call."""
    session = _read_session(_open_sessions()[1], key)
    messages = session.messages[-last:] if last else session.messages
    if json:
        print_json({"key": session.key, "metadata": session.metadata, "messages": messages})
    else:
        print_text(format_text(session.key, messages))


def export(
    key: KeyArgument,
    format_: Annotated[ExportFormat, typer.Option("--format", "-f", help="The format.")] = ExportFormat.JSONL,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to this file.")] = None,
) -> None:
    """Export one conversation as JSON lines or Markdown, to stdout or a file."""
    session = _read_session(_open_sessions()[1], key)
    data = format_markdown(session).encode() if format_ is ExportFormat.MARKDOWN else to_jsonl(session)
    if output is None:
        if sys.stdout is not None:  # it may be closed
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
        return
    path = output.expanduser()
    try:
        if path.is_char_device() or path.is_fifo():  # such as /dev/stdout
            path.write_bytes(data)
        else:
            write_atomic(path, data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # not the name of the temporary file
    print_line(f"{count_noun(len(session.messages), 'message')} written to {output}", err=True)


def delete(key: KeyArgument, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False) -> None:
    setup, sessions = _open_sessions()
    what = f"{to_one_line(key)} ({count_noun(len(_read_session(sessions, key).messages), 'message')})"
    if not prompts.confirm_action(f"Delete {what} permanently?", yes=yes):
        print_line("Kept.")
        return
    from nanobot.agent.trace.store import TraceStore  # slow to import
    from nanobot.runtime.deletion import delete_session

    delete_session(sessions, TraceStore(setup.paths.traces), _open_index(setup), key)
    print_line(f"Deleted {what}.")


def search(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to search for, ignoring case.")],
    limit: Annotated[int, typer.Option("-n", "--limit", metavar="N", min=1, help="Show at most N messages.")] = 100,
    json: JsonOption = False,
) -> None:
    """Search all conversations for a text, newest first; if it occurs nowhere, for all of its words."""
    if not text.strip():
        raise typer.BadParameter("the text to search for is empty.", param_hint="TEXT")
    setup, sessions = _open_sessions()
    hits = list(_find_messages(sessions, text))
    if not hits and len(text.split()) > 1:
        hits = _find_words(setup, text, limit)
    columns = {"Session": "name", "When": when("timestamp"), "Who": "role", "Text": "snippet"}
    empty = f"{to_one_line(text)!r} occurs in no session."
    print_list(hits[:limit], columns, as_json=json, empty=empty, to_json=SessionHit._asdict)
    if len(hits) > limit:
        print_line(f"{len(hits) - limit} more; show them with --limit {len(hits)}.", err=True)


def _find_messages(sessions: SessionManager, text: str) -> Iterator[SessionHit]:
    """Every visible message that contains the text, newest first, those in the archives of the months last. Parsing is
    slow, so lines without it are skipped.
    """
    needle, written = text.casefold(), json_text.dumps(text, ensure_ascii=False)[1:-1].casefold()
    files = ((str(row["name"]), Path(row["path"]).read_bytes()) for row in sessions.list_sessions())
    for name, data in chain(files, sessions.packed_files()):
        for line in data.split(b"\n"):
            if b"\\u" not in line and written not in line.decode(errors="replace").casefold():
                continue  # characters may be escaped
            for message in decode(line)[0]:
                content = "" if is_record(message) else visible_text(message)  # type: ignore[arg-type]  # any JSON
                if (start := content.casefold().find(needle)) >= 0:
                    snippet = to_one_line(content[max(0, start - SNIPPET_BEFORE) : start + len(text) + SNIPPET_AFTER])
                    yield SessionHit(name, str(message.get("timestamp", "")), str(message.get("role", "")), snippet)


def _find_words(setup: Setup, text: str, limit: int) -> list[SessionHit]:
    """Find messages that contain all words, best match first; none where there is no index."""
    try:
        result = _open_index(setup).search(text, lambda file: bool(file.key), limit=limit)
    except StorageError:
        return []
    hits = [] if result.is_loose else result.hits
    return [SessionHit(hit.name, hit.time, hit.role, to_one_line(hit.text)) for hit in hits]


def _open_index(setup: Setup) -> "SearchIndex":
    from nanobot.session.search.index import SearchIndex  # slow to import
    from nanobot.session.search.update import sources_of

    sessions, opener = SessionFolder(setup.workspace, setup.paths.legacy_sessions), Opener(PathPolicy(setup.workspace))
    return SearchIndex(setup.paths.search, lambda: sources_of(sessions, setup.workspace / "memory"), opener.descriptor)


def _open_sessions() -> tuple[Setup, SessionManager]:
    setup = read_setup(secrets=False)
    return setup, setup.sessions()


def _read_session(sessions: SessionManager, name: str) -> Session:
    """Load a session by name. Raises NanobotError, with the nearest names, if there is none."""
    session = sessions.read(name)
    if session is None:
        known = [row["name"] for row in sessions.list_sessions()]
        raise unknown_name_error("session", name, known, "nanobot sessions list")
    return session


def import_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A session file, a folder of them, or a JSON list of chat messages.")
    ],
    key: Annotated[str | None, typer.Option("--as", metavar="KEY", help="Import it as this session.")] = None,
) -> None:
    """Import stored conversations. An existing session is never changed."""
    path = file.expanduser()
    if key is not None and (not key.strip() or path.is_dir()):
        raise NanobotError("--as is for a single file and needs a session key, such as cli:notes.")
    if not path.exists():
        raise NanobotError(f"{file} does not exist.")
    conversations, faults = read_conversations(path)  # read everything before writing anything
    existing, problems = [], [str(fault) for fault in faults]
    sessions = _open_sessions()[1]
    for conversation in conversations:
        name = key or conversation.key
        if sessions.find(name) is not None:
            existing.append(to_one_line(name))
            continue
        sessions.save(conversation.as_session(name))
        print_line(f"{to_one_line(name)}: {describe_import(conversation)}")
    if existing:
        names = ", ".join(existing[:_MAX_PROBLEMS]) + (" ..." if len(existing) > _MAX_PROBLEMS else "")
        problems.append(f"Exists already, not changed: {names}. Import it alone, under another name, with --as KEY.")
    if problems:
        raise NanobotError("\n".join(problems))
