"""What a run is told, and what of its answer reaches a person."""

from dataclasses import replace

import pytest

from nanobot.bus.events import Address
from nanobot.cron.commands import parse_answer
from nanobot.cron.format import NOTHING_TO_REPORT, fingerprint, is_worth_sending, may_notify, message_for, run_message
from nanobot.cron.types import CronJob, Notify, Run
from nanobot.messages.types import Origin, Provenance


def job(notify: Notify = Notify.ALWAYS, *, deliver: bool = True) -> CronJob:
    made = CronJob("a", "a")
    made.payload.message, made.payload.deliver, made.payload.notify = "Look at the door", deliver, notify
    return made


@pytest.mark.parametrize(
    ("notify", "answer", "told"),
    [
        (Notify.ALWAYS, "The door is shut.", True),
        (Notify.ALWAYS, "  ", False),
        (Notify.ALWAYS, None, False),
        (Notify.ON_CHANGE, "The door is open.", True),
        (Notify.ON_CHANGE, "the  door is shut.", False),
        (Notify.ON_ALERT, "The door is open.", True),
        (Notify.ON_ALERT, f"**{NOTHING_TO_REPORT}**.", False),
        (Notify.ON_ALERT, f"I was told to say {NOTHING_TO_REPORT}, but the door burns.", True),
        (Notify.NEVER, "The door is open.", False),
    ],
)
def test_an_answer_is_sent_as_the_job_says(notify: Notify, answer: str | None, told: bool):
    looks = job(notify)
    looks.runs.last_answer = fingerprint("The door is shut.")

    assert is_worth_sending(looks, answer) is told


@pytest.mark.parametrize("notify", Notify)
def test_a_silent_job_stays_silent_whatever_else_it_says(notify: Notify):
    silent = job(notify, deliver=False)

    assert not may_notify(silent)
    assert not is_worth_sending(silent, "Fire!")


def test_a_run_is_a_message_at_the_target_in_a_session_of_its_own():
    made = job()
    made.payload.channel, made.payload.to, made.payload.thread_id = "telegram", "5", "7"
    made.payload.session_key, made.payload.provenance = "telegram:5", Provenance.WEB

    message = message_for(made, Run("a", 60_000, 61_000))

    assert (message.session_key, message.address) == ("cron:a", Address("telegram", "5", "7"))
    assert (message.origin, message.provenance, message.message_id) == (Origin.CRON, Provenance.WEB, "cron:a:60000")
    assert message.message_id == message_for(made, Run("a", 60_000, 90_000, attempt=2)).message_id


def test_a_run_is_told_what_it_is_for_whom_and_how_late():
    late = Run("a", 18 * 3_600_000, 2, late_ms=7_500_000, missed=3)
    text = run_message(job(), late, "UTC")

    assert text.startswith(
        'Look at the door\n\n[Scheduled job "a", due 18:00 (2 h 5 min ago). Your answer is sent to cli'
    )
    assert text.endswith("3 earlier runs were missed; this one stands for all.]")
    assert "the person was sent the text above" in run_message(job(), replace(late, retry=1), "UTC")
    assert "due 1970-01-01 18:00 (13 h ago)." in run_message(job(), replace(late, late_ms=13 * 3_600_000), "UTC")
    assert "Nobody sees your answer" in run_message(job(deliver=False), late)
    assert "started by hand" in run_message(job(), Run("a", 1, 2, manual=True))
    assert NOTHING_TO_REPORT in run_message(job(Notify.ON_ALERT), late)
    assert NOTHING_TO_REPORT not in run_message(job(Notify.ON_ALERT, deliver=False), late)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Done.", ("done", "")),
        ("snooze", ("snooze", "")),
        ("snooze 1h", ("snooze", "1h")),
        ("Snooze 18:00", ("snooze", "18:00")),
        ("tomorrow", ("tomorrow", "")),
        ("done with the plants", None),
        ("snooze the meeting", None),
        ("tomorrow 9am", None),
        ("is it done", None),
    ],
)
def test_only_a_whole_message_answers_a_reminder(text: str, answer: tuple[str, str] | None):
    assert parse_answer(text) == answer
