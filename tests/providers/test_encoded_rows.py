"""Rows encoded once: the same bytes as all of them encoded anew, whatever was remembered."""

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from nanobot.messages.types import ChatMessage
from nanobot.providers.wire.rows import RequestDialect, RowsEncoder, encode, has_images, wire_messages

TEXTS = st.text(st.characters(codec=None), max_size=40)  # halves of surrogate pairs, too
CALLS = st.fixed_dictionaries(
    {
        "id": TEXTS,
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": TEXTS, "arguments": TEXTS}),
    },
    optional={"extra_content": st.dictionaries(TEXTS, TEXTS, max_size=1)},
)
BLOCKS = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}), max_size=2)
ROWS = st.one_of(
    st.fixed_dictionaries({"role": st.just("system"), "content": TEXTS}),
    st.fixed_dictionaries(
        {"role": st.just("user"), "content": TEXTS | BLOCKS},
        optional={"runtime_context": TEXTS, "media": st.lists(st.just("/nowhere/a.png"), max_size=1)},
    ),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": TEXTS | st.none()},
        optional={"tool_calls": st.lists(CALLS, max_size=2), "reasoning_content": TEXTS},
    ),
    st.fixed_dictionaries({"role": st.just("tool"), "content": TEXTS}, optional={"tool_call_id": TEXTS}),
)
DIALECTS = st.builds(RequestDialect, reasoning=st.booleans(), extra_content=st.booleans(), images=st.booleans())


def rows_of(found: list[dict[str, Any]]) -> list[ChatMessage]:
    return cast("list[ChatMessage]", found)


@given(st.lists(ROWS, max_size=8), st.lists(st.tuples(st.lists(st.integers(0, 7), max_size=8), DIALECTS), max_size=6))
def test_remembered_rows_make_the_very_body_of_a_plain_encoding(
    found: list[dict[str, Any]], requests: list[tuple[list[int], RequestDialect]]
):
    encoder = RowsEncoder(max_bytes=2_000)  # forgets, too

    for places, dialect in requests:
        rows = rows_of([found[place] for place in places if place < len(found)])
        encoded = encoder.encode(rows, dialect)

        if encoded is None:
            assert dialect.images and has_images(rows)
        else:
            assert encoded == encode(wire_messages(rows, dialect))


def test_a_row_whose_words_were_edited_is_encoded_again():
    encoder = RowsEncoder()
    rows = rows_of([{"role": "user", "content": "before"}])
    encoder.encode(rows, RequestDialect())

    rows[0]["content"] = "after"

    assert encoder.encode(rows, RequestDialect()) == b'[{"role":"user","content":"after"}]'
