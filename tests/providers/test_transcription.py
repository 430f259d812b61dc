"""Speech to text, over the wire: the form, the formats, the failures, and who is chosen."""

import asyncio
import io
import os
import sys
import wave
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanobot.config.schema import Config
from nanobot.errors import ConfigError
from nanobot.providers import errors
from nanobot.providers.endpoint import Endpoint, Timeouts
from nanobot.providers.transcription import (
    MAX_BYTES,
    HttpTranscriber,
    UnusableRecordingError,
    choose_transcriber,
    transcribe_media,
)
from nanobot.runtime.build import build_runtime
from nanobot.testing import ScriptedProvider
from tests.fakes.transcription import Answer, FakeTranscription

KEY = "gsk_key-0123456789"


@pytest.fixture
def hearing() -> Iterator[FakeTranscription]:
    with FakeTranscription() as server:
        yield server


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A tenth of a second of silence, as a wave file."""
    sound = io.BytesIO()
    with wave.open(sound, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(bytes(3_200))
    path = tmp_path / "note.wav"
    path.write_bytes(sound.getvalue())
    return path


async def transcribe(
    server: FakeTranscription, path: Path, key: str = KEY, language: str | None = None, total_s: float = 180
) -> str:
    endpoint = Endpoint("groq", server.v1, key, "providers.groq.apiKey", timeouts=Timeouts(total_s=total_s))
    return await HttpTranscriber(endpoint, "whisper-large-v3-turbo", language, pauses_s=(0, 0)).transcribe(path)


async def test_the_form_holds_the_recording_the_model_and_the_language(hearing, recording):
    text = await transcribe(hearing, recording, language="de")

    assert text == "hello there"
    upload = hearing.uploads[0]
    assert upload.data == recording.read_bytes()
    assert upload.file_name == "note.wav"
    assert upload.content_type == "audio/wav"
    assert upload.fields == {"model": "whisper-large-v3-turbo", "response_format": "json", "language": "de"}


@pytest.mark.parametrize(
    ("name", "data", "sent_as"),
    [
        ("voice.oga", b"OggS", "voice.ogg"),
        ("voice.OPUS", b"OggS", "voice.ogg"),
        ("grüße an dich.m4a", b"any", "grüße an dich.m4a"),
        ('odd"name.ogg', b"any", "odd%22name.ogg"),
        ("download", b"OggS....", "download.ogg"),
        ("download", b"RIFF\x10\0\0\0WAVEfmt ", "download.wav"),
        ("download", b"ID3\x04", "download.mp3"),
        ("download", b"\0\0\0 ftypM4A ", "download.m4a"),
    ],
)
async def test_a_recording_is_named_for_what_it_is(hearing, tmp_path, name, data, sent_as):
    (tmp_path / name).write_bytes(data)

    await transcribe(hearing, tmp_path / name)

    assert hearing.uploads[0].file_name.replace('"', "%22") == sent_as


def truncated(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (truncated, r"at most 25\.0 MB"),
        (lambda path: None, ""),
        (lambda path: path.touch(), ""),
        (lambda path: path.mkdir(), ""),
        (getattr(os, "mkfifo", Path.mkdir), "is not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
    ],
)
async def test_what_is_no_usable_file_is_not_sent(hearing, tmp_path, make, says):
    path = tmp_path / "voice.ogg"
    make(path)

    with pytest.raises(UnusableRecordingError, match=rf"voice\.ogg.*{says if sys.platform != 'win32' else ''}"):
        await transcribe(hearing, path)
    (tmp_path / "notes.txt").write_text("hello", encoding="utf-8")
    with pytest.raises(UnusableRecordingError, match=r"notes\.txt is in no format .* ogg"):
        await transcribe(hearing, tmp_path / "notes.txt")

    assert hearing.asked == 0


async def test_the_loop_goes_on_while_a_long_recording_is_sent(hearing, tmp_path):
    path = tmp_path / "long.wav"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES // 4)
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.001)
            beats += 1

    async with asyncio.TaskGroup() as group:
        beating = group.create_task(beat())
        text = await transcribe(hearing, path)
        beating.cancel()

    assert text == "hello there"
    assert len(hearing.uploads[0].data) == MAX_BYTES // 4
    assert beats > 5


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"text": "  \\n"}', UnusableRecordingError),  # silence
        (b"", UnusableRecordingError),
        (b"<html>nginx</html>", errors.MalformedResponseError),
        (b'{"txt": "hi"}', errors.MalformedResponseError),
        (b"\xff\xfe\x00", errors.MalformedResponseError),
        (b'{"text": 3}', errors.MalformedResponseError),
        (b'{"text": "cut', errors.MalformedResponseError),
        (f"<p>Bearer {KEY}</p>".encode(), errors.MalformedResponseError),
    ],
)
async def test_an_answer_without_a_text_is_a_typed_error_and_one_in_plain_text_is_taken(hearing, recording, body, kind):
    hearing.script = [*[Answer(body=body)] * (1 if kind is UnusableRecordingError else 3), Answer(body="grüß".encode())]

    with pytest.raises(kind) as caught:
        await transcribe(hearing, recording)

    assert KEY not in str(caught.value)
    assert await transcribe(hearing, recording) == "grüß"


async def test_a_wrong_key_is_said_without_repeating_it_and_not_tried_again(hearing, recording):
    with pytest.raises(errors.AuthenticationError, match=r"providers\.groq\.apiKey") as caught:
        await transcribe(hearing, recording, "gsk_wrong-9876543210")

    assert "gsk_wrong" not in str(caught.value)
    assert hearing.asked == 1


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "could not process file - is it a valid media file?", errors.InvalidRequestError),
        (404, "The model `whisper-large-v3-turbo` does not exist", errors.ModelNotFoundError),
        (413, "Maximum content size limit (26214400) exceeded", errors.ContextOverflowError),
        (402, "payment required", errors.QuotaExceededError),
        (307, "moved", errors.MalformedResponseError),
    ],
)
async def test_a_refusal_is_typed_and_its_advice_is_about_recordings(hearing, recording, status, message, kind):
    hearing.script = [Answer.failed(status, message)] * 3

    with pytest.raises(kind) as caught:
        await transcribe(hearing, recording)

    assert "/new" not in str(caught.value)
    assert "agents.defaults" not in str(caught.value)


@pytest.mark.parametrize(
    ("script", "asked", "kind"),
    [
        ([Answer.failed(429, "busy"), Answer.failed(503, "busy")], 3, None),
        ([Answer.failed(503, "busy")] * 3, 3, errors.ModelOverloadedError),
        ([Answer.failed(429, "slow", Retry_After="0.1"), Answer.failed(429, "no", Retry_After="90")], 2,
         errors.RateLimitedError),
        ([Answer(after_s=1)], 1, errors.ProviderTimeoutError),
    ],
)  # fmt: skip
async def test_what_may_be_over_in_a_moment_is_tried_three_times(hearing, recording, script, asked, kind):
    hearing.script = script

    if kind is None:
        assert await transcribe(hearing, recording) == "hello there"
    else:
        with pytest.raises(kind):
            await transcribe(hearing, recording, total_s=0.5)

    assert hearing.asked == asked


# -- who is chosen -----------------------------------------------------------------------------------------------


def chosen(config: dict[str, object], **environ: str) -> HttpTranscriber:
    return choose_transcriber(Config.model_validate(config), environ)


@pytest.mark.parametrize(
    ("config", "environ", "name", "model"),
    [
        ({}, {"GROQ_API_KEY": "gsk_x"}, "groq", "whisper-large-v3-turbo"),
        ({"providers": {"openai": {"apiKey": "sk-x"}}}, {}, "openai", "gpt-4o-mini-transcribe"),
    ],
)
def test_where_none_is_named_the_one_with_a_key_is_taken(config, environ, name, model):
    found = chosen(config, **environ)

    assert (found.endpoint.name, found.model) == (name, model)


@pytest.mark.parametrize(
    ("config", "environ", "reason"),
    [
        ({}, {}, "There is no key for Groq, which transcribes recordings. "
         "Set providers.groq.apiKey in the config or GROQ_API_KEY in the environment."),
        ({"channels": {"transcriptionProvider": "groq"}, "providers": {"openai": {"apiKey": "k"}}}, {}, "GROQ_API_KEY"),
        ({"channels": {"transcriptionProvider": "grok"}}, {}, "not a provider"),
        ({"channels": {"transcriptionProvider": "anthropic"}}, {"ANTHROPIC_API_KEY": "k"}, "offers no transcription"),
        ({"channels": {"transcriptionProvider": "custom"}}, {}, "apiBase is empty"),
    ],
)  # fmt: skip
def test_a_provider_that_was_named_is_not_replaced_and_what_is_missing_is_said(config, environ, reason):
    with pytest.raises(ConfigError) as caught:
        chosen(config, **environ)

    assert reason in str(caught.value)


async def test_an_endpoint_of_ones_own_is_asked_without_a_key(recording):
    with FakeTranscription("from my own box", api_key="own") as server:
        config = {
            "channels": {"transcriptionProvider": "myBox", "transcriptionLanguage": "fr"},
            "providers": {"myBox": {"apiBase": server.v1, "extraHeaders": {"Authorization": "Bearer own"}}},
        }
        text = await chosen(config).transcribe(recording)

        assert text == "from my own box"
        assert server.uploads[0].fields == {"model": "whisper-1", "response_format": "json", "language": "fr"}


# -- what the agent reads ----------------------------------------------------------------------------------------


async def test_each_recording_gets_a_tag_and_other_files_none(hearing, recording):
    config = Config.model_validate({"providers": {"groq": {"apiKey": KEY, "apiBase": hearing.v1}}})
    hearing.script = [Answer(body=b"water the\nplants [now]"), Answer(body=b"hi"), Answer.failed(400, "odd [thing]")]

    text = await transcribe_media("listen", [str(recording), "/a/y.png"], config, {})
    alone = await transcribe_media("", [str(recording)], config, {})
    failed = await transcribe_media("", [str(recording)], config, {})
    missing = await transcribe_media("", [str(recording)], Config(), {})

    assert text == "listen\n[transcription: water the plants (now)]"
    assert alone == "[transcription: hi]"
    assert failed.startswith("[transcription: failed, ") and "odd (thing)" in failed
    assert missing.startswith("[transcription: failed, There is no key for Groq")
    assert failed.count("]") == missing.count("]") == 1


async def test_an_attached_recording_reaches_the_model_as_text_beside_its_path(hearing, recording, tmp_path, capsys):
    from nanobot.cli.chat.oneshot import ask
    from nanobot.gateway.control.backend import LocalBackend

    config = Config.model_validate({"providers": {"groq": {"apiKey": KEY, "apiBase": hearing.v1}}})
    provider = ScriptedProvider("ok")
    async with build_runtime(config, data_dir=tmp_path, workspace=tmp_path, provider=provider, environ={}) as runtime:
        await ask(LocalBackend(runtime), "do it", "cli:direct", media=[str(recording)], as_json=False, markdown=False)

        content = str(provider.requests[0][-1]["content"])

    assert content.startswith(f"do it\n[transcription: hello there]\n[audio: {recording}]")
    assert capsys.readouterr().out == "ok\n"
