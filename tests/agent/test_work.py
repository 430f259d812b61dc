"""Tasks and goals in the database: none is lost, none is in two hands, and old ones go."""

from pathlib import Path

from nanobot.session.manager import SessionManager
from nanobot.testing import calls
from tests.support.eventually import eventually
from tests.support.scripted_model import Cast, on_stage
from tests.support.work import change_work, reported_tasks


async def test_old_transcripts_go_after_their_days(tmp_path: Path):
    spawn = calls(("spawn", {"task": "prices"}))
    async with on_stage(tmp_path, Cast(spawn, "On it.", "3.", prices=["3"])) as stage:
        await stage.hear("prices?")
        await stage.quiet()
    (old,) = reported_tasks(tmp_path)
    change_work(tmp_path, ended_at=old["ended_at"] - 31 * 86_400)

    async with on_stage(tmp_path, Cast(spawn, "On it.", "4.", prices=["4"])) as again:
        await again.hear("prices?")
        await eventually(lambda: old["id"] not in [one["id"] for one in reported_tasks(tmp_path)])
        await again.quiet()
        await eventually(lambda: len(SessionManager(again.workspace).list_sessions()) == 2)
        sessions = [row["key"] for row in SessionManager(again.workspace).list_sessions()]

    assert f"subagent:{old['id']}" not in sessions
