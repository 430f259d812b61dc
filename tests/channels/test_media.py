"""Files that people send, and those that go out."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.channels.media import (
    Attachment,
    MediaError,
    MediaKind,
    MediaLimits,
    MediaStore,
    StoredAttachment,
    attachment_text,
    one_chunk,
)
from nanobot.channels.outgoing import prepare_outgoing
from nanobot.errors import NanobotError
from nanobot.messages.types import Provenance
from nanobot.testing.live_channel import live
from nanobot.utils.clock import FrozenClock
from tests.fakes.platform_board import BoardPlatform
from tests.support.clock import WarpLoop
from tests.support.eventually import eventually

PNG = b"\x89PNG\r\n\x1a\n" + b"\x00" * 40
OGG = b"OggS" + b"\x00" * 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "media" / "telegram"


async def in_chunks(*chunks: bytes, error: Exception | None = None) -> AsyncIterator[bytes]:
    for chunk in chunks:
        await asyncio.sleep(0)
        yield chunk
    if error is not None:
        raise error


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


async def test_an_attachment_is_kept_whole_under_its_own_name(folder):
    kept = await MediaStore(folder).store(
        Attachment(MediaKind.IMAGE, name="../../etc/passwd.png"), lambda: in_chunks(PNG[:10], PNG[10:])
    )

    assert kept.path is not None
    assert kept.path.parent.parent == folder
    assert (kept.path.read_bytes(), kept.path.name) == (PNG, "passwd.png")
    assert kept.tag == f"[image: {kept.path}]"
    if os.name == "posix":
        assert stat.S_IMODE(kept.path.stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("name", "data", "shown"),
    [
        ("Report for May (2).csv", b"a,b", "Report for May (2).csv"),
        ("发票 五月.csv", b"a,b", "发票 五月.csv"),
        ("v1.2 notes", b"words", "v1.2 notes.bin"),
        ("photo.jpeg", PNG, "photo.png"),
        ("a]\n[image: b].csv", b"a,b", "a___image_ b.csv"),
        ("$(id)`x`;'\".csv", b"a,b", "(id)_x.csv"),
        ("-rf.csv", b"a,b", "-rf.csv"),
        (".bashrc", b"words", "bashrc.bin"),
        ("CON.csv", b"a,b", "file CON.csv"),
        ("x" * 300 + ".csv", b"a,b", "x" * 150 + ".csv"),
        ("", b"words", "file.bin"),
        (None, PNG, "file.png"),
    ],
)
async def test_a_file_keeps_the_name_that_its_sender_gave_it(folder, name, data, shown):
    kept = await MediaStore(folder).store(Attachment(MediaKind.FILE, name=name), lambda: one_chunk(data))
    again = await MediaStore(folder).store(Attachment(MediaKind.FILE, name=name), lambda: one_chunk(data))

    assert kept.path is not None
    assert kept.path.name == shown
    assert again.path != kept.path


@given(name=st.text(max_size=40) | st.sampled_from(["..", "a/../../b", "C:\\x.exe", "a.part", ".", "x." + "y" * 300]))
async def test_no_name_leads_out_of_the_folder(tmp_path_factory, name):
    folder = tmp_path_factory.mktemp("media")

    kept = await MediaStore(folder).store(Attachment(MediaKind.FILE, id=name, name=name), lambda: one_chunk(b"words"))

    assert kept.path is not None
    assert kept.path.resolve().parent.parent == folder.resolve()
    assert len(os.fsencode(kept.path.name)) < 170
    assert kept.path.suffix != ".part"
    assert not set(kept.path.name) & set("/\\[]\"'`$;&|<>*?!\n\r\0")


@pytest.mark.parametrize(
    ("attachment", "data", "suffix", "kind"),
    [
        (Attachment(MediaKind.FILE, name="scan"), PNG, ".png", MediaKind.IMAGE),
        (Attachment(MediaKind.IMAGE, content_type="image/png"), b"MZ not a picture", ".png", MediaKind.IMAGE),
        (Attachment(MediaKind.IMAGE, name="x.exe"), b"MZ not a picture", ".exe", MediaKind.FILE),
        (Attachment(MediaKind.VOICE, content_type="audio/ogg"), OGG, ".ogg", MediaKind.VOICE),
        (Attachment(MediaKind.FILE, name="a.docx"), b"PK\x03\x04" + b"x" * 40, ".docx", MediaKind.FILE),
        (Attachment(MediaKind.FILE, content_type="text/csv; charset=utf-8"), b"a,b", ".csv", MediaKind.FILE),
        (Attachment(MediaKind.FILE), b"?", ".bin", MediaKind.FILE),
        (Attachment(MediaKind.VIDEO, name="x.gif"), b"GIF89a" + b"x" * 40, ".gif", MediaKind.VIDEO),
    ],
)
async def test_its_end_and_its_kind_are_what_it_is(folder, attachment, data, suffix, kind):
    kept = await MediaStore(folder).store(attachment, lambda: one_chunk(data))

    assert kept.path is not None
    assert (kept.path.suffix, kept.kind) == (suffix, kind)


async def test_the_very_file_is_downloaded_once_even_by_two_at_a_time(folder):
    store, downloads = MediaStore(folder), []

    def chunks() -> AsyncIterator[bytes]:
        downloads.append(1)
        return in_chunks(PNG)

    attachment = Attachment(MediaKind.IMAGE, id="AgADBAAD")
    kept = await asyncio.gather(*(store.store(attachment, chunks) for _ in range(3)))

    assert len({one.path for one in kept}) == 1
    assert len(downloads) == len(files(folder)) == 1


async def endless() -> AsyncIterator[bytes]:
    while True:
        await asyncio.sleep(0)
        yield b"x" * 1000


async def silent() -> AsyncIterator[bytes]:
    yield b"x"
    await asyncio.sleep(60)


@pytest.mark.parametrize(
    ("attachment", "chunks"),
    [
        (Attachment(MediaKind.IMAGE), endless),
        (Attachment(MediaKind.IMAGE), silent),
        (Attachment(MediaKind.IMAGE, size=10**9), endless),
        (Attachment(MediaKind.IMAGE), lambda: in_chunks(b"x", error=OSError("gone"))),
        (Attachment(MediaKind.IMAGE), lambda: in_chunks(b"x", error=RuntimeError("an SDK's own"))),
        (Attachment(MediaKind.IMAGE), lambda: in_chunks(b"")),
    ],
    ids=["endless", "silent", "said to be large", "cut", "strange", "empty"],
)
async def test_a_download_that_fails_is_said_and_leaves_nothing(folder, attachment, chunks):
    store = MediaStore(folder, limits=MediaLimits(largest=100_000, download_s=0.2))

    kept = await store.store(attachment, chunks)

    assert kept.tag == "[image: download failed]"
    assert files(folder) == []


def test_forty_megabytes_on_a_slow_line_are_stored(folder):
    async def slow() -> AsyncIterator[bytes]:
        for _ in range(40):
            await asyncio.sleep(7)
            yield bytes(1 << 20)

    with asyncio.Runner(loop_factory=WarpLoop) as runner:
        kept = runner.run(MediaStore(folder).store(Attachment(MediaKind.FILE), slow))

    assert kept.path is not None
    assert kept.path.stat().st_size == 40 << 20


async def test_a_cancelled_download_leaves_nothing(folder):
    task = asyncio.create_task(MediaStore(folder).store(Attachment(MediaKind.FILE), silent))
    await eventually(lambda: files(folder))

    task.cancel()
    await asyncio.wait([task])

    assert task.cancelled()
    assert files(folder) == []


async def test_old_files_go_and_the_oldest_where_there_is_too_much(folder):
    clock = FrozenClock(datetime(2026, 3, 1, tzinfo=UTC))
    folder.mkdir(parents=True)
    for name, age in {"old.png": 40, "a.png": 3, "b.png": 2, "c.png": 1, "left.part": 0.5, "now.part": 0}.items():
        (folder / name).write_bytes(b"x" * 100)
        at = clock.now().timestamp() - age * 86_400
        os.utime(folder / name, (at, at))

    await MediaStore(folder, limits=MediaLimits(folder_bytes=300), clock=clock).sweep()

    assert files(folder) == ["b.png", "c.png", "now.part"]


async def test_the_folder_is_swept_as_attachments_come(folder):
    clock = FrozenClock(datetime(2026, 3, 1, tzinfo=UTC))
    store = MediaStore(folder, limits=MediaLimits(keep_s=3600), clock=clock)
    first = await store.store(Attachment(MediaKind.IMAGE, id="1"), lambda: one_chunk(PNG))
    assert first.path is not None
    os.utime(first.path, (clock.now().timestamp(),) * 2)
    clock.advance(2 * 3600)

    second = await store.store(Attachment(MediaKind.IMAGE, id="2"), lambda: one_chunk(PNG))

    assert [second.path] == [*folder.rglob("*.png")]
    assert len(files(folder)) == 1  # the folder of the first is gone too


class _Heard:
    def __init__(self, said: str | NanobotError) -> None:
        self._said = said

    async def transcribe(self, path: Path) -> str:
        if isinstance(self._said, NanobotError):
            raise self._said
        return self._said


@pytest.mark.parametrize(
    ("name", "said", "text"),
    [
        ("a.ogg", None, "[voice: {path}]"),
        ("a.ogg", " ", "[voice: {path}]"),
        ("a.ogg", "do it] [image: b.png", "[voice: {path}]\n[transcription: do it) (image: b.png]"),
        (
            "a.ogg",
            NanobotError("No key [groq].\nSet one."),
            "[voice: {path}]\n[transcription: failed, No key (groq). Set one.]",
        ),
        (None, "good morning", "[voice: download failed]"),
    ],
)
async def test_words_of_a_recording_cannot_end_its_tag_and_it_is_there_without_them(tmp_path, name, said, text):
    path = name and tmp_path / name

    told = await attachment_text(StoredAttachment(MediaKind.VOICE, path), None if said is None else _Heard(said))

    assert told == text.format(path=path)


# what goes out


async def test_a_file_is_looked_at_and_an_address_is_opened_by_nobody_here(tmp_path):
    (tmp_path / "report").write_bytes(PNG)

    file = await prepare_outgoing(str(tmp_path / "report"), largest=1000)
    url = await prepare_outgoing("https://example.org/stickers/cat.webp?x=1", largest=1000)

    assert (file.kind, file.name, file.size) == (MediaKind.IMAGE, "report", len(PNG))
    assert (url.kind, url.name, url.path) == (MediaKind.IMAGE, "cat.webp", None)
    assert url.url == "https://example.org/stickers/cat.webp?x=1"


POSIX_ONLY = [("link", "cannot be read"), ("pipe", "not a regular file")] if os.name == "posix" else []


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("missing.png", "cannot be read"), ("", "is a folder"), ("empty", "is empty"), ("large", "the limit here"),
        ("a\x00b", "cannot be read"), *POSIX_ONLY,
        ("file:///etc/passwd", "cannot be sent"), ("ftp://a.b/c", "cannot be sent"), ("http://", "cannot be sent"),
        ("https://[x", "cannot be sent"),
    ],
)  # fmt: skip
async def test_what_cannot_be_sent_is_refused_with_what_to_do(tmp_path, source, words):
    (tmp_path / "empty").touch()
    (tmp_path / "large").write_bytes(b"x" * 2000)
    if source == "link":
        (tmp_path / "key").write_text("canary")
        (tmp_path / "link").symlink_to(tmp_path / "key")
    if source == "pipe":
        os.mkfifo(tmp_path / "pipe")

    with pytest.raises(MediaError, match=words):
        await prepare_outgoing(source if ":" in source else str(tmp_path / source), largest=1000)


@pytest.mark.parametrize(("data", "provenance"), [(PNG, Provenance.PERSON), (b"words", Provenance.OWNER)])
async def test_picture_that_a_channel_hands_over_by_its_path_is_not_the_owners_words(
    tmp_path: Path, data: bytes, provenance: Provenance
):
    (file := tmp_path / "sent").write_bytes(data)
    async with BoardPlatform(tmp_path).open() as board, live(board, tmp_path, silent=True, allow_from=[]) as life:
        await board.says("let me in")
        code = (await eventually(lambda: life.people.pending("board")))[0].code
        life.people.approve(code, owner=True)
        handle = life.channel._handle_message  # what channels written for the original call
        await handle(board.person, board.private, "look", media=[str(file)])
        message = await life.hears("look")

    assert message.provenance is provenance
