"""Turns of requests: accepted once, followed from anywhere, stopped when nobody wants them any more."""

import asyncio
import hashlib
import json
import logging
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from starlette.requests import Request

from nanobot.agent.context import with_attachments
from nanobot.agent.feed import FeedClosedError, TurnView, stored_view
from nanobot.agent.subagent.spawn import SpawnTool
from nanobot.agent.tools.web.fetch import FETCH_TIMEOUT_S
from nanobot.api.answers import NO_RETRY
from nanobot.api.prompts import ClientMessage, ParsedRequest, Prompt, UploadedFile
from nanobot.api.requests import KEPT_S, TEMPORARY_S, ApiRequest, ApiServices
from nanobot.bus.events import InboundMessage
from nanobot.channels.media import Attachment, one_chunk
from nanobot.errors import NanobotError, StorageError
from nanobot.messages.types import ChatMessage, Origin, Provenance, is_synthetic, text_of
from nanobot.net import sse
from nanobot.net.egress import EgressGate
from nanobot.net.fetch import Fetcher, FetchLimits, FetchRequest
from nanobot.runtime.policies import network_policy
from nanobot.security.credentials import Credential, HttpRole
from nanobot.security.http_access import HttpError, Requires, View
from nanobot.security.secrets import find_secret
from nanobot.session.file_format import is_temporary

log = logging.getLogger(__name__)

ABANDONED_S = 2.0
"""A turn that nobody listens to any more is stopped after this time."""
_MAX_WAITING = 20
"""Turns of one conversation that may wait."""
SWEEP_S = 600.0


@dataclass(slots=True)
class Following:
    """A request and what its turn shows."""

    request: ApiRequest
    view: TurnView
    history: str = ""
    """`session` if the client's history is another one than the session's, which was used."""

    @property
    def schema(self) -> dict[str, Any] | None:
        return self.request.echo.get("schema")


