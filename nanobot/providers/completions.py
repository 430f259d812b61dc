"""One call to an endpoint that speaks OpenAI chat completions: a request, mended where the server asks, and an answer.

Follows the public reference (platform.openai.com/docs/api-reference/chat) and what its many speakers do differently:
`wire` makes the request, `answer` reads what comes, `failures` what is refused, `capabilities` remembers.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from nanobot.errors import ProviderError
from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.providers.answer import Answer
from nanobot.providers.base import Delta, Finished
from nanobot.providers.capabilities import CapabilityStore, Learned
from nanobot.providers.errors import (
    CallTarget,
    ConnectionFailedError,
    ContentFilteredError,
    MalformedResponseError,
    ModelCallError,
    StreamCutError,
)
from nanobot.providers.failures import Refusal, error_of, mend_for, read_refusal, refusal_of
from nanobot.providers.limits import CallLimits, Timeouts
from nanobot.providers.sse import EventTooLongError, SseParser
from nanobot.providers.wire import Dialect, ToolsEncoder, has_images, request_body, wire_messages
from nanobot.security.secrets import redact, secrets_in
from nanobot.utils.http import HttpPools, load_httpx

if TYPE_CHECKING:
    import httpx

LARGEST_ANSWER = 64 * 1024 * 1024
_MENDS = 6
"""How many fields a server may find fault with before we believe that it is not about fields."""
_THINKERS = ("deepseek", "kimi", "moonshot", "mimo")
"""Names of models that want their thinking back beside their tool calls."""


Mended = Callable[[ProviderError, str, float], None]
"""Told of a request that was refused and is sent again with less: how it failed, its model, the seconds it took."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a call goes, and all that is the same for each."""

    name: str
    api_base: str
    api_key: str | None = None
    config_key: str = ""
    extra_headers: Mapping[str, str] = field(default_factory=dict)
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    timeouts: Timeouts = field(default_factory=Timeouts)
    reasoning_effort: str | None = None
    returns_reasoning: bool | None = None
    """Whether thinking goes back with tool calls; None decides by the model's name."""
    capabilities: CapabilityStore = field(default_factory=CapabilityStore)
    pools: HttpPools = field(default_factory=HttpPools)
    tools: ToolsEncoder = field(default_factory=ToolsEncoder)

    def target(self, model: str) -> CallTarget:
        """Who is asked, for a person to read."""
        return CallTarget(self.name, model, redact(self.api_base, [self.api_key or ""]), self.config_key)


