"""One model server: its address, credentials and connections, the time limits of its calls, what it is known to accept,
requests that are answered whole, and typed errors.

Chat, image and transcription models, lists of models and sign-in servers are all reached through this.
"""

import asyncio
import json
import math
import re
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import urlsplit

from nanobot.config.provider_table import ProviderSpec
from nanobot.net.http import HttpError, is_loopback
from nanobot.net.pools import HttpPools
from nanobot.net.urls import parse_server_url
from nanobot.providers.base import call_context
from nanobot.providers.errors import (
    CallTarget,
    ConnectionFailedError,
    MalformedResponseError,
    ModelCallError,
    ProviderTimeoutError,
)
from nanobot.security.secrets import redact, redact_known, request_secrets
from nanobot.utils.files import make_private_folder, write_atomic

if TYPE_CHECKING:
    from nanobot.config.schema import ProviderConfig
    from nanobot.providers.error_patterns import ErrorResponse

T = TypeVar("T")
Facts = frozenset[str]

FALLBACK_FIRST_TOKEN_S = 20.0
"""First-token limit of a standard model while another can be tried; keeps the whole switch below 30 s."""

_REASONING_MODELS = re.compile(
    r"(?<![a-z0-9])(?:o[1-9]|gpt-5(?!-chat)|r1|qwq|reasoner|reasoning|think|thinking|magistral|deep-?research|"
    r"grok-4(?!-fast-non)|gemini-(?:2\.5|3)(?:\.\d+)?-pro)(?![a-z0-9])",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits in seconds for the connection, the first token, each further token, and the whole answer."""

    connect_s: float = 10
    first_token_s: float = 60
    idle_s: float = 60
    total_s: float = 600
    fallback_first_token_s: float = math.inf
    """First-token limit while another model can be tried; the smaller of the two applies."""
    notice_s: float = 15
    """Without a first token for this long, the user is told which model we wait for."""

    @classmethod
    def standard(cls) -> "Timeouts":
        """For a model that starts to answer within seconds."""
        return cls(fallback_first_token_s=FALLBACK_FIRST_TOKEN_S)

    @classmethod
    def reasoning(cls) -> "Timeouts":
        """For a model that may think for minutes without output."""
        return cls(first_token_s=300, idle_s=180, total_s=1800)

    @classmethod
    def local(cls) -> "Timeouts":
        """For a model on this machine, which may read a long prompt for minutes without output."""
        return cls(connect_s=5, first_token_s=600, idle_s=180, total_s=1800)


def timeouts_for(model: str, *, local: bool, reasoning_effort: str | None = None) -> Timeouts:
    """The default limits of a model, for what the config leaves open."""
    if local:
        return Timeouts.local()
    if reasoning_effort is None:
        is_reasoning = _REASONING_MODELS.search(model) is not None
    else:
        is_reasoning = reasoning_effort not in ("none", "minimal")
    return Timeouts.reasoning() if is_reasoning else Timeouts.standard()


class CallLimits:
    """The time limits of one call, counted from construction. A call for a goal has no total limit. `close` it at the
    end.
    """

    def __init__(self, timeouts: Timeouts, target: CallTarget) -> None:
        context, loop = call_context(), asyncio.get_running_loop()
        self._target = target
        self._idle_s = timeouts.idle_s
        self._first_s = timeouts.first_token_s
        if context.has_fallback:
            self._first_s = min(self._first_s, timeouts.fallback_first_token_s)
        self._total_s = math.inf if context.goal else timeouts.total_s
        self._started_at = loop.time()
        limit = f"; timeout after {self._first_s:g} s" if self._first_s < math.inf else ""
        notice = f"Waiting for {target.name} for {timeouts.notice_s:g} s{limit}."
        self._notice_timer = loop.call_later(timeouts.notice_s, context.notify, notice)

    async def wait(self, result: Awaitable[T], *, began: bool) -> T:
        """Wait for the first token, or for the next one once the answer `began`.

        Raises ProviderTimeoutError, and cancels what is awaited, when the limit is reached.
        """
        total = (self._started_at + self._total_s, self._total_s, "end of the answer")
        if began:
            self._notice_timer.cancel()
            due = min((asyncio.get_running_loop().time() + self._idle_s, self._idle_s, "next token"), total)
        else:  # one limit, however many keep-alive bytes arrive
            due = min((self._started_at + self._first_s, self._first_s, "first token"), total)
        due_at, limit_s, waited_for = due
        timeout = asyncio.timeout_at(due_at if due_at < math.inf else None)
        try:
            async with timeout:
                return await result
        except TimeoutError:
            if not timeout.expired():
                raise
            error = ProviderTimeoutError(f"waited {limit_s:g} s for the {waited_for}", target=self._target)
            raise error from None

    def close(self) -> None:
        """End the call. Idempotent."""
        self._notice_timer.cancel()


class CapabilityStore:
    """What endpoints accept, learned from their error responses and stored so that a rejected field is sent only once.

    A fact is `drop FIELD` (the endpoint rejects it; also `drop images`) or `need THING`: `need max_completion_tokens`
    in place of `max_tokens`, `need reasoning_content`, `need merged_users`, `need responses`. It is stored in
    `state/capabilities.json`. An unreadable file counts as empty; a failed write is ignored.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._known: dict[str, Facts] | None = None

    def get(self, api_base: str, model: str) -> Facts:
        if self._known is None:
            self._known = self._load()
        return self._known.get(_key(api_base, model), frozenset())

    def learn(self, api_base: str, model: str, fact: str) -> bool:
        """Add a fact. Return False if it was known already: then retrying would change nothing."""
        before, stored = self.get(api_base, model), self._load()  # another process may have written since
        key = _key(api_base, model)
        self._known = {**(self._known or {}), **stored, key: before | stored.get(key, frozenset()) | {fact}}
        if fact in before:
            return False
        if self._path is not None:
            data = {name: sorted(facts) for name, facts in self._known.items()}
            try:
                make_private_folder(self._path.parent)
                write_atomic(self._path, json.dumps(data, indent=2) + "\n")
            except OSError:
                pass  # this process knows it; the next one learns it again
        return True

    def _load(self) -> dict[str, Facts]:
        try:
            data = json.loads(self._path.read_bytes()) if self._path is not None else {}
            return {name: frozenset(map(str, facts)) for name, facts in data.items()}
        except (OSError, ValueError, AttributeError, TypeError, RecursionError):
            return {}


def _key(api_base: str, model: str) -> str:
    return f"{api_base.rstrip('/')} {model}"


class HttpResponse(NamedTuple):
    """A response that was read whole. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address, credentials, and what all calls to it share."""

    name: str
    api_base: str
    api_key: str | None = field(default=None, repr=False)
    config_key: str = ""
    """The config key that error texts name."""
    extra_headers: Mapping[str, str] = field(default_factory=dict)
    timeouts: Timeouts = field(default_factory=Timeouts)
    pools: HttpPools = field(default_factory=HttpPools)

    @classmethod
    def configured(
        cls, spec: ProviderSpec, section: "ProviderConfig | None", environ: Mapping[str, str], *, total_s: float
    ) -> "Endpoint | None":
        """The endpoint of a provider with its section of the config; None without an address, or without a key that it
        needs.
        """
        base = (section.api_base if section else None) or spec.default_api_base
        key = (section.api_key if section else None) or spec.env_key(environ)
        if not base or (spec.needs_key and not key and not is_loopback_url(base)):
            return None
        return cls(
            spec.name,
            base.rstrip("/"),
            key or None,
            f"providers.{spec.config_key}.apiKey",
            dict(section.extra_headers or {}) if section else {},
            Timeouts(
                connect_s=(section and section.connect_timeout_s) or 10,
                total_s=(section and section.total_timeout_s) or total_s,
            ),
            HttpPools(proxy=(section.proxy if section else None) or None),
        )

    def target(self, model: str = "") -> CallTarget:
        return CallTarget(self.name, model, redact(self.api_base, [self.api_key or ""]), self.config_key)

    @property
    def bearer(self) -> dict[str, str]:
        """The key as most servers want it."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def error(
        self, kind: type[ModelCallError], detail: str = "", *, model: str = "", status: int | None = None
    ) -> ModelCallError:
        """A typed error of a call. Secrets are redacted, even where the server echoed one."""
        detail = redact(redact_known(detail), request_secrets(self.api_key, self.extra_headers))
        return kind(detail, target=self.target(model), status=status)

    def error_of(self, response: "ErrorResponse", model: str = "") -> ModelCallError:
        """The typed error that a response means."""
        from nanobot.providers.error_patterns import kind_of  # with the first failure

        error = self.error(kind_of(response), response.message, model=model, status=response.status or None)
        error.retry_after_s = response.retry_after_s
        return error

    async def fetch(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        content: bytes = b"",
        *,
        max_bytes: int = 4 << 20,
        timeout_s: float | None = None,
        model: str = "",
    ) -> HttpResponse:
        """Send a request and return the whole response, whatever its status. Cancelling closes the connection.

        Raises a ModelCallError if there is none in time (by default `timeouts.total_s`), or if it is too large.
        """
        limit_s = self.timeouts.total_s if timeout_s is None else timeout_s
        all_headers = {"Accept": "application/json", "User-Agent": "nanobot", **headers, **self.extra_headers}
        body = bytearray()
        try:
            async with asyncio.timeout(limit_s) as timeout:
                connect_s = min(self.timeouts.connect_s, limit_s)
                connection = await self.pools.connect(parse_server_url(url), connect_s)
                try:
                    await connection.request(method, all_headers, content)
                    while chunk := await connection.read():
                        body += chunk
                        if len(body) > max_bytes:
                            detail = f"more than {max_bytes >> 20} MB of answer"
                            raise self.error(MalformedResponseError, detail, model=model)
                finally:
                    await self.pools.release(connection)
        except TimeoutError:
            if not timeout.expired():
                raise
            raise self.error(ProviderTimeoutError, f"waited {limit_s:g} s for the answer", model=model) from None
        except (HttpError, ValueError) as error:
            raise self.error(ConnectionFailedError, str(error), model=model) from None
        return HttpResponse(connection.status, connection.headers, bytes(body))

    async def post(
        self, url: str, headers: Mapping[str, str], content: bytes, *, max_bytes: int, model: str = ""
    ) -> bytes:
        """Send a request, for services that are rarely asked: all connections are closed then. Return the body of a
        response with status 200; raises a ModelCallError for anything else.
        """
        try:
            status, head, body = await self.fetch("POST", url, headers, content, max_bytes=max_bytes, model=model)
        finally:
            await self.pools.close()
        if status != 200:
            from nanobot.providers.error_patterns import parse_error_response

            raise self.error_of(parse_error_response(status, body, head), model)
        return body


def is_loopback_url(url: str | None) -> bool:
    return bool(url) and is_loopback(urlsplit(url or "").hostname or "")
