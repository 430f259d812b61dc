"""Text as words of an index, and a question as what such an index is asked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.session.search.query import find_match, parse_query


def finds(question: str, text: str) -> bool:
    """Whether a text is found when all words of the question are asked for, also as parts of words."""
    return any(query.matches(text) for query in parse_query(question) if query.is_all)


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("invoice", "The Invoice, please."),
        ("cafe", "Wir waren im Café"),
        ("STRASSE", "in der Straße"),
        ("meet*", "two meetings"),
        ('"my function"', "call my_function(3)"),
        ("my_function", "call my_function(3)"),
        ("3.14", "it is 3.14 or so"),
        ("東", "私は東京にいます"),
        ("京", "私は東京"),
        ("東京", "私は東京にいます"),
        ("東京にいます", "私は東京にいます。"),
        ("会议", "昨天的会议取消了"),
        ("取消了", "昨天的会议取消了"),
        ("タワー", "ﾀﾜｰ"),
        ("서울", "서울에서 만나요"),
        ("만", "서울에서 만나요"),
        ("東京tower", "the 東京tower is red"),
        ("tower東", "tower東京"),
        ("Ёлка", "елка"),
        ("हिन्दी", "वह हिन्दी बोलता है"),
        ("ไทย", "ภาษาไทยง่าย"),
        ("voice", "The invoice"),
        ("meet", "two meetings"),
        ("Versicherung", "meine Krankenversicherung"),
        ("AI", "the AI said so"),
    ],
)
def test_a_text_is_found_by(question: str, text: str):
    assert finds(question, text)


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("京東", "私は東京にいます"),
        ('"function my"', "call my_function(3)"),
        ("東京 大阪", "私は東京にいます"),
        ("AI", "he said so"),
    ],
)
def test_a_text_is_not_found_by(question: str, text: str):
    assert not finds(question, text)


@given(st.text("東京都大阪会議ab ", min_size=1, max_size=12), st.data())
def test_every_piece_of_a_run_without_spaces_is_found(text: str, data: st.DataObject):
    runs = [run for run in text.replace("a", " ").replace("b", " ").split() if run]
    if not runs:
        return
    run = data.draw(st.sampled_from(runs))
    start = data.draw(st.integers(0, len(run) - 1))
    piece = run[start : data.draw(st.integers(start + 1, len(run)))]

    assert finds(piece, text)


@given(st.text(max_size=80))
def test_no_text_is_too_strange_to_be_asked_for(text: str):
    queries = parse_query(text)

    assert all(query.terms and all(query.terms) for query in queries)
    assert not queries or queries[0].matches(f"x {text} x") or '"' in text
    assert find_match(text, queries) >= (0, 0)
