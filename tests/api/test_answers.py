"""An answer is the same text however often it is read on the way."""

from hypothesis import given, settings
from hypothesis import strategies as st

from nanobot.agent import events
from nanobot.agent.events import TurnEvent, TurnOutcome
from nanobot.agent.feed import TurnStarted, TurnView
from nanobot.api.answers import AnswerReader

WORDS = st.lists(st.sampled_from(["Hi", " there", "\n\n", "ä", " 42", "."]), min_size=1, max_size=5)
STEPS = st.lists(st.tuples(WORDS, st.booleans(), st.booleans()), max_size=4)


def turn(steps: list[tuple[list[str], bool, bool]], note: str) -> list[TurnEvent]:
    """The events of a turn: texts in pieces, some of which continue the last one, some followed by a tool call."""
    shown: list[TurnEvent] = []
    last = ""
    for number, (words, continues, calls) in enumerate(steps):
        text = "".join(words)
        last = last + text if continues else text
        shown.append(events.TextStarted(continues=continues or None))
        shown += [events.TextDelta(text=word) for word in words]
        shown.append(events.TextEnded(text=text, final=not calls))
        if calls:
            shown.append(events.ToolStarted(call_id=str(number), name="run", arguments={}))
            shown.append(events.ToolEnded(call_id=str(number), name="run", ok=True, content="", seconds=0))
            last = ""
    reply = f"{last.strip()}\n\n{note}".strip()
    return [*shown, events.TurnEnded(outcome=TurnOutcome.ANSWERED, text=reply)]


def new_view() -> TurnView:
    started = TurnStarted(text="", message_id=None, sender_id="", origin="api", media=[], at="")
    return TurnView(started, "api:x", "api")


def text_of(reader: AnswerReader) -> str:
    return "".join(f"{'¶' if piece.starts else ''}{piece.text}" for piece in reader.read())


@settings(max_examples=200, deadline=None)
@given(STEPS, st.sampled_from(["", "(a note)"]), st.lists(st.booleans(), max_size=40))
def test_reading_on_the_way_gives_the_same_as_reading_at_the_end(steps, note, stops):
    view, shown = new_view(), turn(steps, note)
    reader = AnswerReader(view)
    read = ""
    for number, event in enumerate(shown):
        view.apply(event)
        if number < len(stops) and stops[number]:
            read += text_of(reader)
    read += text_of(reader)

    assert read == text_of(AnswerReader(view))
    assert note in read
    assert reader.is_complete
