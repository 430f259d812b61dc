"""A command may write in the workspace, also into the folders where nanobot keeps sessions and jobs (where Landlock is
the only sandbox). A link that it leaves there never leads nanobot to write outside.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from nanobot.cron.service import CronService
from nanobot.cron.types import CronSchedule
from nanobot.errors import StorageError
from nanobot.session.manager import SessionManager
from nanobot.testing import open_bot

pytestmark = pytest.mark.skipif(os.name == "nt", reason="only POSIX systems let everybody make links")

ATTACK = "$(touch ~/PWNED)"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of the user's with the files that an attacker would like to have written."""
    folder = tmp_path / "user"
    (folder / "archive").mkdir(parents=True)
    (folder / ".locks").mkdir()
    for name in ("profile", "cli_direct.jsonl", "jobs.json", "history.jsonl"):
        (folder / name).write_text("# of the user's\n", encoding="utf-8")
    return folder


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in files}


def link_file(name: str) -> Callable[[Path, Path], None]:
    def plant(workspace: Path, outside: Path) -> None:
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).symlink_to(outside / "profile")

    return plant


def link_missing_file(name: str) -> Callable[[Path, Path], None]:
    def plant(workspace: Path, outside: Path) -> None:
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).symlink_to(outside / "made")

    return plant


def link_folder(name: str, target: str = ".") -> Callable[[Path, Path], None]:
    def plant(workspace: Path, outside: Path) -> None:
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).symlink_to(outside / target, target_is_directory=True)

    return plant


OF_SESSIONS = {
    "session file": link_file("sessions/cli_direct.jsonl"),
    "session file that is missing": link_missing_file("sessions/cli_direct.jsonl"),
    "folder of sessions": link_folder("sessions"),
    "archive": link_folder("sessions/archive", "archive"),
    "folder of locks": link_folder("sessions/.locks", ".locks"),
    "lock": link_missing_file("sessions/.locks/write.lock"),
    "lock of a turn": link_missing_file("sessions/.locks/cli_direct.lock"),
}


@pytest.mark.parametrize("plant", OF_SESSIONS.values(), ids=OF_SESSIONS)
async def test_session_is_not_written_through_a_link(
    workspace: Path, outside: Path, plant: Callable[[Path, Path], None]
):
    before = contents(outside)
    plant(workspace, outside)

    sessions = SessionManager(workspace)
    with suppress(StorageError):
        async with sessions.hold("cli:direct") as session:
            await sessions.append(session, {"role": "user", "content": ATTACK})
            session.messages[0] = {**session.messages[0], "content": "changed"}
            sessions.save(session)
    with suppress(StorageError):
        sessions.archive("cli:direct")

    assert contents(outside) == before


def test_pipe_in_place_of_a_session_does_not_stop_the_process(workspace: Path):
    (workspace / "sessions").mkdir()
    os.mkfifo(workspace / "sessions" / "cli_direct.jsonl")

    with pytest.raises(StorageError, match="not a regular file"):
        SessionManager(workspace).get_or_create("cli:direct")


async def test_owner_is_told_of_the_link_and_which_file_to_put_right(tmp_path: Path, workspace: Path, outside: Path):
    link_file("sessions/cli_direct.jsonl")(workspace, outside)

    async with open_bot(tmp_path) as bot:
        reply = await bot.say(ATTACK)

    assert str(workspace / "sessions" / "cli_direct.jsonl") in reply
    assert "replace the link by a real file or folder" in reply
    assert (outside / "profile").read_text(encoding="utf-8") == "# of the user's\n"


OF_JOBS = {
    "jobs": link_file("cron/jobs.json"),
    "jobs that are missing": link_missing_file("cron/jobs.json"),
    "folder of jobs": link_folder("cron"),
}


@pytest.mark.parametrize("plant", OF_JOBS.values(), ids=OF_JOBS)
async def test_jobs_are_not_written_through_a_link(workspace: Path, outside: Path, plant: Callable[[Path, Path], None]):
    (outside / "jobs.json").write_text('{"version": 1, "jobs": []}', encoding="utf-8")
    before = contents(outside)
    plant(workspace, outside)

    seen = [before]

    async def run(job: object) -> None:
        seen.append(contents(outside))

    service = CronService(workspace / "cron" / "jobs.json", run)
    with suppress(StorageError, OSError):
        job = service.add_job(ATTACK, CronSchedule("every", every_ms=60_000), ATTACK)
        await service.run_job(job.id, force=True)
        await service.wait_for_runs()
    await service.close()

    assert [*seen, contents(outside)] == [before] * (len(seen) + 1)


def test_workspace_may_itself_lie_behind_a_link(tmp_path: Path, workspace: Path):
    (tmp_path / "link").symlink_to(workspace, target_is_directory=True)
    sessions = SessionManager(tmp_path / "link")
    session = sessions.get_or_create("cli:direct")
    session.add_message("user", "hello")

    sessions.save(session)
    CronService(tmp_path / "link" / "cron" / "jobs.json").add_job("a", CronSchedule("every", every_ms=60_000), "x")

    assert (workspace / "sessions" / "cli_direct.jsonl").is_file()
    assert (workspace / "cron" / "jobs.json").is_file()
