"""Places of other users that are closed to us: they stop no command, and who asks for one is told so."""

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanobot.agent.tools.permissions import requested_accesses
from nanobot.security.files.paths import PathDeniedError, PathPolicy
from nanobot.security.sandbox.view import listening_sockets, view_of
from tests.support.privileges import nobody_special


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


def test_what_lies_in_somebody_elses_closed_folder_disturbs_no_command(place: Path):
    closed = place / "closed"
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(closed / "s"))
        service.listen()
        closed.chmod(0)

        with nobody_special():
            view = view_of(PathPolicy(place / "workspace"), sockets=[*listening_sockets(), closed / "s"])

    assert closed / "s" not in [path for path, _ in view.places]


@pytest.mark.parametrize("need", ["s", "deeper/folder"])
def test_asking_for_what_is_closed_to_us_says_so(place: Path, need: str):
    (place / "closed").chmod(0)

    with nobody_special(), pytest.raises(PathDeniedError, match="closed to nanobot"):
        requested_accesses([str(place / "closed" / need)], "true", PathPolicy(place / "workspace"), network=True)