class ApiTurns:
    def __init__(self, services: ApiServices) -> None:
        self._services = services
        self._listeners: Counter[str] = Counter()
        self._detached: set[str] = set()
        """Turns that go on although nobody listens."""
        self._swept_at = -SWEEP_S
        self._stopping: asyncio.Future[bool] | None = None

    async def start(self, request: Request, caller: Credential, body: bytes, asked: ParsedRequest) -> Following:
        """Accept a request and return its turn, or the turn that an earlier sending of it has begun. Raises HttpError,
        StorageError.
        """
        runtime = self._services.runtime
        if not runtime.loop.is_serving:
            raise stopping()
        await self._sweep()
        new_id = secrets.token_hex(8)
        marker = asked.marker
        if marker is None and not asked.session and (marker := runtime.config.api.default_session):
            asked.prompt.history.clear()  # that of another conversation, maybe
        session = asked.session or session_key(caller, marker or f"~{new_id}")
        idempotency = request.headers.get("idempotency-key")
        echo = {**asked.echo, "schema": asked.options.get("schema")}
        new = ApiRequest(new_id, new_id, caller.name, session, _hash(request, body), idempotency, echo=echo)
        is_retry = request.headers.get("x-stainless-retry-count", "0") not in ("", "0")
        is_kept = asked.is_stored or not is_temporary(session)
        known = await self._services.requests.add(new, is_retry=is_retry, kept_s=KEPT_S if is_kept else TEMPORARY_S)
        if known.id != new.id:
            if known.body_hash != new.body_hash:
                text = "This Idempotency-Key belongs to another request. Use a new one."
                raise HttpError(409, text, code="idempotency_key_reused", headers=NO_RETRY)
            if (view := await self.view_of(known)) is not None:
                return Following(known, view)
        if idempotency or marker or asked.session or request.headers.get("x-nanobot-background"):
            self._detached.add(known.turn_id)
        try:
            note = await self._publish(request, caller, known, asked)
        except Exception:
            await self._services.requests.delete(known.id)
            raise
        view = await self.view_of(known)
        if view is None:
            raise stopping()
        return Following(known, view, note)

    async def _publish(self, request: Request, caller: Credential, record: ApiRequest, asked: ParsedRequest) -> str:
        """Put the message on disk and into its session's lane."""
        feed, channel, is_owner = self._services.feed, self._services.channel, caller.role is HttpRole.OWNER
        if sum(1 for _ in feed.views(record.session)) >= _MAX_WAITING:
            text = f"{_MAX_WAITING} requests of this conversation wait already."
            raise HttpError(429, text, code="lane_full", headers={**NO_RETRY, "Retry-After": "10"})
        attachments = [await self._store(file, caller) for file in asked.prompt.files]
        note = await self._prepare_session(request, caller, record, asked.prompt)
        instructions = {"instructions": asked.prompt.instructions} if asked.prompt.instructions else {}
        message = InboundMessage(
            channel.name,
            "owner" if is_owner else caller.person or caller.name,
            record.session.partition(":")[2],
            asked.prompt.text,
            session_key_override=record.session,
            message_id=record.turn_id,
            origin=Origin.API,
            provenance=_provenance(caller),
            attended=is_owner,
            scope=_scope(caller),
            turn_id=record.turn_id,
            request={**asked.options, **instructions},
        )
        assert channel.inbox is not None  # noqa: S101 the gateway has attached the channel
        await channel.inbox.put(message, attachments)
        return note

    async def _store(self, file: UploadedFile, caller: Credential) -> Attachment:
        if file.url:
            file = await self._fetch(file, caller)
        digest = hashlib.sha256(file.data).hexdigest()
        attachment = Attachment(file.kind, digest, file.name, file.content_type, len(file.data))
        stored = await self._services.channel.services.media.store(attachment, lambda: one_chunk(file.data))
        if stored.path is None:
            raise HttpError(413, "A file is empty, or larger than nanobot takes.", headers=NO_RETRY)
        return Attachment.from_stored(stored)

    async def _fetch(self, file: UploadedFile, caller: Credential) -> UploadedFile:
        """Fetch a picture as `web_fetch` would. Raises HttpError."""
        config = self._services.runtime.config
        if caller.role is not HttpRole.OWNER or not (config.api.fetch_images and config.tools.web.enable):
            text = "This key's pictures are not fetched from the web: send them as data: URLs in base64."
            raise HttpError(400, text, code="unsupported_media", param="messages")
        gate, limits = EgressGate(network_policy(config)), FetchLimits(total_s=FETCH_TIMEOUT_S)
        try:
            answer = await Fetcher(gate, limits=limits, find_secret=find_secret).fetch(FetchRequest(file.url))
        except NanobotError as error:
            raise HttpError(400, f"A picture: {error}", code="unsupported_media", param="messages") from error
        if answer.cut or answer.status != 200 or not answer.content_type.startswith("image/"):
            kind = answer.content_type or "unknown type"
            what = "too large" if answer.cut else f"no picture (status {answer.status}, {kind})"
            text = f"{file.url[:200]} is {what}."
            raise HttpError(400, text, code="unsupported_media", param="messages")
        return replace(file, data=answer.body, content_type=answer.content_type)

    async def _prepare_session(self, request: Request, caller: Credential, record: ApiRequest, prompt: Prompt) -> str:
        """Give a session of its own the client's history; branch a conversation that the client has edited."""
        sessions = self._services.runtime.sessions
        if not prompt.history and (is_temporary(record.session) or "x-openwebui-chat-id" not in request.headers):
            return ""
        session = await asyncio.to_thread(sessions.get_or_create, record.session)
        if is_temporary(record.session):
            if session.message_count == 0:
                await sessions.append(
                    session, *[await self._row(said, caller, record.turn_id) for said in prompt.history]
                )
            return ""
        said, stored = _said(prompt.history), [text for _, text in _turn_starts(session.get_history())]
        if said[max(len(said) - len(stored), 0) :] == stored:
            return ""
        if said != stored[: len(said)]:
            return "session"
        async with sessions.hold(record.session) as session:  # archive it and continue after its first turns
            rows = session.get_history()
            starts = _turn_starts(rows)
            kept = rows[: starts[len(said)][0]] if len(said) < len(starts) else rows
            await asyncio.to_thread(sessions.archive, record.session)
            await sessions.append(await asyncio.to_thread(sessions.get_or_create, record.session), *kept)
        return ""

    async def _row(self, said: ClientMessage, caller: Credential, turn_id: str) -> ChatMessage:
        """A message of the client's history as a row."""
        files = [await self._store(file, caller) for file in said.files]
        media = [file.path for file in files if file.path is not None]
        row: ChatMessage = {
            "role": said.role,
            "content": with_attachments(said.text, media) if media else said.text,
            "turn_id": f"{turn_id}-history",
            "provenance": _provenance(caller),
        }
        if scope := _scope(caller):
            row["scope"] = scope
        if media:
            row["media"] = media
        return row

    async def find(self, caller: Credential, request_id: str) -> Following:
        """Return a request of this caller and what its turn shows. Raises HttpError."""
        record = await self._services.requests.get(request_id)
        if record is not None and may_see(caller, record) and (view := await self.view_of(record)) is not None:
            return Following(record, view)
        raise HttpError(404, "There is no such response, or it is no longer kept.", code="response_not_found")

    async def view_of(self, record: ApiRequest) -> TurnView | None:
        """What a turn shows: running, waiting, or stored. None if it never began."""
        bus, sessions = self._services.runtime.bus, self._services.runtime.sessions
        try:
            view = await self._services.feed.wait_view(
                record.turn_id, lambda: bus.is_open(record.session, record.turn_id)
            )
            if view is None:
                session = await asyncio.to_thread(sessions.read, record.session)
                view = stored_view(session, record.turn_id, Origin.API) if session is not None else None
        except FeedClosedError as error:
            raise stopping() from error
        except StorageError as error:
            log.warning("session %s cannot be read: %s", record.session, error)
            return None
        if view is not None:
            await self._count_usage(view)
        return view

    async def _count_usage(self, view: TurnView) -> None:
        """Set the usage of a turn that has ended: from the ledger if its session was read, or has subagents, whose
        calls so far are added.
        """
        is_spawning = any(part["type"] == "tool" and part["name"] == SpawnTool.name for part in view.parts)
        if view.ended is None or not (is_spawning or view.position < 0):
            return
        turn_id, sessions = view.started.turn_id, set[str]()
        for task in await self._services.runtime.subagents.all_tasks() if is_spawning else ():
            if task.order.turn_id == turn_id or task.order.parent in sessions:  # a subagent's own are newer
                sessions.add(task.session_key)
        usage, cost_usd = await self._services.requests.usage(turn_id, [*sessions])
        view.ended = replace(view.ended, usage=usage, cost_usd=cost_usd)

    async def wait(self, request: Request, following: Following, is_enough: Callable[[], bool | None]) -> None:
        """Wait for the end of a turn, or until `is_enough`, which is called at each change and every PING_S. Raises
        HttpError if it takes too long: the turn goes on, and the client's automatic retry gets its answer.
        """
        timeout_s = self._services.runtime.config.api.timeout

        async def wait() -> None:
            async for _ in self.changes(following.view):
                if is_enough():
                    return

        async def disconnected() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        waiting, leaving = asyncio.ensure_future(wait()), asyncio.ensure_future(disconnected())
        with self.listening(following.request):
            try:
                done, _ = await asyncio.wait((waiting, leaving), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (waiting, leaving):
                    task.cancel()
                await asyncio.gather(waiting, leaving, return_exceptions=True)
            if waiting in done:
                return
            if leaving in done:
                raise HttpError(499, "The client has left.")
            self.detach(following.request)
        raise HttpError(
            504,
            f"No answer within {timeout_s:g} s (api.timeout). The turn goes on: send the request again, or stream it.",
            code="timeout",
            headers={"x-should-retry": "true", "Location": f"/v1/responses/resp_{following.request.id}"},
        )

    async def changes(self, view: TurnView) -> AsyncIterator[bool]:
        """Yield True now and after each change, and False after PING_S without one, until the turn ends."""
        version = -1
        while True:
            if version != view.version:
                version = view.version
                await self._count_usage(view)
                yield True
                if view.ended is not None and version == view.version:
                    return
                continue
            try:
                async with asyncio.timeout(sse.PING_S):
                    await view.wait(version)
            except TimeoutError:
                yield False

    @contextmanager
    def listening(self, record: ApiRequest) -> Iterator[None]:
        """Keep a turn running. It is stopped soon after its last listener has left, unless it is detached."""
        self._listeners[record.turn_id] += 1
        try:
            yield
        finally:
            self._listeners[record.turn_id] -= 1
            if not self._listeners[record.turn_id]:
                del self._listeners[record.turn_id]
                asyncio.get_running_loop().call_later(ABANDONED_S, self._stop_abandoned, record)

    def detach(self, record: ApiRequest) -> None:
        """Let a turn go on although nobody listens."""
        self._detached.add(record.turn_id)

    def _stop_abandoned(self, record: ApiRequest) -> None:
        view = self._services.feed.view(record.turn_id)
        if view is None or view.ended is not None:
            self._detached.discard(record.turn_id)
        elif record.turn_id not in self._listeners and record.turn_id not in self._detached:
            self._stopping = asyncio.ensure_future(
                self._services.runtime.loop.stop_turn(record.session, record.turn_id)
            )

    async def _sweep(self) -> None:
        runtime = self._services.runtime
        if (now := runtime.clock.monotonic()) - self._swept_at < SWEEP_S:
            return
        self._swept_at = now
        running = {view.started.turn_id for view in self._services.feed.views()}
        self._detached &= running
        for session in await self._services.requests.pop_expired():
            if next(self._services.feed.views(session), None) is None:
                await asyncio.to_thread(runtime.sessions.delete, session)


def session_key(caller: Credential, name: str) -> str:
    return f"api:{caller.name}:{name}" if caller.name else f"api:{name}"


def may_see(caller: Credential, record: ApiRequest) -> bool:
    """Whether a caller may see a request: an owner all, a guest those of its own key."""
    return caller.role is HttpRole.OWNER or caller.name == record.key_name


def _scope(caller: Credential) -> str:
    """The chat whose memory a guest's turns read: that of the person it speaks for, else one of the key. Empty for an
    owner.
    """
    return "" if caller.role is HttpRole.OWNER else caller.person or f"api:{caller.name}"


def _provenance(caller: Credential) -> Provenance:
    return Provenance.OWNER if caller.role is HttpRole.OWNER else Provenance.PERSON


def stopping() -> HttpError:
    """The error while nothing is accepted. OpenAI's clients try again by themselves."""
    return HttpError(503, "nanobot is starting or stopping.", code="starting", headers={"Retry-After": "2"})


def _said(history: list[ClientMessage]) -> list[str]:
    """What the person has said, neighbouring messages as one, as they are stored."""
    groups = groupby(history, key=lambda said: said.role)
    return ["\n\n".join(said.text for said in group if said.text) for role, group in groups if role == "user"]


def _turn_starts(rows: list[ChatMessage]) -> list[tuple[int, str]]:
    """The indexes of the messages of people, with their texts."""
    starts = []
    for index, row in enumerate(rows):
        if row["role"] == "user" and not is_synthetic(row):
            text = text_of(row["content"])
            starts.append((index, text.partition("\n[image: ")[0].partition("\n[file: ")[0]))
    return starts


def _hash(request: Request, body: bytes) -> str:
    """What makes a request the same: its path and its body, however it is streamed."""
    try:
        content = json.loads(body)
        content.pop("stream", None)
        content.pop("stream_options", None)
        body = json.dumps(content, sort_keys=True).encode()
    except (ValueError, AttributeError):
        pass
    return hashlib.sha256(request.url.path.encode() + b"\n" + body).hexdigest()


class ApiView(View):
    """Some endpoints of the API."""

    requires = Requires.API_KEY

    def __init__(self, services: ApiServices, turns: ApiTurns) -> None:
        self.services = services
        self.runtime = services.runtime
        self.turns = turns
