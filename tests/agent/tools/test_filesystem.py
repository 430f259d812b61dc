import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.agent.tools.filesystem import EditFileTool, ReadFileTool, WriteFileTool
from nanobot.messages.types import Provenance
from nanobot.security.files.paths import PathPolicy
from tests.support.tools import Call

GB = 1024**3


def text(result) -> str:
    assert isinstance(result.content, str)
    return result.content


# -- read_file ----------------------------------------------------------------------------------------------------


async def test_reading_numbers_the_lines(call: Call, workspace: Path):
    (workspace / "a.txt").write_text("one\ntwo\n", encoding="utf-8")

    result = await call("read_file", path="a.txt")

    assert text(result) == "     1\tone\n     2\ttwo"
    assert result.provenance is Provenance.FILE


async def test_a_long_file_comes_in_pages_and_says_how_to_read_on(call: Call, workspace: Path):
    (workspace / "a.txt").write_text("".join(f"line {n}\n" for n in range(1, 11)), encoding="utf-8")

    page = text(await call("read_file", path="a.txt", offset=3, limit=2))
    last = text(await call("read_file", path="a.txt", offset=9))
    past = await call("read_file", path="a.txt", offset=11)

    assert page == "     3\tline 3\n     4\tline 4\n\n(Lines 3-4 of 10. Read on with offset=5.)"
    assert last.endswith("(Lines 9-10, the end of the file.)")
    assert past.error
    assert "only 10 lines" in text(past)


async def test_a_page_never_outgrows_a_result(call: Call, workspace: Path):
    (workspace / "a.txt").write_text("x" * 100_000 + "\n" + "y" * 900 * 100, encoding="utf-8")
    (workspace / "b.txt").write_text(("z" * 900 + "\n") * 100, encoding="utf-8")

    long_line, many = text(await call("read_file", path="a.txt")), text(await call("read_file", path="b.txt"))

    assert len(long_line) < 16_000
    assert "[98000 more characters]" in long_line
    assert len(many) < 16_000
    assert "of 100. Read on with offset=" in many


async def test_a_missing_file_names_what_is_near(call: Call, workspace: Path):
    (workspace / "notes.md").touch()

    result = await call("read_file", path="note.md")

    assert result.error
    assert text(result) == "Error: There is no note.md. Near it: notes.md."


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("no/such/folder.txt", "nor its folder"),
        ("notes.md/deeper", "a part of it is a file"),
        (".", "is a folder, not a file. Use list_dir"),
        ("", "The path is empty"),
        ("a\0b", "NUL"),
        ("x" * 5000, "too long"),
        ("loop", "leads back to itself"),
        ("pipe", "device, pipe or socket"),
        ("/dev/zero", "device"),
        ("/proc/self/environ", "holds secrets"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="links and pipes of POSIX")
@pytest.mark.parametrize("tool", ["read_file", "edit_file"])
async def test_what_is_no_file_is_refused_with_a_reason(call: Call, workspace: Path, path: str, said: str, tool: str):
    (workspace / "notes.md").touch()
    (workspace / "loop").symlink_to("loop")
    os.mkfifo(workspace / "pipe")
    more = {"old_text": "a", "new_text": "b"} if tool == "edit_file" else {}

    result = await call(tool, path=path, **more)

    assert result.error
    assert said in text(result)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0", "a PNG image"),
        (b"%PDF-1.7\n\xff\xfe\0", "a PDF document"),
        (b"PK\x03\x04\x14\0", "a ZIP archive"),
        (b"\x00\x01\x02", "a binary file"),
    ],
)
async def test_a_binary_file_is_named_not_shown(call: Call, workspace: Path, data: bytes, what: str):
    (workspace / "thing").write_bytes(data)

    result = await call("read_file", path="thing")

    assert result.error
    assert f"thing is {what}" in text(result)


