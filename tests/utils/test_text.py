import contextlib
import json
import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.utils.text import (
    decode,
    format_when,
    json_objects,
    repair_json,
    strict_json,
)


@given(st.text(st.characters(codec="utf-8")))
def test_text_as_bytes_comes_back_as_it_was(text: str):
    assert decode(text.encode()) == text


def test_of_lines_of_json_the_objects_are_read_and_the_rest_is_passed_over():
    data = b'{"a": 1}\r\n[2]\n\xff\n\n{"a": "\xe2\x80\xa8"}\n{"a": 3'

    assert [*json_objects(data)] == [{"a": 1}, {"a": "\u2028"}]


@given(st.binary())
def test_no_bytes_stop_the_reading_of_lines(data: bytes):
    assert all(isinstance(found, dict) for found in json_objects(data))


def test_a_long_text_that_was_cut_off_in_broken_json_is_mended():
    content = 'print("a")\n' * 6_000 + "# end"

    assert repair_json(json.dumps({"path": "a.py", "content": content})[:-1]) == {"path": "a.py", "content": content}


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        ('{"a": [', 'a"'),
        ("", "\\"),
        *(
            pytest.param(*row, marks=pytest.mark.slow)
            for row in [("", "{a,"), ("", "{'"), ('{"a":"', "{a:"), ("```json\n", "{'")]
        ),
    ],
)
def test_no_broken_json_takes_long(head: str, piece: str):
    text = head + piece * (30_000 // len(piece))
    began = time.process_time()

    with contextlib.suppress(ValueError):
        repair_json(text)

    assert time.process_time() - began < 3  # the repair alone would take minutes


def test_json_that_is_written_comes_back_also_where_it_holds_half_a_character():
    told = {"whole": "ü 👍", "half \ud83d": ["\udc00", 1.5, None]}

    assert json.loads(strict_json(told).encode()) == told
    assert strict_json({"a": "ü"}) == '{"a":"ü"}'


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "now"),
        (-20, "20 s ago"),
        (719.8, "in 12 min"),
        (-7500, "2 h 5 min ago"),
        (86_400 * 3, "in 3 days"),
    ],
)
def test_a_date_is_followed_by_how_far_away_it_is(seconds: float, words: str):
    now = datetime(2026, 12, 24, 17, 0, tzinfo=UTC)
    moment = (now + timedelta(seconds=seconds)).astimezone(ZoneInfo("Europe/Berlin"))

    assert format_when(moment, now) == f"{moment:%Y-%m-%d %H:%M} ({words})"
    assert format_when(moment, now, offset=True) == f"{moment:%Y-%m-%d %H:%M} +01:00 ({words})"
