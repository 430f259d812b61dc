"""The accepted requests: which turn and session each belongs to, so that a client may come back for its answer; and
what each asks of its turn.

What a turn said is in its session; this has only what the session lacks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nanobot.agent.feed import Feed
from nanobot.agent.pipeline.turn import TurnOptions
from nanobot.bus.events import InboundMessage
from nanobot.channels.base import BaseChannel
from nanobot.runtime.build import Runtime
from nanobot.session.file_format import is_temporary
from nanobot.utils import codec
from nanobot.utils.clock import Clock
from nanobot.utils.database import Database

if TYPE_CHECKING:
    from sqlite3 import Connection

    from nanobot.sdk.output import OutputFormat


SCHEMA = """
CREATE TABLE IF NOT EXISTS api_requests (
    id TEXT PRIMARY KEY, key_name TEXT NOT NULL, session TEXT NOT NULL, body_hash TEXT NOT NULL, idempotency TEXT,
    created_at REAL NOT NULL, expires_at REAL NOT NULL, is_read INTEGER NOT NULL DEFAULT 0, request TEXT NOT NULL,
    UNIQUE (key_name, idempotency)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS api_requests_by_body ON api_requests (key_name, body_hash, created_at);
CREATE INDEX IF NOT EXISTS api_requests_by_end ON api_requests (expires_at);
"""
KEPT_S = 30 * 86400.0
TEMPORARY_S = 3600.0
"""How long the answer of a request without a conversation can be fetched."""
_RETRY_S = 600.0
"""How old the request may be that an automatic retry joins."""


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """An accepted request. Its id is that of its turn, except for one that goes on after an approval question."""

    id: str
    turn_id: str
    key_name: str
    session: str
    body_hash: str
    idempotency: str | None = None
    first_part: int = 0
    """Parts of the turn's view that belong to earlier requests."""
    echo: dict[str, Any] = field(default_factory=dict)
    """What its response repeats, such as `metadata`."""
    created_at: float = 0.0


class ApiRequests:
    """The accepted requests. All methods raise StorageError."""

    def __init__(self, database: Database, clock: Clock) -> None:
        """The database has the tables of SCHEMA and of the ledger."""
        self._database = database
        self._clock = clock

    async def add(self, new: ApiRequest, *, is_retry: bool, kept_s: float) -> ApiRequest:
        """Add a request, or return the one that it repeats: by its idempotency key or, for an automatic retry, the last
        one with the same body whose answer nobody has read.
        """
        now = self._clock.now().timestamp()

        def insert(db: "Connection") -> ApiRequest:
            if new.idempotency is not None:
                known = _find(db, "key_name = ? AND idempotency = ?", new.key_name, new.idempotency)
            elif is_retry:
                where = "key_name = ? AND body_hash = ? AND created_at > ? AND NOT is_read ORDER BY created_at DESC"
                known = _find(db, where, new.key_name, new.body_hash, now - _RETRY_S)
            else:
                known = None
            if known is not None:
                return known
            added = replace(new, created_at=now)
            row = (added.id, added.key_name, added.session, added.body_hash, added.idempotency, now, now + kept_s)
            content = codec.to_json(added)
            db.execute("INSERT INTO api_requests VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?)", (*row, content))
            return added

        return await self._database.ask(insert, is_synced=False)

    async def get(self, request_id: str) -> ApiRequest | None:
        return await self._database.ask(lambda db: _find(db, "id = ?", request_id), is_synced=False)

    def set_read(self, request_id: str) -> None:
        """Record that the answer was sent completely."""
        self._database.soon(lambda db: db.execute("UPDATE api_requests SET is_read = 1 WHERE id = ?", (request_id,)))

    async def delete(self, request_id: str) -> None:
        """Forget a request. The session of its turn stays."""
        await self._database.ask(lambda db: db.execute("DELETE FROM api_requests WHERE id = ?", (request_id,)).rowcount)

    async def pop_expired(self) -> list[str]:
        """Forget what is too old. Return the temporary sessions that no request needs any more."""
        now = self._clock.now().timestamp()

        def delete(db: "Connection") -> list[str]:
            query = "DELETE FROM api_requests WHERE expires_at < ? RETURNING session"
            sessions = {session for (session,) in db.execute(query, (now,)) if is_temporary(session)}
            return [session for session in sessions if _find(db, "session = ?", session) is None]

        return await self._database.ask(delete)

    async def usage(self, turn_id: str, sessions: Sequence[str] = ()) -> tuple[dict[str, int], float | None]:
        """The tokens and dollars of a turn and of these sessions, from the ledger."""
        names = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")

        def select(db: "Connection") -> tuple[dict[str, int], float | None]:
            sums = ", ".join(f"COALESCE(SUM({name}), 0)" for name in names)
            where = f"turn = ? OR session IN ({', '.join('?' * len(sessions))})"
            query = f"SELECT {sums}, SUM(usd) FROM calls WHERE {where}"  # noqa: S608 names of ours
            *tokens, usd = db.execute(query, (turn_id, *sessions)).fetchone()
            return dict(zip(names, tokens, strict=True)), usd

        return await self._database.ask(select, is_synced=False)


def _find(db: "Connection", where: str, *values: object) -> ApiRequest | None:
    row = db.execute(f"SELECT request FROM api_requests WHERE {where} LIMIT 1", values).fetchone()  # noqa: S608 names of ours
    return codec.from_json(ApiRequest, row[0]) if row is not None else None


@dataclass(frozen=True, slots=True)
class ApiServices:
    """The running gateway, as the API uses it."""

    runtime: Runtime
    feed: Feed
    channel: BaseChannel
    """The channel of the API's sessions."""
    requests: ApiRequests


def turn_options(message: InboundMessage) -> TurnOptions:
    """The options of a message's turn, from `message.request`, which is stored: it also holds after a restart."""
    asked = {name: value for name, value in message.request.items() if value is not None}
    form = answer_form(asked.pop("schema", None))
    if form is not None:
        asked |= {"answer_format": form.describe(), "format_problem": form.problem}
    return TurnOptions(**asked)


def answer_form(schema: dict[str, Any] | None) -> "OutputFormat | None":
    """The form of an answer with this JSON schema; None without one. Raises TypeError if it is not valid."""
    if schema is None:
        return None
    from nanobot.sdk.output import OutputFormat  # most requests want a text

    return OutputFormat(schema)
