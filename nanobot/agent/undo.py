"""`/undo`: restores the files that the file tools changed in the last turn that changed any.

The record of a session is one file: for each path the content before the turn, and a hash of what the tools wrote last.
A file that was changed by somebody else since is left as it is.
"""

import asyncio
import hashlib
import json
import logging
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from nanobot.agent.command import CommandCall, CommandEntry
from nanobot.agent.scope import Scope, restrict_paths
from nanobot.agent.tools.disk import FILE_ERRORS, explain_error, new_file_mode, opener
from nanobot.agent.tools.hooks import PlannedCall, Verdict
from nanobot.messages.shown import visible_text
from nanobot.messages.types import ChatMessage
from nanobot.security.files.open import Opener
from nanobot.security.files.paths import PathPolicy
from nanobot.session.file_format import hashed_stem
from nanobot.utils.files import make_private_folder, write_atomic
from nanobot.utils.text import clip_line

log = logging.getLogger(__name__)

_WRITERS = frozenset({"write_file", "edit_file", "notebook_edit"})
_MAX_FILE_BYTES = 1 << 20
_MAX_TURN_BYTES = 8 << 20
_MAX_RECORDS = 50
"""Sessions whose last changes are kept."""
_MAX_COMMANDS = 5


class FileUndo:
    """Records what the file tools change, as a policy of their calls, and answers `/undo`."""

    def __init__(self, folder: Path, paths: Callable[[], PathPolicy]) -> None:
        """`folder` keeps the records. `paths` returns the current path policy."""
        self._folder = folder
        self._paths = paths
        self._lock = threading.Lock()  # the calls of a step end in several threads

    async def before_call(self, planned: PlannedCall) -> Verdict:
        """Read the file that a call is about to change. Refuses nothing."""
        path, context = planned.call.arguments.get("path"), planned.context
        if planned.call.name not in _WRITERS or context.is_subagent or not isinstance(path, str):
            return Verdict()
        files = opener(self._paths(), context)
        before = await asyncio.to_thread(_read, files, path)
        return Verdict(on_success=[partial(self._record, context.session_key, context.turn_id, files, path, before)])

    def _record(self, session_key: str, turn_id: str, files: Opener, path: str, before: bytes | str | None) -> None:
        """Record a change that was made. `before` is the content; None for a new file, a text if it has no copy."""
        with suppress(*FILE_ERRORS):
            real, file = files.open(path)
            with file:
                after = _hash(file.read())
            with self._lock:
                record = self._load(session_key)
                if record.get("turn") != turn_id:
                    record = {"turn": turn_id, "files": {}}
                size = sum(len(entry.get("before") or "") for entry in record["files"].values())
                if isinstance(before, bytes) and (len(before) > _MAX_FILE_BYTES or size > _MAX_TURN_BYTES):
                    before = "it was too large to be kept"
                entry = record["files"].setdefault(str(real), _entry_of(before))
                entry["after"] = after
                self._save(session_key, record)

    @property
    def command(self) -> CommandEntry:
        """`/undo`, for owners."""
        return CommandEntry(self._answer, "undo the last changes of files", for_owners=True)

    async def _answer(self, call: CommandCall) -> str:
        return await asyncio.to_thread(self.undo, call.session.key, call.scope, call.session.get_history())

    def last_turn(self, session_key: str) -> str | None:
        """The turn whose changes of files can be undone. Blocks."""
        record = self._load(session_key)
        return record["turn"] if record.get("files") else None

    def undo(self, session_key: str, scope: Scope, rows: Sequence[ChatMessage], turn_id: str | None = None) -> str:
        """Restore the files that the last turn changed, and say what was done. `turn_id`: only if it was this one.
        Blocks; the session's lane is held.
        """
        with self._lock:
            record = self._load(session_key)
            changed: dict[str, Any] = record.get("files", {})
            if turn_id not in (None, record.get("turn")):
                return "Nothing was undone: a later turn has changed files. Undo that one first."
            if not changed:
                return "There is nothing to undo: no file was changed here since the last /undo."
            policy, lines = restrict_paths(self._paths(), scope), []
            for path, entry in [*changed.items()]:
                outcome, is_done = _restore(policy, path, entry)
                lines.append(f"- {path}: {outcome}")
                if is_done:
                    del changed[path]
            self._save(session_key, record)
        turn = [row for row in rows if row.get("turn_id") == record["turn"]]
        request = next((visible_text(row) for row in turn if row["role"] == "user"), "")
        commands = [
            " ".join(str(_arguments(call["function"]["arguments"]).get("command", "")).split())
            for row in turn
            for call in row.get("tool_calls", ())
            if call["function"]["name"] == "exec"
        ]
        heading = f"Files changed by “{clip_line(' '.join(request.split()), 80)}”:" if request else "Files changed:"
        not_undone = [f"- {clip_line(command, 200)}" for command in commands[:_MAX_COMMANDS]]
        if len(commands) > _MAX_COMMANDS:
            not_undone.append(f"- and {len(commands) - _MAX_COMMANDS} more")
        return "\n".join(
            [heading, *lines, *(["What these commands did is not undone:"] if commands else []), *not_undone]
        )

    def _file_of(self, session_key: str) -> Path:
        return self._folder / f"{hashed_stem(session_key)}.json"

    def _load(self, session_key: str) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            record = json.loads(self._file_of(session_key).read_bytes())
            if isinstance(record, dict):
                return record
        return {}

    def _save(self, session_key: str, record: dict[str, Any]) -> None:
        """Store a record and delete the oldest ones of other sessions. Never raises."""
        try:
            make_private_folder(self._folder)
            write_atomic(self._file_of(session_key), json.dumps(record))
            by_age = sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for path in by_age[:-_MAX_RECORDS]:
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("Changes of files cannot be recorded for /undo: %s", error)


def _read(files: Opener, path: str) -> bytes | str | None:
    """Return the content of a file, None if there is none, or why it is not known."""
    try:
        with files.read(path) as file:
            return file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except FILE_ERRORS:
        return "its content before is not known"


def _entry_of(before: bytes | str | None) -> dict[str, Any]:
    if isinstance(before, str):
        return {"problem": before}
    return {"before": None if before is None else b64encode(before).decode()}


def _restore(policy: PathPolicy, path: str, entry: dict[str, Any]) -> tuple[str, bool]:
    """Restore one file. Return what happened, and whether nothing is left to do. The owner who asks permits what an
    owner can permit.
    """
    if "problem" in entry:
        return f"not restored: {entry['problem']}", True
    files = Opener(policy)
    try:
        files = Opener(policy, frozenset(request.rule for request in policy.permissions_to_write(path)))
        with files.place(path) as place:
            if str(place.real) != path:
                return "not restored: it is a link now", False
            with place.read() as file:
                current = file.read()
            if _hash(current) != entry["after"]:
                return "not restored: it was changed since", False
            if entry["before"] is None:
                place.remove()
                return "deleted, as it was new", True
            place.check_permission()
            place.replace(b64decode(entry["before"]), new_file_mode())
    except FileNotFoundError:
        return "not restored: it was deleted since", True
    except OSError as error:
        return f"not restored: {explain_error(error, path, files)}", False
    except FILE_ERRORS as error:
        return f"not restored: {error}", False
    return "restored", True


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _arguments(text: str) -> dict[str, Any]:
    with suppress(ValueError):
        arguments = json.loads(text)
        if isinstance(arguments, dict):
            return arguments
    return {}
