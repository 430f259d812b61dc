"""Speech to text with Groq, OpenAI and other services that offer the same API.

Follows the public references (platform.openai.com/docs/api-reference/audio, console.groq.com/docs/speech-to-text): a
form with the recording, the model and optionally the language. Endpoints detect the format by file name, so the name
that is sent matches the content.
"""

import asyncio
import json
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from nanobot.config.provider_table import ProviderSpec, find_by_name, plain_name
from nanobot.errors import ProviderError
from nanobot.net.http import connection_error_reason, is_loopback, load_httpx
from nanobot.net.pools import HttpPools
from nanobot.providers.error_patterns import error_of, parse_error_response
from nanobot.providers.errors import (
    CallTarget,
    ConnectionFailedError,
    ContentFilteredError,
    ContextOverflowError,
    InvalidRequestError,
    MalformedResponseError,
    ModelCallError,
    ModelNotFoundError,
    ProviderTimeoutError,
    TryElsewhere,
)
from nanobot.security.secrets import redact, request_secrets
from nanobot.utils.text import escape_brackets, human_size

if TYPE_CHECKING:
    import httpx

    from nanobot.config.schema import Config

MAX_BYTES = 25 * 1024 * 1024
"""The endpoints' upload limit."""
_MAX_RESPONSE_BYTES = 4 * 1024 * 1024
_DEFAULT = "groq"
_ALTERNATIVE = "openai"
_MODELS = {"groq": "whisper-large-v3-turbo", "openai": "gpt-4o-mini-transcribe"}
_FALLBACK_MODEL = "whisper-1"

_UPLOAD_EXTENSIONS = {
    ".flac": "flac", ".mp3": "mp3", ".mpga": "mp3", ".mpeg": "mp3", ".mp4": "mp4", ".m4a": "m4a", ".wav": "wav",
    ".webm": "webm", ".ogg": "ogg", ".oga": "ogg", ".opus": "ogg",
}  # fmt: skip
_MIME = {
    "flac": "audio/flac", "mp3": "audio/mpeg", "mp4": "audio/mp4", "m4a": "audio/mp4", "wav": "audio/wav",
    "webm": "audio/webm", "ogg": "audio/ogg",
}  # fmt: skip
_MAGIC = (
    (re.compile(rb"OggS"), "ogg"),
    (re.compile(rb"RIFF....WAVE", re.DOTALL), "wav"),
    (re.compile(rb"fLaC"), "flac"),
    (re.compile(rb"ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb]"), "mp3"),
    (re.compile(rb"....ftyp", re.DOTALL), "m4a"),
    (re.compile(rb"\x1a\x45\xdf\xa3"), "webm"),
)
"""First bytes of recordings, for files whose name does not tell the format."""
_AUDIO = frozenset({*_UPLOAD_EXTENSIONS, ".aac", ".amr", ".silk", ".wma"}) - {".mp4", ".mpeg", ".webm"}
"""Extensions that mark an attachment as audio, not video."""


class UnusableRecordingError(ProviderError):
    """The recording cannot be sent, or has no speech. The text says what to do."""


class TranscriptionRefusedError(ModelCallError):
    """The service rejected the recording."""

    next_step = "Send a shorter recording as mp3 or ogg, or set channels.transcriptionProvider to another provider."


_CHAT_ERRORS = (InvalidRequestError, ContextOverflowError, ContentFilteredError, ModelNotFoundError)
"""Errors whose advice is written for chat models and would be wrong here."""


@dataclass(frozen=True, slots=True)
class TranscriptionEndpoint:
    """Address and settings of a transcription service."""

    provider: str
    api_base: str
    model: str
    api_key: str | None = None
    language: str | None = None
    config_key: str = ""
    extra_headers: Mapping[str, str] = field(default_factory=dict)
    proxy: str | None = None
    connect_s: float = 10
    total_s: float = 180
    pauses_s: Sequence[float] = (1, 2)
    """Seconds before each retry, unless the server asks for another wait."""
    max_pause_s: float = 20

    @property
    def target(self) -> CallTarget:
        return CallTarget(self.provider, self.model, redact(self.api_base, [self.api_key or ""]), self.config_key)


