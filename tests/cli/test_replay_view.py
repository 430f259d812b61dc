"""A recorded turn as lines for a person: nothing in it steers the terminal, everything stands where it happened."""

from rich.cells import cell_len

from nanobot.agent.trace.reader import RecordedCall, RecordedStep, RecordedTurn
from nanobot.cli.commands.replay import TurnPrinter
from nanobot.cli.terminal import Paint


def lines(*steps: RecordedStep, width: int = 100, **fields: object) -> list[str]:
    turn = RecordedTurn("t1", "cli:direct", "2026-01-02T03:04:05", steps=[*steps], **fields)  # type: ignore[arg-type]
    return TurnPrinter(Paint(False), width).turn(turn)


def test_notices_and_words_that_joined_stand_in_their_step():
    joined = RecordedStep("two", joined=[{"role": "user", "content": "faster"}])

    shown = lines(RecordedStep("one"), joined, notices=[{"step": 1, "text": "Trying again in 2 s."}])

    said = ["  one", "You, meanwhile", "  faster", "  two", "  ! Trying again in 2 s."]
    assert [line for line in shown if line in said] == said
    assert "  ! Waiting." in lines(notices=[{"step": 0, "text": "Waiting."}], outcome="failed")
    assert lines()[-1].startswith("No end was recorded: it is still running, or the process died")


def test_our_own_last_word_is_shown_and_what_a_step_said_only_once():
    assert lines(RecordedStep("half of it"), outcome="stopped", text="half of it").count("  half of it") == 1
    assert "  (At the limit.)" in lines(RecordedStep("half of it"), outcome="partial", text="(At the limit.)")


def test_a_call_without_a_result_says_so_and_a_long_result_is_counted_and_every_line_fits():
    unknown = RecordedCall("1", "exec", {"command": "sleep 1"})
    long = RecordedCall("2", "list_dir", {}, content="\n".join(f"line {number}" for number in range(20)))
    wide = RecordedCall("3", "exec", {"command": "漢" * 300}, content="x" * 500, seconds=0.5, ok=False)

    shown = lines(RecordedStep(calls=[unknown, long, wide]), width=60)

    assert "    no result was stored" in shown
    assert "    ... 15 more lines" in shown
    assert max(map(cell_len, shown[4:-1])) <= 60


def test_nothing_that_was_kept_steers_the_terminal():
    evil = "\x1b]0;title\x07\x1b[2J"
    call = RecordedCall("1", f"x{evil}", {evil: evil}, content=evil)

    shown = lines(RecordedStep(evil, calls=[call]), message=evil, model=evil, error=evil, notices=[{"text": evil}])

    assert "\x1b" not in "".join(shown)
