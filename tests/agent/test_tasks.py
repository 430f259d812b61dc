"""Tasks in the database: none is lost, none is in two hands, and old ones go."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from nanobot.agent.requester import Requester
from nanobot.agent.subagent.tasks import SCHEMA, Task, TaskOrder, TaskState, TaskStore, task_counts
from nanobot.bus.events import Address
from nanobot.session.manager import SessionManager
from nanobot.testing import calls
from nanobot.utils import codec
from nanobot.utils.database import open_database
from nanobot.utils.lease import ProcessLease
from tests.support.eventually import eventually
from tests.support.scripted_model import Cast, on_stage
from tests.support.tasks import change_tasks, reported_tasks


def task(name: str, *, parent: str = "cli:direct") -> Task:
    order = TaskOrder(f"do {name}", name, Requester(parent, Address("cli", "direct")), root=parent)
    return Task(name, order, TaskState.RUNNING)


def test_what_no_encoding_can_hold_harms_no_task():
    one = replace(task("1"), result="half a \ud83d")

    assert codec.from_json(Task, codec.to_json(one)) == replace(one, result="half a ?")


async def test_only_from_a_dead_process_is_inherited_and_by_one_alone(tmp_path: Path):
    path, leases = tmp_path / "nanobot.db", [ProcessLease(tmp_path / "leases") for _ in range(3)]
    async with open_database(path, SCHEMA) as database:
        first, second, third = (TaskStore(database, lease) for lease in leases)
        for name, parent in (("1", "cli:direct"), ("2", "telegram:7")):
            await first.save(task(name, parent=parent))

        alive = await second.inherit(), task_counts(path, leases[1])
        leases[0].release()
        dead = task_counts(path, leases[1])
        of_one = [one.id for one in await second.inherit("telegram:7")]
        rest = [one.id for one in await third.inherit()]

        assert alive == ([], (2, 0))
        assert dead == (0, 0)
        assert (of_one, rest) == (["2"], ["1"])
        assert await second.inherit() == await third.inherit() == []
        assert task_counts(path, leases[0]) == (2, 0)


async def test_a_task_that_cannot_be_read_keeps_none_of_the_others_back(tmp_path: Path):
    path, leases = tmp_path / "nanobot.db", [ProcessLease(tmp_path / "leases") for _ in range(2)]
    async with open_database(path, SCHEMA) as database:
        first, second = (TaskStore(database, lease) for lease in leases)
        for name in ("1", "2"):
            await first.save(task(name))
        leases[0].release()
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("UPDATE tasks SET data = '{' WHERE id = '1'")

        assert [one.id for one in await second.inherit()] == ["2"]


async def test_old_transcripts_go_after_their_days(tmp_path: Path):
    spawn = calls(("spawn", {"task": "prices"}))
    async with on_stage(tmp_path, Cast(spawn, "On it.", "3.", prices=["3"])) as stage:
        await stage.hear("prices?")
        await stage.quiet()
    (old,) = reported_tasks(tmp_path)
    change_tasks(tmp_path, ended_at=old["ended_at"] - 31 * 86_400)

    async with on_stage(tmp_path, Cast(spawn, "On it.", "4.", prices=["4"])) as again:
        await again.hear("prices?")
        await eventually(lambda: old["id"] not in [one["id"] for one in reported_tasks(tmp_path)])
        await again.quiet()
        await eventually(lambda: len(SessionManager(again.workspace).list_sessions()) == 2)
        sessions = [row["key"] for row in SessionManager(again.workspace).list_sessions()]

    assert f"subagent:{old['id']}" not in sessions