@pytest.mark.parametrize(
    ("data", "shown", "remark"),
    [
        (b"ol\xe9\nb\xff", "     1\tol\ufffd\n     2\tb\ufffd", "(Bytes that are not UTF-8 are shown as \ufffd.)"),
        ("h\u00e9llo\n".encode("utf-16"), "     1\th\u00e9llo", "(The file is UTF-16-LE.)"),
        (b"\xef\xbb\xbfhi\n", "     1\thi", None),
        (b"a\r\nb\r\n", "     1\ta\n     2\tb", "(Lines end in CRLF.)"),
        (b"", "(thing is an empty file.)", None),
        (b"\n", "     1\t", None),
    ],
)
async def test_text_of_any_dress_is_read(call: Call, workspace: Path, data: bytes, shown: str, remark: str | None):
    (workspace / "thing").write_bytes(data)

    result = await call("read_file", path="thing")

    assert not result.error
    assert text(result) == (f"{shown}\n\n{remark}" if remark else shown)


async def test_a_file_of_one_gigabyte_costs_a_page(call: Call, workspace: Path):
    with (workspace / "zeros").open("wb") as file:
        file.truncate(GB)
    with (workspace / "big.log").open("wb") as file:
        file.write(b"a line of a log\n" * 1000)
        file.truncate(GB)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()

    zeros = await call("read_file", path="zeros")
    page = await call("read_file", path="big.log", offset=900, limit=3)
    edit = await call("edit_file", path="big.log", old_text="a", new_text="b")
    write = await call("write_file", path="zeros", content="small")

    assert "a binary file of 1.0 GB" in text(zeros)
    assert "Lines 900-902 of a file of 1.0 GB. Read on with offset=903." in text(page)
    assert "too much to edit" in text(edit)
    assert not write.error
    assert time.monotonic() - began < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
async def test_no_permission_is_said(call: Call, workspace: Path):
    (workspace / "secret").write_text("x", encoding="utf-8")
    (workspace / "secret").chmod(0)

    assert "No permission for secret" in text(await call("read_file", path="secret"))


@given(
    lines=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0"), max_size=20), max_size=30),
    limit=st.integers(1, 7),
)
async def test_pages_one_after_another_are_the_whole_file(workspace: Path, lines: list[str], limit: int):
    (workspace / "f").write_bytes("".join(f"{line}\n" for line in lines).encode())
    read, seen, offset = ReadFileTool(PathPolicy(workspace)), [], 1
    bom = bool(lines) and lines[0].startswith("\ufeff")

    while offset <= len(lines):
        page = text(await read.execute("f", offset, limit)).split("\n\n(")[0]
        seen += [row.partition("\t")[2] for row in page.split("\n")]
        offset += limit

    expected = [lines[0][1:], *lines[1:]] if bom else lines
    assert seen == expected or any("\n\n(" in line for line in lines)


# -- write_file ---------------------------------------------------------------------------------------------------


async def test_writing_makes_folders_and_says_what_it_did(call: Call, workspace: Path):
    first = await call("write_file", path="a/b/ü.txt", content="one\ntwo\n")
    second = await call("write_file", path="a/b/ü.txt", content="one\n2\n")

    assert text(first) == "Created a/b/ü.txt (2 lines, 8 bytes)."
    assert text(second) == "Replaced a/b/ü.txt (2 lines, 6 bytes)."
    assert second.display is not None
    assert "-two\n+2" in second.display
    assert (workspace / "a/b/ü.txt").read_text(encoding="utf-8") == "one\n2\n"