class HttpTranscriber:
    """A service with OpenAI's `audio/transcriptions` endpoint."""

    def __init__(self, endpoint: TranscriptionEndpoint) -> None:
        self._endpoint = endpoint
        self._pools = HttpPools(proxy=endpoint.proxy)

    async def transcribe(self, path: Path) -> str:
        """The spoken text of this file, never empty. Transient failures are retried once for each entry of `pauses_s`.

        Raises ProviderError. Cancelling closes the connection.
        """
        name, data = await asyncio.to_thread(_read_recording, path)
        for pause in (*self._endpoint.pauses_s, None):
            try:
                text = await self._send(name, data)
                break
            except ModelCallError as error:
                wait = pause if error.retry_after_s is None else error.retry_after_s
                final = pause is None or wait is None or wait > self._endpoint.max_pause_s
                if final or not _is_retryable(error):
                    raise
                await asyncio.sleep(wait or 0)
        if not text:
            raise UnusableRecordingError(f"No speech could be heard in {path.name}.")
        return text

    async def close(self) -> None:
        """Close connections. Called once, after the last call."""
        await self._pools.close()

    async def _send(self, name: str, data: bytes) -> str:
        load_httpx()  # not before the first recording
        import httpx

        endpoint = self._endpoint
        try:
            async with asyncio.timeout(endpoint.total_s) as limit:
                return await self._exchange(name, data)
        except TimeoutError:
            if not limit.expired():
                raise
            raise self._error(ProviderTimeoutError, f"waited {endpoint.total_s:g} s for the text") from None
        except httpx.ConnectTimeout:
            raise self._error(ConnectionFailedError, f"no connection within {endpoint.connect_s:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, ImportError, UnicodeError) as error:
            raise self._error(ConnectionFailedError, connection_error_reason(error)) from None

    async def _exchange(self, name: str, data: bytes) -> str:
        import httpx

        endpoint = self._endpoint
        url = f"{endpoint.api_base.rstrip('/')}/audio/transcriptions"
        fields = {"model": endpoint.model, "response_format": "json"}
        if endpoint.language:
            fields["language"] = endpoint.language
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "nanobot"}
        if endpoint.api_key:
            headers["Authorization"] = f"Bearer {endpoint.api_key}"
        async with self._pools.borrow_client(url) as client:
            try:
                request = client.build_request(
                    "POST",
                    url,
                    data=fields,
                    files={"file": (name, data, _MIME[PurePath(name).suffix[1:]])},
                    headers={**headers, **endpoint.extra_headers},
                    timeout=httpx.Timeout(None, connect=endpoint.connect_s),
                )
            except (TypeError, ValueError) as error:  # a key or header with a character that HTTP does not allow
                problem = f"the request cannot be built: {type(error).__name__}"
                raise self._error(ConnectionFailedError, problem) from None
            response = await client.send(request, stream=True)
            try:
                body = await self._read(response)
            finally:
                await response.aclose()
        if response.status_code != 200:
            raise self._response_error(response, body)
        return self._text(body)

    async def _read(self, response: "httpx.Response") -> bytes:
        body = b""
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > _MAX_RESPONSE_BYTES:
                raise self._error(MalformedResponseError, f"more than {_MAX_RESPONSE_BYTES >> 20} MB of answer")
        return body

    def _response_error(self, response: "httpx.Response", body: bytes) -> ModelCallError:
        status = response.status_code
        if 300 <= status < 400:
            location = response.headers.get("location", "elsewhere")
            return self._error(MalformedResponseError, f"a redirect to {location}, not followed with a key", status)
        error = error_of(parse_error_response(status, body, response.headers), self._endpoint.target, self._secrets())
        if isinstance(error, _CHAT_ERRORS):
            return TranscriptionRefusedError(error.detail, target=error.target, status=status)
        return error

    def _text(self, body: bytes) -> str:
        """The text in a response: JSON, or plain text from servers that return only that."""
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            text = body.decode("utf-8", "replace").strip()
            if text.startswith(("{", "[", "<")) or "\ufffd" in text or "\0" in text:
                raise self._error(MalformedResponseError, f"not JSON: {text[:100]}") from None
            return text
        if isinstance(answer, dict) and isinstance(answer.get("text"), str):
            return str(answer["text"]).strip()
        raise self._error(MalformedResponseError, f"no text in it: {json.dumps(answer)[:100]}")

    def _error(self, kind: type[ModelCallError], detail: str, status: int | None = None) -> ModelCallError:
        return kind(redact(detail, self._secrets()), target=self._endpoint.target, status=status)

    def _secrets(self) -> list[str]:
        return request_secrets(self._endpoint.api_key, self._endpoint.extra_headers)


def _is_retryable(error: ModelCallError) -> bool:
    """Whether a retry may succeed. A timeout is not retried: it has used up the full limit."""
    return error.try_elsewhere is TryElsewhere.OTHER_MODEL and not isinstance(error, ProviderTimeoutError)


def _read_recording(path: Path) -> tuple[str, bytes]:
    """The name to send and the bytes of a recording. Too large a file is rejected unread. Blocking."""
    try:
        state = path.stat()
        size = state.st_size
        if not stat.S_ISREG(state.st_mode):  # reading a pipe or a device might block forever
            raise UnusableRecordingError(f"{path.name} is not a regular file. Send a recording.")
        if size > MAX_BYTES:
            raise UnusableRecordingError(
                f"{path.name} has {human_size(size)}; at most {human_size(MAX_BYTES)} can be transcribed. "
                "Send it in parts, or as mp3 or ogg."
            )
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UnusableRecordingError(f"{path.name} cannot be read: {error.strerror or error}.") from None
    if not 0 < len(data) <= MAX_BYTES:
        problem = "is empty" if not data else "grew while it was read"
        raise UnusableRecordingError(f"{path.name} {problem}. Send it again.")
    kind = _UPLOAD_EXTENSIONS.get(path.suffix.lower()) or next(
        (name for magic, name in _MAGIC if magic.match(data)), None
    )
    if kind is None:
        known = ", ".join(sorted(_MIME))
        raise UnusableRecordingError(f"{path.name} is in no format that can be transcribed. Send one of {known}.")
    return f"{path.stem or 'recording'}.{kind}", data


