import pytest

from nanobot.agent.turn import TurnEnded, TurnOutcome
from nanobot.cli.closing import Closing, closing_words


@pytest.mark.parametrize(
    ("outcome", "text", "said", "expected"),
    [
        (TurnOutcome.ANSWERED, "the answer", ["the answer"], Closing()),
        (TurnOutcome.ANSWERED, "the answer", ["let me look", "the answer\n"], Closing()),
        (TurnOutcome.ANSWERED, "one two", ["one ", "two"], Closing()),
        (TurnOutcome.ANSWERED, "from a command", [], Closing("from a command")),
        (TurnOutcome.ANSWERED, "", ["said"], Closing()),
        (
            TurnOutcome.PARTIAL,
            "half\n\n(Stopped at 40.)",
            ["half"],
            Closing("(Stopped at 40.)", "(this answer is partial)"),
        ),
        (TurnOutcome.STOPPED, "half", ["half"], Closing(remark="(stopped)")),
        (TurnOutcome.STOPPED, "a\n\nb", ["a", "b"], Closing(remark="(stopped)")),
        (TurnOutcome.STOPPED, "come back later", [], Closing("come back later", "(stopped)")),
        (TurnOutcome.FAILED, "the key was refused", ["half"], Closing(remark="the key was refused")),
    ],
)
def test_what_was_not_said_yet_is_said_at_the_end_and_nothing_twice(outcome, text, said, expected):
    assert closing_words(TurnEnded(outcome=outcome, text=text), said) == expected


def test_a_failure_without_words_still_says_something():
    assert closing_words(TurnEnded(outcome=TurnOutcome.FAILED, text=""), []).remark
