"""The text of a turn on a pipe: what goes to stdout and what to stderr. `test_agent.py` runs it as a process."""

import io
from typing import Any

import pytest

from nanobot.agent.events import Notice, TurnOutcome
from nanobot.cli.chat.plain import PlainOutput
from tests.support.turn_events import ended, step

BROKEN = Notice(text="The answer broke off; asking for the rest of it.")


@pytest.mark.parametrize(
    ("happened", "out", "aside"),
    [
        ([*step("Let me look.", calls=True), *step("It is x."), ended("It is x.")], "Let me look.\n\nIt is x.\n", ""),
        ([*step("one tw", reason="length"), *step("o three"), ended("one two three")], "one two three\n", ""),
        (
            [*step("one tw", reason="interrupted"), BROKEN, *step("o three"), ended("one two three")],
            "one two three\n",
            f"  {BROKEN.text}\n",
        ),
        (
            [*step("Half an ans"), ended("The key was refused.\nCheck it.", TurnOutcome.FAILED)],
            "Half an ans\n",
            "Error: The key was refused. Check it.\n",
        ),
        ([*step("Some"), ended("Some", TurnOutcome.PARTIAL)], "Some\n", "(this answer is partial)\n"),
        (
            ["The kettle is on.", *step("That was all."), ended("That was all.")],
            "The kettle is on.\n\nThat was all.\n",
            "",
        ),
    ],
    ids=["a tool between two texts", "cut by length", "broken off", "failed", "partial", "a message before the answer"],
)
def test_an_answer_is_whole_paragraphs_on_stdout_and_the_rest_on_stderr(happened: list[Any], out: str, aside: str):
    stdout, stderr = io.StringIO(), io.StringIO()
    output = PlainOutput(stdout, stderr)

    for each in happened:
        (output.show if isinstance(each, str) else output)(each)

    assert (stdout.getvalue(), stderr.getvalue()) == (out, aside)
