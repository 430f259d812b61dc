"""A goal's helpers: a planner before it, a reviewer after it, subagents in it; all at the goal's cost."""

from pathlib import Path

from nanobot.messages.types import Origin, text_of
from nanobot.testing import calls
from tests.support.goals import FINISH, LIST, PASS, WRITE, asked, goal_of
from tests.support.scripted_model import Cast, defaults, on_stage

BACK = "VERDICT: SEND BACK\npage.md has no second heading."


async def test_a_planner_writes_the_tasks_before_the_first_turn(tmp_path: Path):
    cast = Cast(WRITE, FINISH, "There.", **{"Plan this": [LIST]})

    async with on_stage(tmp_path, cast) as stage:
        await stage.hear("/goal --plan write a page")
        await stage.quiet()

    assert "Next: \n- [ ] a page with a heading\n- [ ] it says hello" in asked(stage, 0)
    assert goal_of(tmp_path)["steps"] == 4


async def test_a_plan_that_fails_is_done_without(tmp_path: Path):
    cast = Cast(WRITE, FINISH, "There.", **{"Plan this": ["I would rather not."]})

    async with on_stage(tmp_path, cast) as stage:
        await stage.hear("/goal --plan write a page")
        await stage.quiet()

    assert stage.replies()[1].startswith("There.")


async def test_a_reviewer_reads_the_result_first_and_may_send_it_back(tmp_path: Path):
    cast = Cast(WRITE, FINISH, "There.", FINISH, "Mended.", **{"Review this": [BACK, PASS]})

    async with on_stage(tmp_path, cast) as stage:
        await stage.hear("/goal --review write a page")
        await stage.quiet()

    assert "A reviewer rejected your result" in asked(stage, 3)
    assert "The reviewer objects: page.md has no second heading." in asked(stage, 3)
    assert stage.replies()[1].startswith("Mended.") and len(stage.replies()) == 2
    assert "not content" not in stage.replies()[1]


async def test_it_is_sent_back_twice_at_most_and_what_remains_is_told(tmp_path: Path):
    cast = Cast(WRITE, FINISH, "One.", FINISH, "Two.", FINISH, "Three.", **{"Review this": [BACK, BACK, BACK]})

    async with on_stage(tmp_path, cast, config=defaults(review=True)) as stage:
        await stage.hear("/goal write a page")
        await stage.quiet()

    assert stage.replies()[1].startswith("Three.")
    assert "(The reviewer still objects: page.md has no second heading.)" in stage.replies()[1]


async def test_a_reviewer_that_says_nothing_usable_is_no_pass_and_no_loop(tmp_path: Path):
    cast = Cast(WRITE, FINISH, "One.", **{"Review this": ["Nice weather."]})

    async with on_stage(tmp_path, cast, config=defaults(review=True)) as stage:
        await stage.hear("/goal write a page")
        await stage.quiet()

    assert "(The reviewer still objects: The reviewer gave no verdict that could be read.)" in stage.replies()[1]


async def test_subagents_of_a_goal_are_waited_for_and_count_among_its_steps(tmp_path: Path):
    spawn = calls(("spawn", {"task": "prices", "label": "prices"}))
    look = calls(("list_dir", {"path": "."}))
    cast = Cast(spawn, WRITE, FINISH, "There.", prices=[look, "3 euros"])

    async with on_stage(tmp_path, cast) as stage:
        await stage.hear("/goal write a page")
        await stage.quiet()
        reports = stage.reports()
        result = next(text_of(row["content"]) for row in stage.rows() if row["role"] == "tool")

    assert "3 euros" in result and reports == []
    assert goal_of(tmp_path)["steps"] == 6
    assert {row["origin"] for row in stage.rows() if row["role"] == "user"} == {Origin.GOAL}


async def test_what_the_goal_may_not_use_its_subagents_may_not(tmp_path: Path):
    spawn = calls(("spawn", {"task": "prices", "label": "prices"}))
    looks = [calls(("list_dir", {"path": ".", "max_entries": number})) for number in range(1, 9)]
    cast = Cast(spawn, prices=looks)

    async with on_stage(tmp_path, cast) as stage:
        await stage.hear("/goal --steps 4 write a page")
        await stage.quiet()

    asked = len(cast.agent.requests) + len(cast.children["prices"].requests)
    assert asked == 5, "a step counts when it ends, and the agent's has not while it waits: one call more at most"
    assert "its limit of 4 steps is reached" in stage.replies()[1]