@dataclass(frozen=True, slots=True)
class ChosenTranscriber:
    """The transcriber, or None; `reason` says why, in a sentence."""

    transcriber: HttpTranscriber | None
    reason: str


def choose_transcriber(
    config: "Config", environ: Mapping[str, str], *, provider: str | None = None, language: str | None = None
) -> ChosenTranscriber:
    """The transcriber that `channels.transcriptionProvider` names; `provider` and `language` are a channel's own
    settings.

    If none is named and only OpenAI has a key, OpenAI replaces Groq. Connections open on first use.
    """
    channels = config.channels
    name = provider or channels.transcription_provider or _DEFAULT
    language = language or channels.transcription_language
    chosen = _endpoint(config, environ, name, language)
    is_explicit = provider or "transcription_provider" in channels.model_fields_set
    if isinstance(chosen, str) and not is_explicit:
        alternative = _endpoint(config, environ, _ALTERNATIVE, language)
        chosen = chosen if isinstance(alternative, str) else alternative
    if isinstance(chosen, str):
        return ChosenTranscriber(None, chosen)
    return ChosenTranscriber(HttpTranscriber(chosen), f"{chosen.provider}, model {chosen.model}")


def _endpoint(
    config: "Config", environ: Mapping[str, str], name: str, language: str | None
) -> TranscriptionEndpoint | str:
    """The endpoint of that provider, or a sentence about what is missing."""
    sections = config.providers.by_name()
    spec = find_by_name(name)
    if spec is None:
        custom = next((known for known in sections if plain_name(known) == plain_name(name)), None)
        if custom is None:
            return f"channels.transcriptionProvider names {name}, which is not a provider. Set it to groq or openai."
        spec = ProviderSpec(custom, custom, needs_key=False)
    section = sections[spec.name]
    base = section.api_base or spec.default_api_base
    if not base or not spec.speaks_chat_completions:
        problem = (
            f"{spec.display_name} offers no transcription" if base else f"providers.{spec.config_key}.apiBase is empty"
        )
        return f"{problem}. Set channels.transcriptionProvider to groq or openai."
    key = section.api_key or spec.env_key(environ)
    if spec.needs_key and not key and not is_loopback(urlsplit(base).hostname or ""):
        variables = f" or {spec.env_keys[0]} in the environment" if spec.env_keys else ""
        return (
            f"There is no key for {spec.display_name}, which transcribes recordings. "
            f"Set providers.{spec.config_key}.apiKey in the config{variables}."
        )
    defaults = TranscriptionEndpoint(spec.name, base, "")
    return TranscriptionEndpoint(
        spec.name,
        base,
        _MODELS.get(spec.name, _FALLBACK_MODEL),
        key or None,
        language or None,
        f"providers.{spec.config_key}.apiKey",
        dict(section.extra_headers or {}),
        section.proxy or None,
        section.connect_timeout_s or defaults.connect_s,
        section.total_timeout_s or defaults.total_s,
    )


def is_recording(path: str) -> bool:
    """Whether an attachment is audio, judged by its extension."""
    return PurePath(path).suffix.lower() in _AUDIO


async def transcribe_media(text: str, media: Sequence[str], config: "Config", environ: Mapping[str, str]) -> str:
    """Append transcriptions of the recordings among the attachments, with the configured service."""
    if not any(map(is_recording, media)):
        return text
    chosen = choose_transcriber(config, environ)
    try:
        return await append_transcriptions(text, media, chosen)
    finally:
        if chosen.transcriber is not None:
            await chosen.transcriber.close()


async def append_transcriptions(text: str, media: Sequence[str], chosen: ChosenTranscriber) -> str:
    """Append `[transcription: ...]` to the text for each recording among the attachments.

    Never raises if a recording cannot be transcribed: the tag then says why, so that the agent can tell the user.
    """
    recordings = [path for path in media if is_recording(path)]
    tags = await asyncio.gather(*(_transcription_tag(Path(path), chosen) for path in recordings))
    return "\n".join([text, *tags] if text.strip() else tags) if tags else text


async def _transcription_tag(path: Path, chosen: ChosenTranscriber) -> str:
    if chosen.transcriber is None:
        return f"[transcription: failed, {escape_brackets(chosen.reason)}]"
    try:
        return f"[transcription: {escape_brackets(await chosen.transcriber.transcribe(path))}]"
    except ProviderError as error:
        return f"[transcription: failed, {escape_brackets(str(error))}]"
