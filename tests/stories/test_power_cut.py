"""What was acknowledged is there after a power cut, whenever it comes (power_cut.py says how the disk is simulated)."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nanobot.config.loader import change_config, load_config
from nanobot.config.schema import Config
from nanobot.cron.service import CronService
from nanobot.cron.types import CronJob, CronSchedule
from nanobot.messages.types import ChatMessage
from nanobot.security.files.open import Opener
from nanobot.security.files.paths import PathPolicy
from nanobot.session.checkpoint import Checkpoint
from nanobot.session.manager import SessionManager
from nanobot.utils.database import open_database
from tests.stories.power_cut import Disk, lives_after, recorded

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the recorder reads open files by /proc")

KEY = "cli:direct"
EVERY_MINUTE = CronSchedule("every", every_ms=60_000)


class PowerCuts:
    """A program whose folder is `home`, cut off at every point; what it had acknowledged by then is in `promised`."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = tmp_path / "home"
        self.home.mkdir()
        self.promised: list[str] = []
        self.problems: list[str] = []
        self.points = 0
        self._tmp_path = tmp_path
        self._monkeypatch = monkeypatch

    @contextmanager
    def at_every_point(self, check: Callable[[Path], str | None]) -> Iterator[None]:
        """Run the block, and at each point `check` the next life; it says what is wrong."""

        def at_point(disk: Disk) -> None:
            self.points += 1
            self.problems += lives_after(disk, self._tmp_path, check)

        with recorded(self.home, self._monkeypatch, at_point) as disk:
            yield
            disk.point()  # after the last acknowledgement

    def missing(self, kept: list[str]) -> str | None:
        """What is wrong with what was found; the order counts."""
        lost = [one for one in self.promised if one not in kept]
        doubled = [one for one in self.promised if kept.count(one) > 1]
        in_order = [one for one in kept if one in self.promised] == self.promised
        return None if not lost and not doubled and in_order else f"promised {self.promised}, found {kept}"


@pytest.fixture
def cuts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PowerCuts:
    return PowerCuts(tmp_path, monkeypatch)


def words_in(home: Path) -> list[str]:
    return [str(row["content"]) for row in SessionManager(home).get_or_create(KEY).messages]


def said(text: str) -> ChatMessage:
    return {"role": "user", "content": text}


async def test_messages_of_a_session_survive_once_and_in_order(cuts: PowerCuts):
    sessions = SessionManager(cuts.home)

    with cuts.at_every_point(lambda home: cuts.missing(words_in(home))):
        for number in range(3):
            async with sessions.hold(KEY) as session:
                await sessions.append(session, said(f"first {number}"), said(f"second {number}"))
                cuts.promised += [f"first {number}", f"second {number}"]

    assert cuts.problems == []
    assert cuts.points > 10


async def test_session_that_is_rewritten_holds_the_old_messages_or_the_new_ones(cuts: PowerCuts):
    sessions = SessionManager(cuts.home)
    session = sessions.get_or_create(KEY)
    await sessions.append(session, said("old"), said("second"))
    allowed = [["old", "second"], ["new", "second"]]

    def check(home: Path) -> str | None:
        found = words_in(home)
        return None if found in allowed else f"found {found}, not one of {allowed}"

    with cuts.at_every_point(check):
        session.messages[0] = said("new")
        sessions.save(session)
        allowed = [["new", "second"]]

    assert cuts.problems == []


async def test_archived_session_is_live_or_in_the_archive(cuts: PowerCuts):
    sessions = SessionManager(cuts.home)
    await sessions.append(sessions.get_or_create(KEY), said("kept"))

    def check(home: Path) -> str | None:
        manager = SessionManager(home)
        found = [manager.read(Path(row["path"])) for row in manager.list_sessions()]
        kept = [str(row["content"]) for session in found if session is not None for row in session.messages]
        return None if "kept" in kept else f"found {kept}"

    with cuts.at_every_point(check):
        sessions.archive(KEY)

    assert cuts.problems == []


async def test_jobs_survive(cuts: PowerCuts):
    async def run(job: CronJob) -> None:
        return None

    path = Path("cron") / "jobs.json"
    service = CronService(cuts.home / path, run)

    def check(home: Path) -> str | None:
        later = CronService(home / path)
        return cuts.missing([job.name for job in later.list_jobs(include_disabled=True)])

    with cuts.at_every_point(check):
        for name in ("a", "b"):
            job = service.add_job(name, EVERY_MINUTE, "x")
            cuts.promised.append(name)
            await service.run_job(job.id, force=True)
            await service.wait_for_runs()
    await service.close()

    assert cuts.problems == []


def test_config_survives(cuts: PowerCuts):
    path = cuts.home / "config.json"

    def set_port(config: Config) -> Config:
        config.api.port += 1
        return config

    change_config(lambda: load_config(path), set_port, path)
    saved = [load_config(path).api.port]

    def check(home: Path) -> str | None:
        found = load_config(home / "config.json", must_exist=True).api.port
        return None if found in (saved[-1], saved[-1] + 1) else f"saved {saved[-1]}, found {found}"

    with cuts.at_every_point(check):
        for _ in range(3):
            change_config(lambda: load_config(path), set_port, path)
            saved.append(saved[-1] + 1)

    assert cuts.problems == []


async def test_call_that_must_not_run_twice_is_known_to_have_started(cuts: PowerCuts):
    checkpoint = Checkpoint(cuts.home / "turns", KEY)
    checkpoint.accept("turn 1", {"role": "user", "content": "go"})

    def check(home: Path) -> str | None:
        left = Checkpoint(home / "turns", KEY).load()
        known = left.started is None or set(cuts.promised) <= left.started
        return None if known else f"started {cuts.promised}, known {left.started}"

    with cuts.at_every_point(check):
        for call in ("once 1", "once 2"):
            await checkpoint.calls_start([call], durable=True)
            cuts.promised.append(call)
    checkpoint.close()

    assert cuts.problems == []


def test_file_that_a_tool_wrote_is_the_old_one_or_the_new_one(cuts: PowerCuts):
    (cuts.home / "notes.md").write_bytes(b"old")
    opener = Opener(PathPolicy(cuts.home))
    allowed = [b"old", b"new"]

    def check(home: Path) -> str | None:
        found = (home / "notes.md").read_bytes()
        return None if found in allowed else f"found {found!r}, not one of {allowed}"

    with cuts.at_every_point(check):
        with opener.place("notes.md") as place:
            place.replace(b"new", 0o600)
        allowed = [b"new"]

    assert cuts.problems == []


async def test_database_syncs_each_commit(tmp_path: Path):
    async with open_database(tmp_path / "words.db", "CREATE TABLE words (word TEXT)") as database:
        mode = await database.ask(lambda db: db.execute("PRAGMA journal_mode").fetchone()[0])
        synchronous = await database.ask(lambda db: db.execute("PRAGMA synchronous").fetchone()[0])

    assert (mode, synchronous) == ("wal", 2), "2 is FULL: the log is synced at each commit"
