import json

from hypothesis import given
from hypothesis import strategies as st

from nanobot.cli.terminal import repair_output, strip_control


def test_what_would_steer_the_terminal_is_left_out():
    text = "a\x1b[2Jb\x1b]0;title\x07c\x1b]52;c;ZXZpbA==\x1b\\d\x07e\x9bf\r\ng\th"

    assert strip_control(text) == "abcdef\ng\th"


def test_bytes_that_came_as_surrogates_are_read_as_utf_8():
    assert repair_output("gr\udcc3\udcbc\udcc3\udc9fe \udcff") == "grüße �"


@given(st.text(st.characters(codec=None)))
def test_any_text_can_be_sent_and_shown(text):
    json.dumps(repair_output(text)).encode()
    shown = strip_control(text)

    shown.encode()
    assert "\x1b" not in shown
