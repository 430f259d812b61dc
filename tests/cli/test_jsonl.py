import io
import json

from nanobot.agent.events import TextDelta, TurnOutcome
from nanobot.cli.chat.plain import JsonLinesOutput
from tests.support.turn_events import ended, step


def test_each_event_is_one_line_of_json_with_its_type_and_the_last_is_the_end():
    out = io.StringIO()
    face = JsonLinesOutput(out, io.StringIO())

    for event in [*step("漢字", calls=True), TextDelta(text="broken \ud800"), ended("done")]:
        face(event)

    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [row["type"] for row in rows][:4] == ["step_started", "text_started", "text_delta", "text_ended"]
    assert rows[2]["text"] == "漢字"
    assert rows[-1] == {"type": "turn_ended", "turn_id": "", "seq": -1} | rows[-1]
    out.getvalue().encode()


def test_a_failure_is_told_on_stderr_too():
    aside = io.StringIO()

    JsonLinesOutput(io.StringIO(), aside)(ended("The key was\nrefused.", TurnOutcome.FAILED))

    assert aside.getvalue() == "Error: The key was refused.\n"
