"""Speech to text, over the wire: the form, the formats, the failures, and who is chosen."""

import asyncio
import io
import os
import shutil
import subprocess
import sys
import time
import wave
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanobot.config.schema import Config
from nanobot.errors import ProviderError
from nanobot.providers import errors
from nanobot.providers.endpoint import Endpoint
from nanobot.providers.limits import Timeouts
from nanobot.providers.transcription import (
    MAX_BYTES,
    ChosenTranscriber,
    HttpTranscriber,
    TranscriptionRefusedError,
    UnusableRecordingError,
    append_transcriptions,
    choose_transcriber,
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
    ("name", "sent_as"),
    [
        ("voice.oga", "voice.ogg"),
        ("voice.OPUS", "voice.ogg"),
        ("a.mp3", "a.mp3"),
        ("grüße an dich.m4a", "grüße an dich.m4a"),
        ('odd"name.ogg', 'odd"name.ogg'),
    ],
)
async def test_a_recording_is_named_for_what_it_is(hearing, tmp_path, name, sent_as):
    path = tmp_path / name
    path.write_bytes(b"OggS and so on")

    await transcribe(hearing, path)

    assert hearing.uploads[0].file_name.replace("%22", '"') == sent_as


@pytest.mark.parametrize(
    ("head", "kind"),
    [(b"OggS....", "ogg"), (b"RIFF\x10\0\0\0WAVEfmt ", "wav"), (b"ID3\x04", "mp3"), (b"\0\0\0 ftypM4A ", "m4a")],
)
async def test_a_recording_without_a_telling_name_is_known_by_how_it_begins(hearing, tmp_path, head, kind):
    path = tmp_path / "download"
    path.write_bytes(head)

    await transcribe(hearing, path)

    assert hearing.uploads[0].file_name == f"download.{kind}"


async def test_what_is_no_recording_is_not_sent(hearing, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("hello", encoding="utf-8")

    with pytest.raises(UnusableRecordingError, match=r"notes\.txt is in no format .* ogg"):
        await transcribe(hearing, path)

    assert hearing.asked == 0


async def test_too_large_a_recording_is_refused_unread(hearing, tmp_path):
    path = tmp_path / "long.wav"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)

    with pytest.raises(UnusableRecordingError, match=r"at most 25\.0 MB"):
        await transcribe(hearing, path)

    assert hearing.asked == 0


async def test_the_largest_recording_goes_through_and_the_loop_goes_on_meanwhile(hearing, tmp_path):
    path = tmp_path / "long.wav"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES)
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
    assert len(hearing.uploads[0].data) == MAX_BYTES
    assert beats > 5


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.touch(), lambda path: path.mkdir()])
async def test_a_file_that_is_missing_empty_or_none_is_a_typed_error(hearing, tmp_path, make):
    path = tmp_path / "voice.ogg"
    make(path)

    with pytest.raises(UnusableRecordingError, match=r"voice\.ogg"):
        await transcribe(hearing, path)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such files")
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
async def test_nobody_waits_for_a_pipe_or_a_device(hearing, tmp_path, make):
    path = tmp_path / "voice.ogg"
    make(path)

    with pytest.raises(UnusableRecordingError, match=r"voice\.ogg is not a regular file"):
        await transcribe(hearing, path)


@pytest.mark.parametrize("body", [b'{"text": ""}', b'{"text": "  \\n"}', b""])
async def test_silence_is_said_to_be_silence(hearing, recording, body):
    hearing.script = [Answer(body=body)]

    with pytest.raises(UnusableRecordingError, match=r"No speech could be heard in note\.wav"):
        await transcribe(hearing, recording)


async def test_an_answer_in_plain_text_is_taken_as_it_is(hearing, recording):
    hearing.script = [Answer(body="grüß dich\n".encode())]

    assert await transcribe(hearing, recording) == "grüß dich"


