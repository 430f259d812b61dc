"""A recorded turn as lines for a person: nothing in it steers the terminal, everything stands where it happened."""

from nanobot.agent.trace.reader import RecordedCall, RecordedStep, RecordedTurn
from nanobot.cli.commands.replay import TurnPrinter
from nanobot.cli.terminal import Paint


def lines(turn: RecordedTurn, width: int = 100, *, colour: bool = False) -> list[str]:
    return TurnPrinter(Paint(colour), width).turn(turn)


def turn(*steps: RecordedStep, **fields: object) -> RecordedTurn:
    return RecordedTurn("t1", "cli:direct", "2026-01-02T03:04:05", steps=[*steps], **fields)  # type: ignore[arg-type]


def test_a_notice_stands_in_the_step_in_which_it_was_told():
    told = {"step": 1, "text": "Trying again in 2 s."}

    shown = lines(turn(RecordedStep("one"), RecordedStep("two"), notices=[told], outcome="answered"))

    assert shown.index("  ! Trying again in 2 s.") > shown.index("  two")


def test_a_notice_of_a_step_that_never_was_stands_at_the_end():
    shown = lines(turn(notices=[{"step": 0, "text": "Waiting."}], outcome="failed"))

    assert "  ! Waiting." in shown


def test_words_that_joined_stand_before_the_step_that_heard_them():
    shown = lines(turn(RecordedStep("one"), RecordedStep("two", joined=[{"role": "user", "content": "faster"}])))

    assert shown[shown.index("You, meanwhile") + 1] == "  faster"
    assert shown.index("You, meanwhile") < shown.index("  two")


def test_a_turn_without_an_end_says_so():
    assert lines(turn())[-1].startswith("No end was recorded: it is still running, or the process died")


def test_our_own_last_word_is_shown_and_what_a_step_said_only_once():
    said = turn(RecordedStep("half of it"), outcome="stopped", text="half of it")
    ours = turn(RecordedStep("half of it"), outcome="partial", text="(Stopped at the limit.)")

    assert lines(said).count("  half of it") == 1
    assert "  (Stopped at the limit.)" in lines(ours)


def test_a_call_without_a_result_says_so_and_a_long_result_is_counted():
    unknown = RecordedCall("1", "exec", {"command": "sleep 1"})
    long = RecordedCall("2", "list_dir", {}, content="\n".join(f"line {number}" for number in range(20)))

    shown = lines(turn(RecordedStep(calls=[unknown, long])))

    assert "    no result was stored" in shown
    assert "    ... 15 more lines" in shown


def test_every_line_about_a_call_fits_the_screen():
    call = RecordedCall("1", "exec", {"command": "漢" * 300}, content="x" * 500, seconds=0.5, ok=False)

    shown = lines(turn(RecordedStep(calls=[call])), width=60)

    from rich.cells import cell_len

    assert max(map(cell_len, shown[4:8])) <= 60


def test_nothing_that_was_kept_steers_the_terminal():
    evil = "\x1b]0;title\x07\x1b[2J"
    call = RecordedCall("1", f"x{evil}", {evil: evil}, content=evil)
    kept = turn(RecordedStep(evil, calls=[call]), message=evil, model=evil, error=evil, notices=[{"text": evil}])

    assert "\x1b" not in "".join(lines(kept))