@pytest.mark.skipif(sys.platform == "win32", reason="modes of POSIX")
async def test_a_new_file_is_the_users_and_an_old_one_keeps_its_mode(call: Call, workspace: Path):
    (workspace / "run.sh").touch(mode=0o755)
    (workspace / "run.sh").chmod(0o755)
    umask = os.umask(0o022)
    os.umask(umask)

    await call("write_file", path="new.txt", content="x")
    await call("write_file", path="run.sh", content="x")

    assert (workspace / "new.txt").stat().st_mode & 0o777 == 0o666 & ~umask
    assert (workspace / "run.sh").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("folder", "is a folder"),
        ("file/x", "is a file"),
        ("/dev/null", "like a device"),
        ("/proc/self/comm", "generated by the system"),
    ],
)
async def test_a_place_that_takes_no_file_is_refused(call: Call, workspace: Path, path: str, said: str):
    (workspace / "folder").mkdir()
    (workspace / "file").touch()

    result = await call("write_file", path=path, content="x")

    assert result.error
    assert said in text(result)


@pytest.fixture
def small_disk(workspace: Path):
    """A disk of 64 kB, where we may mount one."""
    place = workspace / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if mount is None or subprocess.run([mount, "-t", "tmpfs", "-o", "size=64k", "tmpfs", place]).returncode:
        pytest.skip("no right to mount a small disk here")
    yield place
    subprocess.run(["umount", place])


async def test_a_full_disk_keeps_what_was_there(call: Call, small_disk: Path):
    (small_disk / "a.txt").write_text("old", encoding="utf-8")

    result = await call("write_file", path=str(small_disk / "a.txt"), content="x" * 200_000)

    assert result.error
    assert "The disk is full" in text(result)
    assert (small_disk / "a.txt").read_text(encoding="utf-8") == "old"
    assert [entry.name for entry in small_disk.iterdir()] == ["a.txt"]


async def test_a_read_only_disk_is_said(call: Call, small_disk: Path):
    subprocess.run(["mount", "-o", "remount,ro", small_disk])

    result = await call("write_file", path=str(small_disk / "a.txt"), content="x")

    assert "read-only" in text(result)


# -- edit_file ----------------------------------------------------------------------------------------------------


async def test_an_edit_changes_one_place_and_shows_the_diff(call: Call, workspace: Path):
    (workspace / "a.py").write_text("x = 1\ny = 2\n", encoding="utf-8")

    result = await call("edit_file", path="a.py", old_text="y = 2", new_text="y = 3")

    assert text(result) == "Edited a.py at line 2."
    assert result.display is not None
    assert "-y = 2\n+y = 3" in result.display
    assert "+++" not in result.display
    assert (workspace / "a.py").read_text(encoding="utf-8") == "x = 1\ny = 3\n"


async def test_a_text_that_stands_twice_names_its_lines_and_changes_nothing(call: Call, workspace: Path):
    (workspace / "a.txt").write_text("same\nother\nsame\n", encoding="utf-8")

    refused = await call("edit_file", path="a.txt", old_text="same", new_text="new")
    every = await call("edit_file", path="a.txt", old_text="same", new_text="new", replace_all=True)

    assert refused.error
    assert "2 times (lines 1, 3)" in text(refused)
    assert text(every) == "Edited a.txt in 2 places."
    assert (workspace / "a.txt").read_text(encoding="utf-8") == "new\nother\nnew\n"


async def test_a_near_miss_shows_the_closest_text_and_its_line(call: Call, workspace: Path):
    (workspace / "a.py").write_text("import os\n\ndef f():\n    return 1\n", encoding="utf-8")

    result = await call("edit_file", path="a.py", old_text="def f():\n  return 1", new_text="x")

    assert result.error
    assert "begins at line 3. It differs in white space." in text(result)
    assert "     4\t    return 1" in text(result)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [("", "x", "old_text is empty"), ("a", "a", "nothing to change"), ("zzzz", "x", "nor anything like it")],
)
async def test_an_edit_that_means_nothing_is_refused(call: Call, workspace: Path, old: str, new: str, said: str):
    (workspace / "a.txt").write_text("abc\n", encoding="utf-8")

    result = await call("edit_file", path="a.txt", old_text=old, new_text=new)

    assert result.error
    assert said in text(result)


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz", b"x\r\ny\r\nz\r\nc\r\n"),
        (b"a\nb\n", "a\r\nb", "x\r\ny", b"x\ny\n"),
        (b"\xef\xbb\xbfone\n", "one", "two", b"\xef\xbb\xbftwo\n"),
        ("\ufeffgr\u00fcn\n".encode("utf-16-le"), "gr\u00fcn", "blau", "\ufeffblau\n".encode("utf-16-le")),
        (b"ol\xe9 one\n", "one", "two", b"ol\xe9 two\n"),
        (b"a\r\nb\nc\r\n", "b\nc", "x\ny", b"a\r\nx\r\ny\r\n"),
        (b"end", "end", "new\\1", b"new\\1"),
    ],
)
async def test_endings_bom_and_encoding_are_kept(call: Call, workspace: Path, before, old, new, after):
    (workspace / "f").write_bytes(before)

    result = await call("edit_file", path="f", old_text=old, new_text=new)

    assert not result.error
    assert (workspace / "f").read_bytes() == after


line = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), min_size=1, max_size=8)


@given(st.lists(line, min_size=1, max_size=8), st.data(), st.sampled_from(["\n", "\r\n"]), st.booleans())
async def test_an_edit_leaves_every_other_byte(workspace: Path, lines, data, ending, asks_with_lf):
    at = data.draw(st.integers(0, len(lines) - 1))
    lines[at] += "#unique#"
    end = data.draw(st.integers(at + 1, len(lines)))
    new = data.draw(st.lists(line, max_size=3))
    content = ending.join([*lines, ""]).encode()
    bom = content.startswith(b"\xef\xbb\xbf")
    (workspace / "f").write_bytes(content)
    asked = "\n" if asks_with_lf else ending
    old = asked.join([*lines[at:end], ""])

    result = await EditFileTool(PathPolicy(workspace)).execute("f", old, asked.join([*new, ""]) if new else "")

    expected = ending.join([*lines[:at], *new, *lines[end:], ""]).encode()
    if not result.error:
        assert (workspace / "f").read_bytes() == expected
    else:  # the mark of a BOM is no text, and what is written as it was is no edit
        assert bom or expected == content


# -- list_dir -----------------------------------------------------------------------------------------------------


async def test_a_folder_is_listed_sorted_with_sizes(call: Call, workspace: Path):
    (workspace / "b").mkdir()
    (workspace / "a.txt").write_text("12345", encoding="utf-8")
    (workspace / "link").symlink_to("a.txt")

    assert text(await call("list_dir", path=".")) == "a.txt  5 bytes\nb/\nlink -> a.txt"


async def test_noise_is_named_and_not_entered(call: Call, workspace: Path):
    (workspace / "node_modules/deep").mkdir(parents=True)
    (workspace / "src/pkg").mkdir(parents=True)
    (workspace / "src/pkg/x.py").touch()

    listing = text(await call("list_dir", path=".", recursive=True))

    assert listing == "node_modules/  (not entered)\nsrc/\nsrc/pkg/\nsrc/pkg/x.py  0 bytes"


async def test_a_listing_ends_at_its_limit_and_says_so(call: Call, workspace: Path):
    for number in range(5):
        (workspace / f"{number}").touch()

    listing = text(await call("list_dir", path=".", max_entries=3)).splitlines()

    assert len(listing) == 4
    assert "More than 3 entries" in listing[-1]


async def test_listing_a_file_or_nothing_or_emptiness(call: Call, workspace: Path):
    (workspace / "a.txt").touch()
    (workspace / "empty").mkdir()

    assert "is a file, not a folder" in text(await call("list_dir", path="a.txt"))
    assert "There is no nowhere" in text(await call("list_dir", path="nowhere"))
    assert "is an empty folder" in text(await call("list_dir", path="empty"))


async def test_state_of_ours_is_not_written(workspace: Path):
    (workspace / "sessions").mkdir()

    result = await WriteFileTool(PathPolicy(workspace)).execute("sessions/x.jsonl", "{}")

    assert result.error
    assert "nanobot's own state" in text(result)
