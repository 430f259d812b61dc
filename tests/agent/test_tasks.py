"""Tasks on the disk: none is lost, none is in two hands, and what a life that ended has left is found."""

import os
import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from nanobot.agent.scope import Scope
from nanobot.agent.subagent.roles import TaskRole
from nanobot.agent.subagent.tasks import ProcessLease, Task, TaskState, TaskStore, task_counts
from nanobot.bus.events import Address
from nanobot.messages.types import Origin, Provenance
from nanobot.session.manager import SessionManager
from nanobot.testing import calls
from tests.support.eventually import eventually
from tests.support.scripted_model import Cast, on_stage


def task(name: str, life: ProcessLease, *, parent: str = "cli:direct", state: TaskState = TaskState.RUNNING) -> Task:
    return Task(name, f"do {name}", name, parent, Address("cli", "direct"), root=parent, life=life.name, state=state)


@given(
    st.builds(
        Task,
        st.just("1a2b3c4d"),
        st.text(),
        st.text(),
        st.text(),
        st.builds(Address, st.text(), st.text(), st.none() | st.text()),
        st.sampled_from(Provenance),
        st.sampled_from(Origin),
        st.none() | st.text(),
        st.booleans(),
        st.builds(Scope, st.text()),
        state=st.sampled_from(TaskState),
        result=st.text(),
        cost_usd=st.none() | st.floats(0, 1e6),
        seen=st.sampled_from(Provenance),
        role=st.sampled_from(TaskRole),
    )
)
def test_a_task_comes_back_as_it_was(one: Task):
    assert Task.from_json(one.to_json()) == one


def test_a_task_is_open_until_its_end_was_told(tmp_path: Path):
    store = TaskStore(tmp_path)
    life = ProcessLease(store)
    one = task("1", life)

    store.save(one)
    before = [found.id for found in store.open_tasks()], [found.id for found in store.done_tasks()]
    one.state, one.reported = TaskState.DONE, True
    store.save(one)
    after = [found.id for found in store.open_tasks()], [found.id for found in store.done_tasks()]

    assert before == (["1"], [])
    assert after == ([], ["1"])


def test_a_file_that_is_no_task_is_kept_aside_and_harms_no_other(tmp_path: Path):
    store = TaskStore(tmp_path)
    store.save(task("1", ProcessLease(store)))
    (tmp_path / "2.json").write_text('{"id": "2", "tas')

    found = store.open_tasks()

    assert [one.id for one in found] == ["1"]
    assert (tmp_path / "2.json.corrupt").read_text() == '{"id": "2", "tas'


def test_only_a_life_that_ended_is_inherited_from_and_by_one_alone(tmp_path: Path):
    store = TaskStore(tmp_path)
    first, second, third = ProcessLease(store), ProcessLease(store), ProcessLease(store)
    first.begin()
    for name, parent in (("1", "cli:direct"), ("2", "telegram:7")):
        store.save(task(name, first, parent=parent))

    alive = second.inherit(), task_counts(tmp_path)
    first.end()
    dead = task_counts(tmp_path)
    of_one = [one.id for one in second.inherit("telegram:7")]
    rest = [one.id for one in third.inherit()]

    assert alive == ([], (2, 0))
    assert dead == (0, 0)
    assert (of_one, rest) == (["2"], ["1"])
    assert second.inherit() == third.inherit() == []
    assert task_counts(tmp_path) == (2, 0)


async def test_old_transcripts_go_after_their_days(tmp_path: Path):
    spawn = calls(("spawn", {"task": "prices"}))
    async with on_stage(tmp_path, Cast(spawn, "On it.", "3.", prices=["3"])) as stage:
        await stage.hear("prices?")
        await stage.quiet()
    (file,) = (tmp_path / "state" / "tasks" / "done").glob("*.json")
    long_ago = time.time() - 31 * 86_400
    os.utime(file, (long_ago, long_ago))

    async with on_stage(tmp_path, Cast(spawn, "On it.", "4.", prices=["4"])) as again:
        await again.hear("prices?")
        await eventually(lambda: not file.exists())
        await again.quiet()
        sessions = [row["key"] for row in SessionManager(again.workspace).list_sessions()]

    assert f"subagent:{file.stem}" not in sessions
    assert len(sessions) == 2


def test_what_a_kill_left_of_a_save_goes_with_its_task_and_what_belongs_to_none_in_time(tmp_path: Path):
    store = TaskStore(tmp_path)
    dead, life = ProcessLease(store), ProcessLease(store)
    store.save(task("1", dead))
    dead.begin()
    dead.end()  # as a kill does: the lock goes, the task stays
    half = tmp_path / ".1.json.0a1b2c3d.tmp"
    nobodys, young = tmp_path / ".2.json.0a1b2c3d.tmp", tmp_path / ".3.json.0a1b2c3d.tmp"
    forgotten, alive = tmp_path / "lives" / "gone.lock", tmp_path / "lives" / f"{life.name}.lock"
    life.begin()
    for path in (half, nobodys, young, forgotten):
        path.write_text("{")
    for path in (nobodys, forgotten, alive):
        os.utime(path, (1, 1))

    inherited = life.inherit()
    store.sweep(before=0)

    assert [one.id for one in inherited] == ["1"]
    assert [path.exists() for path in (half, nobodys, young, forgotten, alive)] == [False, False, True, False, True]
