"""Speech to text with Groq, OpenAI and other services that offer the same API.

Follows the public references (platform.openai.com/docs/api-reference/audio, console.groq.com/docs/speech-to-text): a
form with the recording, the model and optionally the language. Endpoints detect the format by file name, so the name
that is sent matches the content.
"""

import asyncio
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from nanobot.config.provider_table import ProviderSpec, find_by_name, plain_name
from nanobot.errors import ConfigError, NanobotError, ProviderError
from nanobot.providers.endpoint import Endpoint
from nanobot.providers.errors import (
    ContentFilteredError,
    ContextOverflowError,
    InvalidRequestError,
    MalformedResponseError,
    ModelCallError,
    ModelNotFoundError,
    ProviderTimeoutError,
    TryElsewhere,
)
from nanobot.utils.text import escape_brackets, human_size

if TYPE_CHECKING:
    from nanobot.config.schema import Config

MAX_BYTES = 25 * 1024 * 1024
"""The endpoints' upload limit."""
_MAX_RESPONSE_BYTES = 4 * 1024 * 1024
_TOTAL_S = 180.0
_PAUSES_S = (1.0, 2.0)
"""Seconds before each retry, unless the server asks for another wait."""
_MAX_PAUSE_S = 20.0
_DEFAULT = "groq"
_ALTERNATIVE = "openai"
_MODELS = {"groq": "whisper-large-v3-turbo", "openai": "gpt-4o-mini-transcribe"}
_FALLBACK_MODEL = "whisper-1"
_SET_ANOTHER = "Set channels.transcriptionProvider to groq or openai."

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


_CHAT_ERRORS = (InvalidRequestError, ContextOverflowError, ContentFilteredError, ModelNotFoundError)
_NEXT_STEP = "Send a shorter recording as mp3 or ogg, or set channels.transcriptionProvider to another provider."
"""The advice of these errors, whose own is about chats."""


@dataclass(frozen=True, slots=True)
class HttpTranscriber:
    """A model at an endpoint with OpenAI's `audio/transcriptions`."""

    endpoint: Endpoint
    model: str
    language: str | None = None
    pauses_s: Sequence[float] = _PAUSES_S

    async def transcribe(self, path: Path) -> str:
        """The spoken text of this file, never empty. Transient failures are retried once for each entry of `pauses_s`.

        Raises ProviderError. Cancelling closes the connection.
        """
        name, data = await asyncio.to_thread(_read_recording, path)
        for pause in (*self.pauses_s, None):
            try:
                text = await self._send(name, data)
                break
            except ModelCallError as error:
                wait = pause if error.retry_after_s is None else error.retry_after_s
                if pause is None or wait is None or wait > _MAX_PAUSE_S:
                    raise
                if error.try_elsewhere is not TryElsewhere.OTHER_MODEL or isinstance(error, ProviderTimeoutError):
                    raise  # it would fail again, or has used up the full limit
                await asyncio.sleep(wait)
        if not text:
            raise UnusableRecordingError(f"No speech could be heard in {path.name}.")
        return text

    async def _send(self, name: str, data: bytes) -> str:
        endpoint = self.endpoint
        fields = {"model": self.model, "response_format": "json"}
        if self.language:
            fields["language"] = self.language
        boundary = secrets.token_hex(16)
        head = "".join(
            f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'
            for field, value in fields.items()
        )
        file_name = name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
        head += (
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{file_name}"\r\n'
            f"Content-Type: {_MIME[PurePath(name).suffix[1:]]}\r\n\r\n"
        )
        form = b"".join([head.encode("utf-8", "replace"), data, f"\r\n--{boundary}--\r\n".encode()])
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}", **endpoint.bearer}
        url = f"{endpoint.api_base}/audio/transcriptions"
        try:
            body = await endpoint.post(url, headers, form, max_bytes=_MAX_RESPONSE_BYTES, model=self.model)
        except _CHAT_ERRORS as error:
            error.next_step = _NEXT_STEP
            raise
        return self._text(body)

    def _text(self, body: bytes) -> str:
        """The text in a response: JSON, or plain text from servers that return only that."""
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            text = body.decode("utf-8", "replace").strip()
            if text.startswith(("{", "[", "<")) or "\ufffd" in text or "\0" in text:
                raise self._malformed(f"not JSON: {text[:100]}") from None
            return text
        if isinstance(answer, dict) and isinstance(answer.get("text"), str):
            return str(answer["text"]).strip()
        raise self._malformed(f"no text in it: {json.dumps(answer)[:100]}")

    def _malformed(self, detail: str) -> ModelCallError:
        return self.endpoint.error(MalformedResponseError, detail, model=self.model)