@pytest.mark.parametrize(
    "body",
    [
        *(b"<html>nginx</html>", b'{"txt": "hi"}', b"[]", b"\xff\xfe\x00", b"a\0", b'{"text": 3}', b'{"text": "cut'),
        f"<p>Bearer {KEY}</p>".encode(),
    ],
)
async def test_an_answer_that_cannot_be_read_is_a_typed_error_without_the_key(hearing, recording, body):
    hearing.script = [Answer(body=body)] * 3

    with pytest.raises(errors.MalformedResponseError) as caught:
        await transcribe(hearing, recording)

    assert KEY not in str(caught.value)


async def test_a_wrong_key_is_said_without_repeating_it_and_not_tried_again(hearing, recording):
    with pytest.raises(errors.AuthenticationError, match=r"providers\.groq\.apiKey") as caught:
        await transcribe(hearing, recording, "gsk_wrong-9876543210")

    assert "gsk_wrong" not in str(caught.value)
    assert hearing.asked == 1


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "could not process file - is it a valid media file?", TranscriptionRefusedError),
        (404, "The model `whisper-large-v3-turbo` does not exist", TranscriptionRefusedError),
        (413, "Maximum content size limit (26214400) exceeded", TranscriptionRefusedError),
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


@pytest.mark.parametrize("status", [429, 500, 503, 529])
async def test_what_may_be_over_in_a_moment_is_tried_again(hearing, recording, status):
    hearing.script = [Answer.failed(status, "busy")] * 2

    text = await transcribe(hearing, recording)

    assert text == "hello there"
    assert hearing.asked == 3


async def test_three_tries_are_all(hearing, recording):
    hearing.script = [Answer.failed(503, "busy")] * 5

    with pytest.raises(errors.ModelOverloadedError):
        await transcribe(hearing, recording)

    assert hearing.asked == 3


async def test_the_servers_own_pause_is_kept_and_one_too_long_is_not_waited_for(hearing, recording):
    hearing.script = [Answer.failed(429, "slow down", Retry_After="0.2"), Answer.failed(429, "no", Retry_After="90")]
    started = time.monotonic()

    with pytest.raises(errors.RateLimitedError) as caught:
        await transcribe(hearing, recording)

    assert 0.2 <= time.monotonic() - started < 5
    assert caught.value.retry_after_s == 90
    assert hearing.asked == 2


async def test_a_server_that_never_answers_is_given_up(hearing, recording):
    hearing.script = [Answer(after_s=1)] * 3

    with pytest.raises(errors.ProviderTimeoutError, match=r"waited 0\.1 s"):
        await transcribe(hearing, recording, total_s=0.1)

    assert hearing.asked == 1


async def test_a_server_that_is_not_there_is_a_typed_error(recording):
    endpoint = Endpoint("groq", "http://127.0.0.1:9", KEY)

    with pytest.raises(errors.ConnectionFailedError):
        await HttpTranscriber(endpoint, "whisper-1", pauses_s=()).transcribe(recording)


async def test_cancelling_closes_the_connection_at_once(hearing, recording):
    hearing.script = [Answer(after_s=2)]
    asking = asyncio.create_task(transcribe(hearing, recording))
    await asyncio.sleep(0.1)
    started = time.monotonic()

    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    assert time.monotonic() - started < 1.8


@pytest.mark.skipif(not shutil.which("espeak-ng") or not shutil.which("ffmpeg"), reason="makes a voice with them")
async def test_a_real_voice_as_a_phone_sends_it_goes_through(hearing, tmp_path):
    wav, oga = tmp_path / "v.wav", tmp_path / "v.oga"
    subprocess.run(["espeak-ng", "-w", str(wav), "Remind me to water the plants."], check=True)
    subprocess.run(["ffmpeg", "-v", "error", "-i", str(wav), "-c:a", "libopus", "-f", "ogg", str(oga)], check=True)

    await transcribe(hearing, oga)

    assert hearing.uploads[0].data.startswith(b"OggS")
    assert hearing.uploads[0].file_name == "v.ogg"


