import pytest

from nanobot.agent.events import TurnEnded, TurnOutcome
from nanobot.cli.chat.event_lines import TurnSummary, format_turn_end


@pytest.mark.parametrize(
    ("outcome", "text", "said", "expected"),
    [
        (TurnOutcome.ANSWERED, "the answer", ["the answer"], TurnSummary()),
        (TurnOutcome.ANSWERED, "the answer", ["let me look", "the answer\n"], TurnSummary()),
        (TurnOutcome.ANSWERED, "one two", ["one ", "two"], TurnSummary()),
        (TurnOutcome.ANSWERED, "from a command", [], TurnSummary("from a command")),
        (TurnOutcome.ANSWERED, "", ["said"], TurnSummary()),
        (
            TurnOutcome.PARTIAL,
            "half\n\n(Stopped at 40.)",
            ["half"],
            TurnSummary("(Stopped at 40.)", "(this answer is partial)"),
        ),
        (TurnOutcome.STOPPED, "half", ["half"], TurnSummary(remark="(stopped)")),
        (TurnOutcome.STOPPED, "a\n\nb", ["a", "b"], TurnSummary(remark="(stopped)")),
        (TurnOutcome.STOPPED, "come back later", [], TurnSummary("come back later", "(stopped)")),
        (TurnOutcome.FAILED, "the key was refused", ["half"], TurnSummary(remark="the key was refused")),
    ],
)
def test_what_was_not_said_yet_is_said_at_the_end_and_nothing_twice(outcome, text, said, expected):
    assert format_turn_end(TurnEnded(outcome=outcome, text=text), said) == expected


def test_a_failure_without_words_still_says_something():
    assert format_turn_end(TurnEnded(outcome=TurnOutcome.FAILED, text=""), []).remark
