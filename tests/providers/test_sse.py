"""Events come out the same however the bytes were cut."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from nanobot.providers.wire.stream import SseParser

STREAM = (
    b"\xef\xbb\xbf: a comment\r\n\r\n"
    b'data: {"a": 1}\r\n\r\n'
    b"event: message\ndata:no space\n\n"
    b"data: first\ndata: second\r\n\r\nid: 7\nretry: 10\n\n"
    b"garbage without a colon\n\n"
    b"data: [DONE]\n\n"
)
EVENTS = [b'{"a": 1}', b"no space", b"first\nsecond", b"[DONE]"]


def read(chunks: list[bytes]) -> list[bytes]:
    parser = SseParser()
    return [event for chunk in chunks for event in parser.feed(chunk)] + parser.end()


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_cut_of_a_stream_gives_the_same_events(cuts):
    places = [0, *sorted(cuts), len(STREAM)]

    events = read([STREAM[a:b] for a, b in pairwise(places)])

    assert events == EVENTS


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_no_bytes_at_all_make_it_raise(chunks):
    read(chunks)


def test_an_event_that_the_server_did_not_end_is_read_at_the_end():
    assert read([b"data: last"]) == [b"last"]
