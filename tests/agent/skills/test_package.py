"""A skill of somebody's is read whole, never leaves its folder, and comes in whole or not at all, keeping what was
there.
"""

import errno
import os
import stat
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.agent.skills import package
from nanobot.agent.skills.loader import SkillsLoader
from nanobot.agent.skills.package import BundleError, install_skill, read_bundle
from nanobot.errors import StorageError

MANUAL = "---\nname: tea\ndescription: Make good tea.\n---\nBoil.\n"


def zipped(path: Path, files: Mapping[str, str | bytes], modes: Mapping[str, int] | None = None) -> Path:
    """A zip with these names exactly as they are given."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo("x")
            info.filename = info.orig_filename = name
            info.external_attr = (modes or {}).get(name, stat.S_IFREG | 0o644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return path


def folder_of(path: Path, script: str = "boil\n", manual: str = "SKILL.md") -> Path:
    (path / "scripts").mkdir(parents=True, exist_ok=True)
    (path / manual).write_text(MANUAL, encoding="utf-8")
    (path / "scripts" / "boil.sh").write_text(f"#!/bin/sh\n{script}", encoding="utf-8")
    (path / "scripts" / "boil.sh").chmod(0o755)
    return path


def paths(source: Path) -> list[str]:
    return [file.path for file in read_bundle(source).files]


def test_a_folder_and_a_zip_of_it_hold_the_same_without_what_systems_leave(tmp_path: Path):
    script = "#!/bin/sh\nboil\n"
    folder = folder_of(tmp_path / "tea")
    modes = dict.fromkeys(("scripts/boil.sh", "tea/scripts/boil.sh"), stat.S_IFREG | 0o755)
    bare = zipped(tmp_path / "tea.zip", {"SKILL.md": MANUAL, "scripts/boil.sh": script, ".DS_Store": "x"}, modes)
    litter = {"__MACOSX/tea/._SKILL.md": "x", "tea/.git/config": "x"}
    whole = {"tea/": "", "tea/SKILL.md": MANUAL, "tea/scripts/boil.sh": script} | litter
    below = zipped(tmp_path / "x.zip", whole, modes)

    found = [read_bundle(source) for source in (folder, folder / "SKILL.md", bare, below)]

    assert {one.name for one in found} == {"tea"}
    assert {tuple((file.path, file.data, file.is_program) for file in one.files) for one in found} == {
        (("SKILL.md", MANUAL.encode(), False), ("scripts/boil.sh", script.encode(), True))
    }
    if os.name == "posix":
        assert [[file.executable for file in one.files] for one in found] == [[False, True]] * 4


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


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK])
def test_links_and_devices_in_a_zip_are_refused(tmp_path: Path, kind: int):
    source = zipped(tmp_path / "tea.zip", {"SKILL.md": MANUAL, "x": "/etc/passwd"}, {"x": kind | 0o777})

    with pytest.raises(BundleError, match=r"link|device"):
        read_bundle(source)


@pytest.mark.skipif(os.name == "nt", reason="links and pipes as POSIX makes them")
@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/etc"), os.mkfifo] if os.name == "posix" else [])
def test_links_and_pipes_in_a_folder_are_refused(tmp_path: Path, make):
    make(folder_of(tmp_path) / "x")

    with pytest.raises(BundleError, match=r"link|pipe"):
        read_bundle(tmp_path)


def test_a_bomb_is_left_after_so_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(package, "MAX_BYTES", 1_000_000)
    honest = zipped(tmp_path / "honest.zip", {"SKILL.md": MANUAL, "zeros": b"\0" * 5_000_000})
    size = struct.pack("<I", 5_000_000)
    assert honest.read_bytes().count(size) == 2
    liar = tmp_path / "liar.zip"
    liar.write_bytes(honest.read_bytes().replace(size, struct.pack("<I", 10)))

    for source in (honest, liar):
        with pytest.raises(BundleError):
            read_bundle(source)


def test_a_zip_that_cannot_be_a_skill_says_why(tmp_path: Path):
    many = zipped(tmp_path / "many.zip", {"SKILL.md": MANUAL} | {f"f{number}": "" for number in range(501)})
    locked = zipped(tmp_path / "locked.zip", {"SKILL.md": MANUAL})
    data = bytearray(locked.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    locked.write_bytes(data)

    for path, why in ((many, "more than 500 files"), (locked, "encrypted")):
        with pytest.raises(BundleError, match=why):
            read_bundle(path)
    for damaged in (b"", b"PK", b"not a zip at all", b"PK\x05\x06" + b"\0" * 18):
        locked.write_bytes(damaged)
        with pytest.raises(BundleError):
            read_bundle(locked)


def test_several_skills_are_named_and_a_wrongly_spelt_file_too(tmp_path: Path):
    for name in ("a", "b"):
        folder_of(tmp_path / "all" / name)
    folder_of(tmp_path / "low", manual="skill.md")

    for name, why in (
        ("all", r"several skills \(a, b\)"), ("low", r"Rename skill\.md to SKILL\.md"), ("none", "does not exist"),
    ):  # fmt: skip
        with pytest.raises(BundleError, match=why):
            read_bundle(tmp_path / name)


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


# --- installing


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "workspace" / "skills" / "tea"


def files(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_what_was_read_is_what_is_installed_also_after_an_install_that_was_killed(tmp_path: Path, place: Path):
    source = folder_of(tmp_path / "from")
    bundle, before = read_bundle(source), files(source)
    (source / "scripts" / "boil.sh").write_text("rm -rf ~\n", encoding="utf-8")
    half = place.with_name(".new-tea")
    half.mkdir(parents=True)
    (half / "SKILL.md").write_text("half", encoding="utf-8")

    install_skill(place, bundle)

    assert files(place) == before
    assert os.access(place / "scripts" / "boil.sh", os.X_OK)
    assert [path.name for path in place.parent.iterdir()] == ["tea"]


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch):
    install_skill(place, read_bundle(folder_of(tmp_path / "from")))
    before = files(place.parent)
    bundle = read_bundle(folder_of(tmp_path / "from", "better\n"))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="Free some disk space"):
        install_skill(place, bundle)

    assert files(place.parent) == before


KILLED = """
import sys
from pathlib import Path
from nanobot.agent.skills.package import install_skill, read_bundle

print("begun", flush=True)
while True:
    for source in sys.argv[2:]:
        install_skill(Path(sys.argv[1]), read_bundle(Path(source)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("round_", range(8))
def test_a_killed_install_leaves_one_whole_skill(tmp_path: Path, place: Path, round_: int):
    sources = [folder_of(tmp_path / name, f"{name}\n" * 2_000) for name in ("one", "two")]
    wholes = [files(one) for one in sources]
    install_skill(place, read_bundle(sources[0]))
    with subprocess.Popen([sys.executable, "-c", KILLED, place, *sources], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(0.02 + 0.03 * round_)
        child.kill()

    assert files(place) in wholes
    assert [skill.name for skill in SkillsLoader(tmp_path / "workspace", tmp_path / "none").skills()] == ["tea"]
    install_skill(place, read_bundle(sources[1]))
    assert files(place) == wholes[1]
