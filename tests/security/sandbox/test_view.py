"""What a command may see and write, where somebody has a hand in the places while it is worked out."""

import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nanobot.agent.tools.permissions import requested_accesses
from nanobot.security.files.paths import PathDeniedError, PathPolicy
from nanobot.security.sandbox.view import PathAccess, ViewGrants, view_of
from tests.support.privileges import nobody_special
from tests.support.sandbox_home import SandboxHome

pytestmark = pytest.mark.skipif(os.name == "nt", reason="walls stand on Linux")


def test_a_folder_to_begin_in_that_became_a_link_shows_nothing_more(home: SandboxHome):
    home = home.restricted()
    (home.path / "private").mkdir()
    (home.workspace / "swapped").symlink_to(home.path / "private")

    view = view_of(home.paths, home.workspace / "swapped")

    assert home.path / "private" not in dict(view.places)


def test_a_granted_folder_that_became_a_link_is_granted_no_more(home: SandboxHome):
    (home.path / "project").mkdir()
    (home.path / "project/asked").symlink_to(home.path)

    view = view_of(home.paths, grants=ViewGrants((home.path / "project/asked",)))

    assert not view.may_write(home.path / "x")


def test_a_home_to_write_in_gets_no_files_of_ours_among_our_own(home: SandboxHome):
    before = sorted(home.data.rglob("*"))

    view = view_of(replace(home.paths, allowed=(home.path,)))

    assert sorted(home.data.rglob("*")) == before
    assert dict(view.places)[home.data] is PathAccess.COVER
    assert not view.may_write(home.workspace / "sessions/cli_direct.jsonl")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root sees into everybody's folders")
def test_a_service_in_a_closed_folder_of_another_user_takes_no_wall_down(home: SandboxHome, tmp_path: Path):
    closed = tmp_path / "others"
    closed.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(closed / "sock"))
        service.listen()
        os.chown(closed, 65534, 65534)

        ran = home.sh("echo runs")

    assert (ran.stdout, ran.stderr) == ("runs\n", "")


def test_a_granted_place_of_keys_is_shown_with_the_places_inside_of_it(home: SandboxHome):
    keys = home.path / ".ssh"
    inside = next(path for path in keys.iterdir() if path.is_file())
    paths = replace(home.paths, unreadable=(*home.paths.unreadable, keys, inside))

    places = dict(view_of(paths, grants=ViewGrants(secrets=(keys,))).places)

    assert (places[keys], places.get(inside, PathAccess.READ)) == (PathAccess.READ, PathAccess.READ)


def test_a_home_that_is_our_data_folder_is_not_hidden_as_a_whole(home: SandboxHome):
    places = dict(view_of(replace(home.paths, data_folder=home.path)).places)

    assert places.get(home.path) is not PathAccess.COVER


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that everybody may enter, with a workspace in it and one that is closed."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "workspace").mkdir()
        (place / "closed").mkdir()
        for folder in (place, place / "workspace"):
            folder.chmod(0o777)
        monkeypatch.setenv("HOME", name)
        yield place
        (place / "closed").chmod(0o700)


@pytest.mark.parametrize("need", ["s", "deeper/folder"])
def test_asking_for_what_is_closed_to_us_says_so(place: Path, need: str):
    (place / "closed").chmod(0)

    with nobody_special(), pytest.raises(PathDeniedError, match="closed to nanobot"):
        requested_accesses([str(place / "closed" / need)], "true", PathPolicy(place / "workspace"), network=True)
