"""Tasks and goals in the database: none is lost, none is in two hands, and old ones go."""

from pathlib import Path

from nanobot.agent.requester import Requester
from nanobot.agent.subagent.tasks import Task, TaskOrder
from nanobot.agent.work import SCHEMA, WorkState, WorkStore, read_work
from nanobot.bus.events import Address
from nanobot.session.manager import SessionManager
from nanobot.testing import calls
from nanobot.utils.database import open_database
from nanobot.utils.lease import ProcessLease
from tests.support.eventually import eventually
from tests.support.scripted_model import Cast, on_stage
from tests.support.work import change_work, reported_tasks


def task(name: str, *, parent: str = "cli:direct") -> Task:
    order = TaskOrder(f"do {name}", name, Requester(parent, Address("cli", "direct")), root=parent)
    return Task(id=name, order=order, state=WorkState.RUNNING, result="half a \ud83d")


async def test_only_from_a_dead_process_is_taken_over_and_by_one_alone(tmp_path: Path):
    path, leases = tmp_path / "state" / "nanobot.db", [ProcessLease(tmp_path / "leases") for _ in range(3)]
    async with open_database(path, SCHEMA) as database:
        first, second, third = (WorkStore(Task, database, lease) for lease in leases)
        for name, parent in (("1", "cli:direct"), ("2", "telegram:7"), ("3", "telegram:7")):
            await first.add(task(name, parent=parent))
        change_work(tmp_path, "id = '3'", data="{")  # cannot be read, and keeps none of the others back

        alive = await second.take(), len(read_work(path, Task, alive=leases[1]))
        leases[0].release()
        dead = len(read_work(path, Task, alive=leases[1]))
        of_one = [(one.id, one.result) for one in await second.take("telegram:7")]
        rest = [one.id for one in await third.take()]

        assert alive == ([], 2)
        assert dead == 0
        assert (of_one, rest) == ([("2", "half a ?")], ["1"])
        assert await second.take() == await third.take() == []
        assert len(read_work(path, Task, alive=leases[0])) == 2


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
