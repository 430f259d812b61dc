"""What a model may make of facts: their own words, and no number, name or "not" that is in none of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.agent.memory.edits import apply_edits
from nanobot.agent.memory.facts import parse_facts
from nanobot.agent.memory.history import HistoryEntry
from nanobot.agent.memory.review import EditRules, KnownFact, UnusableAnswerError, find_unknown_word

MEMORY = "## People\n- Lives in Berlin.\n- Home: Berlin.\n- Has a dog.\n- Mine alone.\n\n## Plans\n- Flies to Oslo.\n"
RULES = EditRules(
    MEMORY,
    [KnownFact(fact, by_hand=fact.text == "Mine alone.") for fact in parse_facts(MEMORY)],
    [HistoryEntry("2026-02-26 13:21", "Moved to Hamburg.")],
    tidies=True,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["f1", "h1", "drop"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
EDIT = st.fixed_dictionaries(
    {"action": st.sampled_from(["replace", "drop", "archive", "move"]) | JSON},
    optional={
        "ids": st.lists(st.sampled_from(["f1", "f2", "f3", "f4", "f5", "h1"]), max_size=3) | JSON,
        "text": st.sampled_from(["Lives in Hamburg.", "Has a dog", "Mine", "# x", "Lives in\nBerlin"]) | JSON,
        "under": st.sampled_from(["Plans", "People"]) | JSON,
        "why": st.just("over") | JSON,
    },
)

FINE = [
    ("Married to Eva since 2010.", ["Is married to Eva.", "Married since 2010"]),
    ("Living in Hamburg.", ["Lives in Berlin.", "The owner has moved to Hamburg."]),
    ("The owner's dogs are Rex and Bo.", ["Has a dog named Rex.", "Dog: Bo"]),
    ("Does not drink coffee.", ["Coffee: does not drink it."]),
    ("Doesn't drink coffee.", ["Doesn’t drink coffee at all."]),
    ("喜欢喝绿茶。", ["用户喜欢绿茶", "喜欢喝茶"]),
    ("Uses C++ and node.js 22.1.", ["Uses C++.", "Has node.js 22.1"]),
    ("Büro in Köln", ["Das Büro: in Köln."]),
]
STRANGE = [
    ("Married to Eve.", ["Is married to Eva."], "eve"),
    ("Pays 51 euros.", ["Pays 50 euros."], "51"),
    ("Drinks coffee.", ["Does not drink coffee."], "the text without its negation"),
    ("Drinks coffee.", ["Doesn't drink coffee."], "the text without its negation"),
    ("Never drinks coffee.", ["Drinks coffee."], "never"),
    ("不喜欢绿茶", ["喜欢绿茶"], "不"),
    ("喜欢绿茶", ["不喜欢绿茶"], "the text without its negation"),
    ("Version 3.12", ["Version 3.1"], "3.12"),
    ("Account -5", ["Account 5"], "-5"),
    ("Lives in Hamburg", [], "hamburg"),
]


@given(st.lists(EDIT | JSON, max_size=4) | JSON)
def test_whatever_a_model_answers_is_judged_and_takes_nothing_of_the_owners_own_and_not_half_of_the_rest(edits: object):
    try:
        allowed, _ = RULES.review(edits)
    except UnusableAnswerError:
        return

    after, done = apply_edits(MEMORY, allowed)
    assert len(done) == len(allowed), "what is not refused can be made"
    assert "- Mine alone.\n" in after
    assert len(parse_facts(after)) >= 2


@pytest.mark.parametrize(("text", "told"), FINE)
def test_words_of_the_sources_may_be_put_together(text: str, told: list[str]):
    assert find_unknown_word(text, told) == ""


@pytest.mark.parametrize(("text", "told", "strange"), STRANGE)
def test_what_none_of_them_says_is_named(text: str, told: list[str], strange: str):
    assert find_unknown_word(text, told) == strange