# -- who is chosen -----------------------------------------------------------------------------------------------


def chosen(config: dict[str, object], **environ: str) -> ChosenTranscriber:
    return choose_transcriber(Config.model_validate(config), environ)


def test_groq_is_the_default_and_its_key_may_come_from_the_environment():
    assert chosen({}, GROQ_API_KEY="gsk_x").reason == "groq, model whisper-large-v3-turbo"


def test_openai_stands_in_where_nobody_named_one_and_only_it_has_a_key():
    assert chosen({"providers": {"openai": {"apiKey": "sk-x"}}}).reason == "openai, model gpt-4o-mini-transcribe"


def test_a_provider_that_was_named_is_not_replaced():
    config = {"channels": {"transcriptionProvider": "groq"}, "providers": {"openai": {"apiKey": "sk-x"}}}

    found = chosen(config)

    assert found.transcriber is None
    assert "providers.groq.apiKey" in found.reason
    assert "GROQ_API_KEY" in found.reason


def test_without_any_key_there_is_none_and_a_reason():
    found = chosen({})

    assert found.transcriber is None
    assert found.reason == (
        "There is no key for Groq, which transcribes recordings. "
        "Set providers.groq.apiKey in the config or GROQ_API_KEY in the environment."
    )


@pytest.mark.parametrize(
    ("name", "reason"),
    [("grok", "not a provider"), ("anthropic", "offers no transcription"), ("custom", "apiBase is empty")],
)
def test_a_provider_that_cannot_transcribe_is_said_to_be_none(name, reason):
    found = chosen({"channels": {"transcriptionProvider": name}}, ANTHROPIC_API_KEY="k")

    assert found.transcriber is None
    assert reason in found.reason


async def test_an_endpoint_of_ones_own_is_asked_without_a_key(recording):
    with FakeTranscription("from my own box", api_key="own") as server:
        config = {
            "channels": {"transcriptionProvider": "myBox", "transcriptionLanguage": "fr"},
            "providers": {"myBox": {"apiBase": server.v1, "extraHeaders": {"Authorization": "Bearer own"}}},
        }
        transcriber = chosen(config).transcriber
        assert transcriber is not None

        text = await transcriber.transcribe(recording)

        assert text == "from my own box"
        assert server.uploads[0].fields == {"model": "whisper-1", "response_format": "json", "language": "fr"}


# -- what the agent reads ----------------------------------------------------------------------------------------


class Said(HttpTranscriber):
    """A transcriber that says what it was told to, or fails."""

    def __init__(self, answer: str | ProviderError) -> None:
        self._answer = answer

    async def transcribe(self, path: Path) -> str:
        if isinstance(self._answer, ProviderError):
            raise self._answer
        return self._answer


async def test_each_recording_gets_a_tag_and_other_files_none():
    heard = ChosenTranscriber(Said("water the\nplants [now]"), "")

    text = await append_transcriptions("listen", ["/a/x.ogg", "/a/y.png", "/a/z.MP3"], heard)

    assert text == "listen\n[transcription: water the plants (now)]\n[transcription: water the plants (now)]"


async def test_a_recording_alone_is_a_message():
    assert await append_transcriptions("", ["v.ogg"], ChosenTranscriber(Said("hi"), "")) == "[transcription: hi]"


async def test_why_it_failed_or_that_nothing_is_set_up_is_in_the_tag():
    failing = ChosenTranscriber(Said(errors.RateLimitedError("slow", target=errors.CallTarget("groq"))), "")

    failed = await append_transcriptions("", ["v.ogg"], failing)
    missing = await append_transcriptions("", ["v.ogg"], choose_transcriber(Config(), {}))

    assert failed.startswith("[transcription: failed, Too many requests for this key (groq): slow.")
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