class Call:
    """One call: its request, mended as often as the server asks for it, and its answer."""

    def __init__(
        self,
        endpoint: Endpoint,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema],
        model: str,
        max_tokens: int,
        temperature: float,
        mended: Mended | None = None,
    ) -> None:
        """`mended` is told of each request that was refused before the one that counts."""
        self._endpoint = endpoint
        self._mended = mended
        self._messages = messages
        self._tools = tools
        self._model = model
        self._sampling = {"max_tokens": max_tokens, "temperature": temperature}
        self._timeouts = endpoint.timeouts
        self._target = endpoint.target(model)
        self._limits = CallLimits(endpoint.timeouts, self._target)

    async def run(self) -> AsyncIterator[Delta]:
        """Ask, and ask again with less while the server names a field that it does not take."""
        for attempt in range(_MENDS + 1):
            body, sent = await self._request()
            started = time.monotonic()
            try:
                async with aclosing(cast("Any", self._ask(body))) as deltas:
                    async for delta in deltas:
                        yield delta
                return
            except _RefusedError as refused:
                if attempt == _MENDS or not self._mend(refused, sent):
                    raise refused.error from None
                if self._mended is not None:
                    self._mended(refused.error, self._model, time.monotonic() - started)

    async def _request(self) -> tuple[bytes, list[str]]:
        """The body, and the names of what may be left out of it."""
        endpoint = self._endpoint
        learned = endpoint.capabilities.get(endpoint.api_base, self._model)
        fields = {
            "model": self._model,
            **self._sampling,
            "reasoning_effort": endpoint.reasoning_effort,
            "stream": True,
            "stream_options": {"include_usage": True},
            **endpoint.extra_body,
        }
        fields = {
            learned.renamed.get(name, name): value
            for name, value in fields.items()
            if value is not None and name not in learned.dropped
        }
        if "stream" not in fields:
            fields.pop("stream_options", None)
        dialect = self._dialect(learned)
        with_pictures = dialect.images and has_images(self._messages)
        messages = (
            await asyncio.to_thread(wire_messages, self._messages, dialect)
            if with_pictures
            else wire_messages(self._messages, dialect)
        )
        tools = endpoint.tools.encode(self._tools) if self._tools and "tools" not in learned.dropped else None
        sent = [name for name in fields if name != "model"]
        sent += ["images"] * with_pictures + ["reasoning_content"] * dialect.reasoning + ["tools"] * (tools is not None)
        return request_body(fields, tools, messages), sent

    def _dialect(self, learned: Learned) -> Dialect:
        wanted = self._endpoint.returns_reasoning
        words = f"{self._model} {self._endpoint.api_base}".lower()
        if wanted is None:
            wanted = any(word in words for word in _THINKERS)
        return Dialect(
            reasoning=(wanted or "reasoning_content" in learned.needs) and "reasoning_content" not in learned.dropped,
            extra_content="gemini" in words or "googleapis" in words,
            images="images" not in learned.dropped,
            merge_users="merged_users" in learned.needs,
        )

    def _mend(self, refused: "_RefusedError", sent: list[str]) -> bool:
        """Learn from the refusal. False when there is nothing to learn."""
        mend = mend_for(refused.refusal, sent)
        if mend is None:
            return False
        store = self._endpoint.capabilities
        return store.learn(self._endpoint.api_base, self._model, drop=mend.drop, rename=mend.rename, need=mend.need)

    async def _ask(self, body: bytes) -> AsyncIterator[Delta]:
        load_httpx()  # not before the first request
        import httpx

        url = f"{self._endpoint.api_base}/chat/completions"
        try:
            urlsplit(url)
        except ValueError as error:
            raise self._error(ConnectionFailedError, str(error)) from None
        try:
            async with aclosing(cast("Any", self._exchange(url, body))) as deltas:
                async for delta in deltas:
                    yield delta
        except httpx.ConnectTimeout:
            raise self._error(ConnectionFailedError, f"no connection within {self._timeouts.connect_s:g} s") from None
        except httpx.ConnectError as error:
            raise self._error(ConnectionFailedError, _reason(error)) from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.ProxyError, ImportError, UnicodeError) as error:
            raise self._error(ConnectionFailedError, _reason(error)) from None
        except httpx.DecodingError as error:
            raise self._error(MalformedResponseError, _reason(error)) from None
        except httpx.TransportError as error:  # before the first byte of an answer; later ones are a cut stream
            raise self._error(ConnectionFailedError, _reason(error)) from None

    async def _exchange(self, url: str, body: bytes) -> AsyncIterator[Delta]:
        import httpx

        timeout = httpx.Timeout(None, connect=self._timeouts.connect_s)
        async with AsyncExitStack() as connection:
            client = await connection.enter_async_context(self._endpoint.pools.lend(url))
            try:
                request = client.build_request("POST", url, content=body, headers=self._headers(), timeout=timeout)
            except (TypeError, ValueError) as error:  # a key or a header with a character that HTTP does not carry
                problem = f"the request cannot be built: {type(error).__name__}"
                raise self._error(ConnectionFailedError, problem) from None
            async with self._limits.next_sign(began=False):
                response = await client.send(request, stream=True)
            connection.push_async_callback(response.aclose)
            if response.status_code != 200:
                raise await self._refused(response)
            async with aclosing(cast("Any", self._deltas(response.aiter_bytes(), connection))) as deltas:
                async for delta in deltas:
                    yield delta

    def _headers(self) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "nanobot",
        }
        if self._endpoint.api_key:
            headers["Authorization"] = f"Bearer {self._endpoint.api_key}"
        return {**headers, **self._endpoint.extra_headers}

    async def _refused(self, response: "httpx.Response") -> "ModelCallError | _RefusedError":
        body = b""
        try:
            async with asyncio.timeout(self._timeouts.idle_s):
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > 256 * 1024:
                        break
        except Exception:  # noqa: S110 the status is known; what else the server would have said is not worth a failure
            pass
        if 300 <= response.status_code < 400:
            place = response.headers.get("location", "elsewhere")
            return self._error(
                MalformedResponseError, f"a redirect to {place}, not followed with a key", response.status_code
            )
        refusal = read_refusal(response.status_code, body, response.headers)
        return _RefusedError(refusal, error_of(refusal, self._target, self._secrets()))

    async def _deltas(self, source: AsyncIterator[bytes], connection: AsyncExitStack) -> AsyncIterator[Delta]:
        """Read the body as a stream of events, or as one plain answer where the server ignored `stream`."""
        answer = Answer(of=self._endpoint.name)
        parser = SseParser()
        plain: list[bytes] | None = None
        opened = False
        size = 0
        done = False
        async with aclosing(cast("Any", self._chunks(source, answer))) as chunks:
            async for chunk in chunks:
                size += len(chunk)
                if size > LARGEST_ANSWER:
                    raise self._error(MalformedResponseError, f"more than {LARGEST_ANSWER >> 20} MB without an end")
                if not opened:
                    first = chunk.lstrip(b"\xef\xbb\xbf \r\n\t")[:1]
                    if not first:
                        continue
                    opened = True
                    plain = [] if first in b"{[<" else None
                if plain is not None:
                    plain.append(chunk)
                    continue
                try:
                    events = parser.feed(chunk)
                except EventTooLongError as error:
                    raise self._error(MalformedResponseError, str(error)) from None
                for data in events:
                    for delta in self._event(data, answer):
                        yield delta
                    done = done or data.strip() == b"[DONE]"
                if done:
                    await self._endpoint.pools.let_go(source, connection.pop_all())
                    break
        if plain is not None:
            for delta in self._plain(b"".join(plain), answer):
                yield delta
        elif not done:
            for data in parser.end():
                for delta in self._event(data, answer):
                    yield delta
        deltas, finished = self._end(answer, done)
        for delta in deltas:
            yield delta
        yield finished

    async def _chunks(self, source: AsyncIterator[bytes], answer: Answer) -> AsyncIterator[bytes]:
        import httpx

        while True:
            try:
                async with self._limits.next_sign(began=answer.began):
                    chunk = await anext(source, None)
            except (httpx.ReadError, httpx.RemoteProtocolError) as error:
                if answer.finished:  # all is said; only the good-bye is missing
                    return
                raise self._error(StreamCutError, _reason(error)) from None
            if chunk is None:
                return
            yield chunk

    def _event(self, data: bytes, answer: Answer) -> list[Delta]:
        """One event. A line that is not JSON is passed over: what is missing then shows at the end."""
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            return []
        if not isinstance(chunk, dict):
            return []
        if chunk.get("error") and not chunk.get("choices"):
            raise self._inside(chunk)
        return answer.feed(chunk)

    def _plain(self, body: bytes, answer: Answer) -> list[Delta]:
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            said = read_refusal(200, body).message
            if body.lstrip().startswith(b"{") and not body.rstrip().endswith(b"}"):
                raise self._error(StreamCutError, "the answer is not whole") from None
            raise self._error(MalformedResponseError, f"not JSON: {said}") from None
        if isinstance(data, dict) and data.get("error") and not data.get("choices"):
            raise self._inside(data)
        if not isinstance(data, dict) or not data.get("choices"):
            raise self._error(MalformedResponseError, f"no choices in it: {json.dumps(data)[:200]}")
        deltas = answer.feed(data)
        answer.plain = True
        return deltas

    def _inside(self, data: dict[str, Any]) -> "ModelCallError | _RefusedError":
        """An error that came with status 200."""
        refusal = refusal_of(data)
        return error_of(refusal, self._target, self._secrets())

    def _end(self, answer: Answer, done: bool) -> tuple[list[Delta], Finished]:
        if not answer.began:
            raise self._error(MalformedResponseError, "an empty answer")
        if not (answer.finished or done or answer.plain):
            raise self._error(StreamCutError, "it ended without a finish_reason")
        deltas, response = answer.end()
        if response.finish_reason == "content_filter" and not response.content and not response.tool_calls:
            raise self._error(ContentFilteredError, "")
        return deltas, Finished(response)

    def _error(self, kind: type[ModelCallError], detail: str, status: int | None = None) -> ModelCallError:
        return kind(redact(detail, self._secrets()), target=self._target, status=status)

    def _secrets(self) -> list[str]:
        return secrets_in(self._endpoint.api_key, self._endpoint.extra_headers)


class _RefusedError(Exception):
    """A status other than 200: what was said, and the error it becomes if nothing can be mended."""

    def __init__(self, refusal: Refusal, error: ModelCallError) -> None:
        super().__init__(str(error))
        self.refusal = refusal
        self.error = error


def _reason(error: BaseException) -> str:
    """Why a connection failed: the words of the system, which the library keeps two causes down."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and len(causes) < 6:
        causes.append(cause)
    said = next((str(cause) for cause in reversed(causes) if isinstance(cause, OSError) and str(cause)), "")
    return said or str(error) or type(error).__name__
