"""Speech to text, behind a port: `Transcriber`. Groq, OpenAI and whoever else speaks their transcription API.

Follows the public references (platform.openai.com/docs/api-reference/audio, console.groq.com/docs/speech-to-text): a
form with the recording, the model and perhaps the language. Endpoints go by the name of the file, so what is sent is
named for what it is.
"""

import asyncio
import json
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from nanobot.config.provider_table import ProviderSpec, find_by_name, plain_name
from nanobot.errors import ProviderError
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
from nanobot.providers.failures import error_of, read_refusal
from nanobot.security.secrets import redact, secrets_in
from nanobot.utils.clients import load_httpx, reason_of
from nanobot.utils.http import HttpPools, is_loopback
from nanobot.utils.text import human_size, in_a_tag

if TYPE_CHECKING:
    import httpx

    from nanobot.config.schema import Config

MAX_BYTES = 25 * 1024 * 1024
"""What the endpoints take at most."""
_LARGEST_ANSWER = 4 * 1024 * 1024
_DEFAULT = "groq"
_SPARE = "openai"
_MODELS = {"groq": "whisper-large-v3-turbo", "openai": "gpt-4o-mini-transcribe"}
_ANY_MODEL = "whisper-1"

_SENT_AS = {
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
"""How recordings begin, for those whose name does not tell what they are."""
_AUDIO = frozenset({*_SENT_AS, ".aac", ".amr", ".silk", ".wma"}) - {".mp4", ".mpeg", ".webm"}
"""Names by which an attachment is known to be somebody's voice or music, and no film."""


class UnusableRecordingError(ProviderError):
    """The recording cannot be sent, or nothing can be heard in it. The text says what to do."""


class TranscriptionRefusedError(ModelCallError):
    """The recording was not taken."""

    next_step = "Send a shorter recording as mp3 or ogg, or set channels.transcriptionProvider to another provider."


_REFUSALS = (InvalidRequestError, ContextOverflowError, ContentFilteredError, ModelNotFoundError)
"""What the advice for chat models would be wrong for."""


class Transcriber(Protocol):
    """Turns recordings into text."""

    async def transcribe(self, path: Path) -> str:
        """What is said in this file: never empty. Raises ProviderError; cancelling closes the connection."""
        ...

    async def close(self) -> None:
        """Let go of connections. Called once, after the last call."""
        ...


@dataclass(frozen=True, slots=True)
class TranscriptionEndpoint:
    """Where recordings go, and as what."""

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
    """How long to wait before each further try, where the server does not say it."""
    longest_pause_s: float = 20

    @property
    def target(self) -> CallTarget:
        """Who is asked, for a person to read."""
        return CallTarget(self.provider, self.model, redact(self.api_base, [self.api_key or ""]), self.config_key)


class HttpTranscriber:
    """An endpoint that speaks OpenAI's `audio/transcriptions`."""

    def __init__(self, endpoint: TranscriptionEndpoint, pools: HttpPools | None = None) -> None:
        self._endpoint = endpoint
        self._pools = pools or HttpPools(proxy=endpoint.proxy)

    async def transcribe(self, path: Path) -> str:
        """What is said in this file. What may be over in a moment is tried again, as often as the endpoint says."""
        name, data = await asyncio.to_thread(_recording, path)
        for pause in (*self._endpoint.pauses_s, None):
            try:
                text = await self._ask(name, data)
                break
            except ModelCallError as error:
                wait = pause if error.retry_after_s is None else error.retry_after_s
                final = pause is None or wait is None or wait > self._endpoint.longest_pause_s
                if final or not _may_pass(error):
                    raise
                await asyncio.sleep(wait or 0)
        if not text:
            raise UnusableRecordingError(f"No speech could be heard in {path.name}.")
        return text

    async def close(self) -> None:
        """Close idle connections."""
        await self._pools.close()

    async def _ask(self, name: str, data: bytes) -> str:
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
            raise self._error(ConnectionFailedError, reason_of(error)) from None

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
        async with self._pools.lend(url) as client:
            try:
                request = client.build_request(
                    "POST",
                    url,
                    data=fields,
                    files={"file": (name, data, _MIME[PurePath(name).suffix[1:]])},
                    headers={**headers, **endpoint.extra_headers},
                    timeout=httpx.Timeout(None, connect=endpoint.connect_s),
                )
            except (TypeError, ValueError) as error:  # a key or a header with a character that HTTP does not carry
                problem = f"the request cannot be built: {type(error).__name__}"
                raise self._error(ConnectionFailedError, problem) from None
            response = await client.send(request, stream=True)
            try:
                body = await self._read(response)
            finally:
                await response.aclose()
        if response.status_code != 200:
            raise self._refused(response, body)
        return self._text(body)

    async def _read(self, response: "httpx.Response") -> bytes:
        body = b""
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > _LARGEST_ANSWER:
                raise self._error(MalformedResponseError, f"more than {_LARGEST_ANSWER >> 20} MB of answer")
        return body

    def _refused(self, response: "httpx.Response", body: bytes) -> ModelCallError:
        status = response.status_code
        if 300 <= status < 400:
            place = response.headers.get("location", "elsewhere")
            return self._error(MalformedResponseError, f"a redirect to {place}, not followed with a key", status)
        error = error_of(read_refusal(status, body, response.headers), self._endpoint.target, self._secrets())
        if isinstance(error, _REFUSALS):
            return TranscriptionRefusedError(error.detail, target=error.target, status=status)
        return error

    def _text(self, body: bytes) -> str:
        """The words in an answer: JSON, or plain text from servers that know nothing else."""
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            said = body.decode("utf-8", "replace").strip()
            if said.startswith(("{", "[", "<")) or "\ufffd" in said or "\0" in said:
                raise self._error(MalformedResponseError, f"not JSON: {said[:100]}") from None
            return said
        if isinstance(answer, dict) and isinstance(answer.get("text"), str):
            return str(answer["text"]).strip()
        raise self._error(MalformedResponseError, f"no text in it: {json.dumps(answer)[:100]}")

    def _error(self, kind: type[ModelCallError], detail: str, status: int | None = None) -> ModelCallError:
        return kind(redact(detail, self._secrets()), target=self._endpoint.target, status=status)

    def _secrets(self) -> list[str]:
        return secrets_in(self._endpoint.api_key, self._endpoint.extra_headers)


def _may_pass(error: ModelCallError) -> bool:
    """Whether the same again may go well. Whoever had all the time there is does not get it three times."""
    return error.try_elsewhere is TryElsewhere.OTHER_MODEL and not isinstance(error, ProviderTimeoutError)


def _recording(path: Path) -> tuple[str, bytes]:
    """The name it is sent under, and its bytes. Too large a file is refused unread. Blocking."""
    try:
        state = path.stat()
        size = state.st_size
        if not stat.S_ISREG(state.st_mode):  # a pipe or a device might keep us for ever
            raise UnusableRecordingError(f"{path.name} is no file. Send a recording.")
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
    kind = _SENT_AS.get(path.suffix.lower()) or next((name for magic, name in _MAGIC if magic.match(data)), None)
    if kind is None:
        known = ", ".join(sorted(_MIME))
        raise UnusableRecordingError(f"{path.name} is in no format that can be transcribed. Send one of {known}.")
    return f"{path.stem or 'recording'}.{kind}", data


@dataclass(frozen=True, slots=True)
class ChosenTranscriber:
    """Who turns recordings into text, or None; and why, in a sentence."""

    transcriber: Transcriber | None
    reason: str


def choose_transcriber(
    config: "Config", environ: Mapping[str, str], *, provider: str | None = None, language: str | None = None
) -> ChosenTranscriber:
    """The transcriber that `channels.transcriptionProvider` names; `provider` and `language` are a channel's own word.

    Where nobody named one, OpenAI stands in for Groq if only OpenAI has a key. Nothing is opened before the first use.
    """
    channels = config.channels
    name = provider or channels.transcription_provider or _DEFAULT
    language = language or channels.transcription_language
    chosen = _endpoint(config, environ, name, language)
    named = provider or "transcription_provider" in channels.model_fields_set
    if isinstance(chosen, str) and not named:
        spare = _endpoint(config, environ, _SPARE, language)
        chosen = chosen if isinstance(spare, str) else spare
    if isinstance(chosen, str):
        return ChosenTranscriber(None, chosen)
    return ChosenTranscriber(HttpTranscriber(chosen), f"{chosen.provider}, model {chosen.model}")


def _endpoint(
    config: "Config", environ: Mapping[str, str], name: str, language: str | None
) -> TranscriptionEndpoint | str:
    """The endpoint of that name, or what is missing for it."""
    sections = config.providers.by_name()
    spec = find_by_name(name)
    if spec is None:
        own = next((known for known in sections if plain_name(known) == plain_name(name)), None)
        if own is None:
            return f"channels.transcriptionProvider names {name}, which is no provider. Set it to groq or openai."
        spec = ProviderSpec(own, own, needs_key=False)
    section = sections[spec.name]
    base = section.api_base or spec.default_api_base
    if not base or not spec.speaks_chat_completions:
        problem = (
            f"{spec.display_name} transcribes nothing" if base else f"providers.{spec.config_key}.apiBase is empty"
        )
        return f"{problem}. Set channels.transcriptionProvider to groq or openai."
    key = section.api_key or spec.key_in(environ)
    if spec.needs_key and not key and not is_loopback(urlsplit(base).hostname or ""):
        variables = f" or {spec.env_keys[0]} in the environment" if spec.env_keys else ""
        return (
            f"There is no key for {spec.display_name}, which transcribes recordings. "
            f"Set providers.{spec.config_key}.apiKey in the config{variables}."
        )
    usual = TranscriptionEndpoint(spec.name, base, "")
    return TranscriptionEndpoint(
        spec.name,
        base,
        _MODELS.get(spec.name, _ANY_MODEL),
        key or None,
        language or None,
        f"providers.{spec.config_key}.apiKey",
        dict(section.extra_headers or {}),
        section.proxy or None,
        section.connect_timeout_s or usual.connect_s,
        section.total_timeout_s or usual.total_s,
    )


def is_recording(path: str) -> bool:
    """Whether an attachment is sound, by its name."""
    return PurePath(path).suffix.lower() in _AUDIO


async def with_transcriptions(text: str, media: Sequence[str], chosen: ChosenTranscriber) -> str:
    """The person's text, and behind it `[transcription: ...]` for each recording among the attachments.

    Never raises for a recording that cannot be transcribed: then the tag says why, and the agent can say it.
    """
    recordings = [path for path in media if is_recording(path)]
    tags = await asyncio.gather(*(_tag(Path(path), chosen) for path in recordings))
    return "\n".join([text, *tags] if text.strip() else tags) if tags else text


async def _tag(path: Path, chosen: ChosenTranscriber) -> str:
    if chosen.transcriber is None:
        return f"[transcription: failed, {in_a_tag(chosen.reason)}]"
    try:
        return f"[transcription: {in_a_tag(await chosen.transcriber.transcribe(path))}]"
    except ProviderError as error:
        return f"[transcription: failed, {in_a_tag(str(error))}]"
