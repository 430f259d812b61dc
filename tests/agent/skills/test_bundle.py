"""A skill of somebody's is read whole, and never leaves its folder: names, links, devices, bombs, clashes."""

import os
import stat
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.agent.skills import package
from nanobot.agent.skills.package import BundleError, read_bundle

MANUAL = "---\nname: tea\ndescription: Make good tea.\n---\nBoil.\n"


def zipped(path: Path, files: Mapping[str, str | bytes], modes: dict[str, int] | None = None) -> Path:
    """A zip with these names exactly as they are given."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo("x")
            info.filename = info.orig_filename = name
            info.external_attr = (modes or {}).get(name, stat.S_IFREG | 0o644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return path


def paths(source: Path) -> list[str]:
    return [file.path for file in read_bundle(source).files]


def test_a_folder_and_a_zip_of_it_hold_the_same(tmp_path: Path):
    folder = tmp_path / "tea"
    (folder / "scripts").mkdir(parents=True)
    (folder / "SKILL.md").write_text(MANUAL, encoding="utf-8")
    (folder / "scripts" / "boil.sh").write_text("#!/bin/sh\n", encoding="utf-8")
    bare = zipped(tmp_path / "tea.zip", {"SKILL.md": MANUAL, "scripts/boil.sh": "#!/bin/sh\n"})
    below = zipped(tmp_path / "x.zip", {"tea/": "", "tea/SKILL.md": MANUAL, "tea/scripts/boil.sh": "#!/bin/sh\n"})

    found = [read_bundle(source) for source in (folder, folder / "SKILL.md", bare, below)]

    assert {one.name for one in found} == {"tea"}
    assert {tuple((file.path, file.data, file.is_program) for file in one.files) for one in found} == {
        (("SKILL.md", MANUAL.encode(), False), ("scripts/boil.sh", b"#!/bin/sh\n", True))
    }


def test_what_systems_leave_in_folders_is_left_out(tmp_path: Path):
    source = zipped(
        tmp_path / "tea.zip", {"tea/SKILL.md": MANUAL, "__MACOSX/tea/._SKILL.md": "x", "tea/.DS_Store": "x"}
    )

    assert paths(source) == ["SKILL.md"]


@pytest.mark.parametrize(
    "name",
    [
        "../out.sh", "a/../../out.sh", "/etc/cron.d/x", "C:/out.sh", "C:out.sh", "..\\out.sh", "a\\..\\..\\out",
        "a//b", "./a", "con", "a/NUL.txt", "a.", "a ", " a", "a:b", "a\nb", "a\x1bb", "a\u202eb", "a\u200bb",
        "x" * 130,
    ],
)  # fmt: skip
def test_a_name_that_leads_out_or_is_another_s_on_some_system_is_refused(tmp_path: Path, name: str):
    source = zipped(tmp_path / "tea.zip", {"SKILL.md": MANUAL, name: "x"})

    with pytest.raises(BundleError):
        read_bundle(source)


def test_a_zip_with_one_name_twice_is_refused(tmp_path: Path):
    path = tmp_path / "tea.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("SKILL.md", MANUAL)
        archive.NameToInfo.pop("SKILL.md")  # a second one of the same name is no accident here
        archive.writestr("SKILL.md", MANUAL)

    with pytest.raises(BundleError, match="twice"):
        read_bundle(path)


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK])
def test_links_and_devices_in_a_zip_are_refused(tmp_path: Path, kind: int):
    source = zipped(tmp_path / "tea.zip", {"SKILL.md": MANUAL, "x": "/etc/passwd"}, {"x": kind | 0o777})

    with pytest.raises(BundleError, match=r"link|device"):
        read_bundle(source)


@pytest.mark.skipif(os.name == "nt", reason="links and pipes as POSIX makes them")
@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/etc"), os.mkfifo] if os.name == "posix" else [])
def test_links_and_pipes_in_a_folder_are_refused(tmp_path: Path, make):
    (tmp_path / "SKILL.md").write_text(MANUAL, encoding="utf-8")
    make(tmp_path / "x")

    with pytest.raises(BundleError, match=r"link|pipe"):
        read_bundle(tmp_path)


def test_a_bomb_is_left_after_so_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(package, "MAX_BYTES", 1_000_000)
    path = zipped(tmp_path / "tea.zip", {"SKILL.md": MANUAL, "zeros": b"\0" * 5_000_000})
    data = bytearray(path.read_bytes())
    size = struct.pack("<I", 5_000_000)
    assert data.count(size) == 2
    path.write_bytes(data.replace(size, struct.pack("<I", 10)))  # what it says of itself is a lie

    for source in (path, zipped(tmp_path / "honest.zip", {"SKILL.md": MANUAL, "zeros": b"\0" * 5_000_000})):
        with pytest.raises(BundleError):
            read_bundle(source)


def test_too_many_files_and_what_unpacks_without_a_limit_are_no_skill(tmp_path: Path):
    source = zipped(tmp_path / "tea.zip", {"SKILL.md": MANUAL} | {f"f{number}": "" for number in range(501)})
    with zipfile.ZipFile(tmp_path / "lzma.zip", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("SKILL.md", MANUAL)

    with pytest.raises(BundleError, match="more than 500 files"):
        read_bundle(source)
    with pytest.raises(BundleError, match="unsupported compression"):
        read_bundle(tmp_path / "lzma.zip")


@pytest.mark.parametrize("data", [b"", b"PK", b"not a zip at all", b"PK\x05\x06" + b"\0" * 18])
def test_what_is_no_zip_of_a_skill_is_said(tmp_path: Path, data: bytes):
    (tmp_path / "tea.zip").write_bytes(data)

    with pytest.raises(BundleError):
        read_bundle(tmp_path / "tea.zip")


def test_a_locked_zip_is_said(tmp_path: Path):
    path = zipped(tmp_path / "tea.zip", {"SKILL.md": MANUAL})
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)

    with pytest.raises(BundleError, match="encrypted"):
        read_bundle(path)


def test_several_skills_are_named_and_a_wrongly_spelt_file_too(tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / "all" / name).mkdir(parents=True)
        (tmp_path / "all" / name / "SKILL.md").write_text(MANUAL, encoding="utf-8")
    (tmp_path / "low").mkdir()
    (tmp_path / "low" / "skill.md").write_text(MANUAL, encoding="utf-8")

    with pytest.raises(BundleError, match=r"several skills \(a, b\)"):
        read_bundle(tmp_path / "all")
    with pytest.raises(BundleError, match=r"Rename skill\.md to SKILL\.md"):
        read_bundle(tmp_path / "low")
    with pytest.raises(BundleError, match="does not exist"):
        read_bundle(tmp_path / "none")


@given(data=st.data())
def test_a_damaged_zip_is_a_bundle_or_an_error_of_ours(tmp_path: Path, data: st.DataObject):
    path = zipped(tmp_path / "tea.zip", {"tea/SKILL.md": MANUAL, "tea/a.txt": "words " * 20})
    whole = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])

    try:
        names = paths(path)
    except BundleError:
        return
    assert all(".." not in name and not name.startswith("/") for name in names)
