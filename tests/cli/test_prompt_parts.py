"""What the prompt of the chat makes of a typed line and of a turn's usage. Pure."""

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from nanobot.agent.events import StepEnded
from nanobot.cli.chat.completion import ChatCompleter, can_complete
from nanobot.cli.chat.keyboard import find_mentioned_files, terminal_command
from nanobot.cli.chat.session import UsageMeter
from nanobot.usage.types import format_tokens


@pytest.fixture
def folders(tmp_path):
    """The current folder and the workspace."""
    here = (
        "notes/plan.md",
        "Readme.md",
        ".hidden",
        ".git/index",
        "node_modules/index",
        ".venv/index",
        "src/explain.md",
    )
    for path in (*[f"here/{name}" for name in here], "workspace/plan.md", "workspace/old plan"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    return [tmp_path / "here", tmp_path / "workspace"]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("/h", ["help", "history"]),
        ("/HE", ["help"]),
        ("tell /h", []),
        ("use $we", ["weather"]),
        ("costs 5$", []),
        ("read @", ["Readme.md", "node_modules/", "notes/", "src/", "old plan", "plan.md"]),
        ("read @re", ["Readme.md"]),
        ("read @notes/pl", ["plan.md"]),
        ("read @.h", [".hidden"]),
        ("read @nowhere/x", []),
        ("read @nplmd", ["notes/plan.md"]),
        ("read @index", []),
        ("read @pla", ["plan.md", "notes/plan.md", "src/explain.md", "old plan"]),  # the current folder, the best first
        ("mail me@no", []),
    ],
)
def test_commands_skills_and_files_are_completed_where_they_may_stand(folders, typed, expected):
    completer = ChatCompleter({"help": "this list", "history": "the last"}, lambda: {"weather": "Forecasts"}, folders)

    found = [one.text for one in completer.get_completions(Document(typed), CompleteEvent())]

    assert found == expected
    assert can_complete(typed) or not expected


def test_a_search_in_a_huge_folder_ends(tmp_path):
    (tmp_path / "deep").mkdir()
    for number in range(300):
        (tmp_path / "deep" / f"file{number}").touch()
    (tmp_path / "near-file").touch()
    completer = ChatCompleter({}, dict, [tmp_path], max_entries=20)

    found = [one.text for one in completer.get_completions(Document("@file"), CompleteEvent())]

    assert "near-file" in found
    assert len(found) < 20


def test_files_named_after_an_at_go_with_the_message_and_other_words_do_not(folders):
    here = folders[0]
    names = f"@Readme.md, with (@src/explain.md) @notes/plan.md. Mail me@x @nobody @notes @\0 @{'x' * 5000} @Readme.md"

    assert find_mentioned_files(f"compare {names}", here) == [str(here / "Readme.md"), str(here / "notes" / "plan.md")]


@pytest.mark.parametrize(
    ("line", "command"),
    [("!vim x", "vim x"), ("!/usr/bin/less x", "/usr/bin/less x"), ("!! git rebase -i", "git rebase -i"), ("!ls", "")],
)
def test_editors_and_pagers_run_on_the_terminal_by_themselves(line, command):
    assert terminal_command(line) == command


@pytest.mark.parametrize(
    ("costs", "width", "line"),
    [
        ((), 200, "m"),
        ((None, None), 200, "m · 2.0k in · 50% cached · 20 out · 10% of 10.1k window"),
        ((None, None), 40, "m · 2.0k in · 10% of 10.1k window"),
        ((0.01, 0.002), 200, "m · 2.0k in · 50% cached · 20 out · 10% of 10.1k window · $0.012"),
        ((1.5, 0.25), 1, "m"),
    ],
)
def test_the_bottom_line_adds_up_steps_and_shows_what_is_known_and_fits(costs, width, line):
    meter = UsageMeter()
    meter.model, meter.in_window, meter.window_tokens = "m", 500, 10_100
    usage = {"prompt_tokens": 1000, "completion_tokens": 10, "cached_tokens": 500}

    for cost in costs:
        meter(StepEnded(step=0, finish_reason="stop", usage=usage, cost_usd=cost))

    assert meter.line(width) == line


@pytest.mark.parametrize(
    ("tokens", "text"),
    [(0, "0"), (999, "999"), (1000, "1.0k"), (99_960, "100k"), (999_600, "1.0M"), (1_250_000, "1.2M")],
)
def test_tokens_are_shown_short(tokens, text):
    assert format_tokens(tokens) == text
