"""What a model may make of facts: their own words, and no number, name or "not" that is in none of them."""

import pytest

from nanobot.agent.tidy_memory import strange_word

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
    ("Drinks coffee.", ["Does not drink coffee."], "the text without its not"),
    ("Drinks coffee.", ["Doesn't drink coffee."], "the text without its not"),
    ("Never drinks coffee.", ["Drinks coffee."], "never"),
    ("不喜欢绿茶", ["喜欢绿茶"], "不"),
    ("喜欢绿茶", ["不喜欢绿茶"], "the text without its not"),
    ("Version 3.12", ["Version 3.1"], "3.12"),
    ("Account -5", ["Account 5"], "-5"),
    ("Lives in Hamburg", [], "lives"),
]


@pytest.mark.parametrize(("text", "told"), FINE)
def test_words_of_the_sources_may_be_put_together(text: str, told: list[str]):
    assert strange_word(text, told) == ""


@pytest.mark.parametrize(("text", "told", "strange"), STRANGE)
def test_what_none_of_them_says_is_named(text: str, told: list[str], strange: str):
    assert strange_word(text, told) == strange
