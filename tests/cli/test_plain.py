import io
import os

from nanobot.agent.events import Notice, TurnEvent, TurnOutcome
from nanobot.cli.chat.plain import PlainOutput
from tests.support.turn_events import ended, step


def shown(*happened: TurnEvent) -> tuple[str, str]:
    out, aside = io.StringIO(), io.StringIO()
    face = PlainOutput(out, aside)
    for event in happened:
        face(event)
    return out.getvalue(), aside.getvalue()


def test_a_pipe_gets_the_answer_its_line_end_and_nothing_else():
    assert shown(*step("Hel", "lo"), ended("Hello")) == ("Hello\n", "")


def test_each_piece_is_written_as_it_comes():
    out = io.StringIO()
    face = PlainOutput(out, io.StringIO())

    for event in step("Hel", "lo")[:3]:
        face(event)

    assert out.getvalue() == "Hel"


def test_what_is_said_before_a_tool_is_a_paragraph_of_its_own_and_the_tool_is_not_told():
    out, aside = shown(*step("Let me look.", calls=True), *step("It is x."), ended("It is x."))

    assert out == "Let me look.\n\nIt is x.\n"
    assert aside == ""


def test_an_answer_cut_by_length_goes_on_in_the_same_sentence():
    out, _ = shown(*step("one tw", reason="length"), *step("o three", number=1), ended("one two three"))

    assert out == "one two three\n"


def test_an_answer_that_broke_off_goes_on_in_the_same_sentence():
    broken = Notice(text="The answer broke off; asking for the rest of it.")
    out, aside = shown(
        *step("one tw", reason="interrupted"), broken, *step("o three", number=1), ended("one two three")
    )

    assert out == "one two three\n"
    assert "broke off" in aside


def test_the_text_of_a_command_is_written_though_nothing_was_streamed():
    assert shown(ended("No such command.")) == ("No such command.\n", "")


def test_a_failure_is_one_line_on_stderr_and_what_was_said_stays():
    out, aside = shown(*step("Half an ans"), ended("The key was refused.\nCheck it.", TurnOutcome.FAILED))

    assert out == "Half an ans\n"
    assert aside == "Error: The key was refused. Check it.\n"


def test_a_partial_answer_says_so_on_stderr():
    out, aside = shown(*step("Some"), ended("Some", TurnOutcome.PARTIAL))

    assert (out, aside) == ("Some\n", "(this answer is partial)\n")


def test_when_the_reader_leaves_the_rest_is_dropped_without_a_word():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as out:
        face = PlainOutput(out, io.StringIO())

        for event in [*step("Hello"), ended("Hello")]:
            face(event)

        assert face.stream.closed
        assert not face.stream.problem


def test_a_message_that_the_agent_sent_here_is_a_paragraph_before_the_answer():
    out = io.StringIO()
    face = PlainOutput(out, io.StringIO())

    face.show("The kettle is on.")
    for event in (*step("That was all."), ended("That was all.")):
        face(event)

    assert out.getvalue() == "The kettle is on.\n\nThat was all.\n"
