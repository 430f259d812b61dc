import os
import stat

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from nanobot.agent.events import StepEnded
from nanobot.cli.chat.completion import ChatCompleter, can_complete
from nanobot.cli.chat.prompt import ChatHistory, PasteStore
from nanobot.cli.chat.session import UsageMeter
from nanobot.cli.chat.typed_lines import find_mentioned_files
from nanobot.usage.types import format_tokens
from tests.support.turn_events import step


@pytest.fixture
def completer(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "plan.md").touch()
    (tmp_path / "Readme.md").touch()
    (tmp_path / ".hidden").touch()
    for unwanted in (".git", "node_modules", ".venv"):
        (tmp_path / unwanted).mkdir()
        (tmp_path / unwanted / "index").touch()
    return ChatCompleter({"help": "this list", "history": "the last"}, lambda: {"weather": "Forecasts"}, [tmp_path])


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("/h", ["help", "history"]),
        ("/HE", ["help"]),
        ("tell /h", []),
        ("use $we", ["weather"]),
        ("costs 5$", []),
        ("read @", ["Readme.md", "node_modules/", "notes/"]),
        ("read @re", ["Readme.md"]),
        ("read @notes/pl", ["plan.md"]),
        ("read @.h", [".hidden"]),
        ("read @nowhere/x", []),
        ("read @plan", ["notes/plan.md"]),
        ("read @nplmd", ["notes/plan.md"]),
        ("read @index", []),
        ("mail me@no", []),
    ],
)
def test_commands_skills_and_files_are_completed_where_they_may_stand(completer, typed, expected):
    found = [one.text for one in completer.get_completions(Document(typed), CompleteEvent())]

    assert found == expected
    assert can_complete(typed) or not expected


def test_the_current_folder_comes_before_the_workspace_and_the_best_match_first(tmp_path):
    for path in (
        "here/src/planner.py",
        "here/a/plan.md",
        "here/explain.txt",
        "workspace/plan.md",
        "workspace/old plan",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    completer = ChatCompleter({}, dict, [tmp_path / "here", tmp_path / "workspace"])

    found = [one.text for one in completer.get_completions(Document("@plan"), CompleteEvent())]

    assert found == ["plan.md", "a/plan.md", "src/planner.py", "explain.txt", "old plan"]


def test_a_search_in_a_huge_folder_ends(tmp_path):
    (tmp_path / "deep").mkdir()
    for number in range(300):
        (tmp_path / "deep" / f"file{number}").touch()
    (tmp_path / "near-file").touch()
    completer = ChatCompleter({}, dict, [tmp_path], max_entries=20)

    found = [one.text for one in completer.get_completions(Document("@file"), CompleteEvent())]

    assert "near-file" in found
    assert len(found) < 20


def test_files_named_after_an_at_go_with_the_message_and_other_words_do_not(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "plan.md").touch()
    (tmp_path / "a.txt").touch()
    line = (
        f"compare @a.txt, with (@notes/plan.md) @notes/plan.md. Mail me@a.txt @nobody @notes @\0 @{'x' * 5000} @a.txt"
    )

    assert find_mentioned_files(line, tmp_path) == [str(tmp_path / "a.txt"), str(tmp_path / "notes" / "plan.md")]


def test_the_history_is_private_and_survives_odd_characters(tmp_path):
    path = tmp_path / "history" / "cli_history"
    history = ChatHistory(path)

    history.append_string("grüße \udcff\nline two")

    assert [*ChatHistory(path).load_history_strings()] == ["grüße �\nline two"]
    if os.name != "nt":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_folder_in_the_place_of_the_history_costs_only_the_history(tmp_path):
    history = ChatHistory(tmp_path)

    history.append_string("kept in memory")

    assert history.get_strings() == ["kept in memory"]
    assert [*history.load_history_strings()] == []


def test_a_short_paste_is_itself_and_a_long_one_a_mark_that_comes_back_whole():
    pastes = PasteStore()
    long = "\n".join(f"line {number}" for number in range(500))

    assert pastes.collapse("a\r\nb") == "a\nb"
    mark = pastes.collapse(long)

    assert mark == "[pasted #1, 500 lines]"
    assert pastes.expand(f"see {mark} and [pasted #9, 2 lines]") == f"see {long} and [pasted #9, 2 lines]"


def test_the_bottom_line_adds_up_steps_and_shows_only_what_is_known():
    meter = UsageMeter()
    meter.model = "m"
    meter.in_window, meter.window_tokens = 500, 10_100
    assert meter.line() == "m"

    for event in [*step("a", calls=True), *step("b")]:
        meter(event)

    assert meter.line() == "m · 2.0k in · 50% cached · 20 out · 10% of 10.1k window"
    assert meter.line(40) == "m · 2.0k in · 10% of 10.1k window"
    assert meter.line(1) == "m"


@pytest.mark.parametrize(
    ("costs", "line"),
    [((0.01, None, 0.002), "m · $0.012"), ((None, None), "m"), ((0.0,), "m"), ((1.5, 0.25), "m · $1.75")],
)
def test_the_bottom_line_ends_in_the_cost_of_this_sitting(costs, line):
    meter = UsageMeter()
    meter.model = "m"

    for cost in costs:
        meter(StepEnded(step=0, finish_reason="stop", usage={}, cost_usd=cost))

    assert meter.line() == line


@pytest.mark.parametrize(
    ("tokens", "text"),
    [(0, "0"), (999, "999"), (1000, "1.0k"), (99_960, "100k"), (999_600, "1.0M"), (1_250_000, "1.2M")],
)
def test_tokens_are_shown_short(tokens, text):
    assert format_tokens(tokens) == text