def _read_recording(path: Path) -> tuple[str, bytes]:
    """The name to send and the bytes of a recording. Too large a file is rejected unread. Blocking."""
    try:
        size = path.stat().st_size
        if not path.is_file():  # reading a pipe or a device might block forever
            raise UnusableRecordingError(f"{path.name} is not a regular file. Send a recording.")
        data = path.read_bytes() if size <= MAX_BYTES else b""
    except OSError as error:
        raise UnusableRecordingError(f"{path.name} cannot be read: {error.strerror or error}.") from None
    if size > MAX_BYTES:
        raise UnusableRecordingError(
            f"{path.name} has {human_size(size)}; at most {human_size(MAX_BYTES)} can be transcribed. "
            "Send it in parts, or as mp3 or ogg."
        )
    if not data:
        raise UnusableRecordingError(f"{path.name} is empty. Send it again.")
    kind = _UPLOAD_EXTENSIONS.get(path.suffix.lower()) or next(
        (name for magic, name in _MAGIC if magic.match(data)), None
    )
    if kind is None:
        known = ", ".join(sorted(_MIME))
        raise UnusableRecordingError(f"{path.name} is in no format that can be transcribed. Send one of {known}.")
    return f"{path.stem or 'recording'}.{kind}", data


def choose_transcriber(
    config: "Config", environ: Mapping[str, str], *, provider: str | None = None, language: str | None = None
) -> HttpTranscriber:
    """The transcriber that `channels.transcriptionProvider` names; `provider` and `language` are a channel's own
    settings. Raises ConfigError, which names the setting to change.

    If none is named and only OpenAI has a key, OpenAI replaces Groq. Connections open on first use.
    """
    channels = config.channels
    language = language or channels.transcription_language or None
    try:
        return _transcriber_of(config, environ, provider or channels.transcription_provider or _DEFAULT, language)
    except ConfigError:
        if not (provider or "transcription_provider" in channels.model_fields_set):
            with suppress(ConfigError):
                return _transcriber_of(config, environ, _ALTERNATIVE, language)
        raise


def _transcriber_of(config: "Config", environ: Mapping[str, str], name: str, language: str | None) -> HttpTranscriber:
    sections = config.providers.by_name()
    spec = find_by_name(name)
    if spec is None:
        custom = next((known for known in sections if plain_name(known) == plain_name(name)), None)
        if custom is None:
            raise ConfigError(f"channels.transcriptionProvider names {name}, which is not a provider. {_SET_ANOTHER}")
        spec = ProviderSpec(custom, custom, needs_key=False)
    section = sections[spec.name]
    if not (section.api_base or spec.default_api_base):
        raise ConfigError(f"providers.{spec.config_key}.apiBase is empty. {_SET_ANOTHER}")
    if not spec.speaks_chat_completions:
        raise ConfigError(f"{spec.display_name} offers no transcription. {_SET_ANOTHER}")
    endpoint = Endpoint.configured(spec, section, environ, total_s=_TOTAL_S)
    if endpoint is None:
        raise ConfigError(spec.missing_key("transcribes recordings"))
    return HttpTranscriber(endpoint, _MODELS.get(spec.name, _FALLBACK_MODEL), language)


def is_recording(path: str) -> bool:
    """Whether an attachment is audio, judged by its extension."""
    return PurePath(path).suffix.lower() in _AUDIO


async def transcribe_media(text: str, media: Sequence[str], config: "Config", environ: Mapping[str, str]) -> str:
    """Append `[transcription: ...]` to the text for each recording among the attachments.

    Never raises if a recording cannot be transcribed: the tag then says why, so that the agent can tell the user.
    """

    async def tag(path: str) -> str:
        try:
            text = await choose_transcriber(config, environ).transcribe(Path(path))
        except NanobotError as error:
            text = f"failed, {error}"
        return f"[transcription: {escape_brackets(text)}]"

    tags = await asyncio.gather(*(tag(path) for path in media if is_recording(path)))
    return "\n".join([text, *tags] if text.strip() else tags) if tags else text
