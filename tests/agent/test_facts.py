"""Facts of a Markdown memory: known by what they say, merged where they say the same, never where they differ."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.agent.memory.edits import FactEdit, apply_edits
from nanobot.agent.memory.facts import (
    fact_key,
    fact_weight,
    find_headings,
    fit_facts,
    merge_facts,
    parse_facts,
    remove_facts,
)

SAME = [
    ("- Likes tea.", "* likes tea!"),
    ("- The user likes green tea", "- Likes green tea."),
    ("- User really likes green tea", "1. likes the green tea"),
    ("- **Likes** `tea`", "Likes tea"),
    ("- Caf\u00e9", "- Cafe\u0301"),
    ("- 用户喜欢茶", "- 喜欢茶。"),
]
DIFFERENT = [
    ("- Likes tea", "- Does not like tea"),
    ("- Allergic to nuts", "- Not allergic to nuts"),
    ("- Anna likes Ben", "- Ben likes Anna"),
    ("- Dentist on 2026-03-01", "- Dentist on 2026-04-01"),
    ("- Meets at 10:30", "- Meets at 1030"),
    ("- Version 3.5", "- Version 35"),
    ("- Knows C", "- Knows C++"),
    ("- Takes vitamin A", "- Takes vitamin"),
    ("- -5 degrees", "- 5 degrees"),
    ("- [x] buy milk", "- [ ] buy milk"),
    ("- Her dog is Rex", "- The user's dog is Rex"),
    ("- Likes tea?", "- Likes tea"),
    ("- 喜欢茶", "- 不喜欢茶"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_two_ways_to_say_the_same_are_one_fact(one: str, other: str):
    assert [fact.text for fact in parse_facts(merge_facts(f"{one}\n{other}\n"))] == [parse_facts(one)[0].text]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_two_facts_that_differ_in_anything_stay_two(one: str, other: str):
    assert merge_facts(f"{one}\n{other}\n") == f"{one}\n{other}\n"


def test_headings_tables_code_and_comments_are_no_facts():
    text = "# Memory\n\n<!-- keep\nthis -->\n| a | b |\n|---|---|\n```\nx = 1\n```\n- Likes tea\n  with milk\n\nplain\n"

    assert [(fact.text, fact.heading) for fact in parse_facts(text)] == [
        ("Likes tea with milk", "Memory"),
        ("plain", "Memory"),
    ]


@given(st.text(alphabet="ab -*#\n\t`|1.", max_size=80), st.sampled_from(["\n", "\r\n"]))
def test_whatever_a_person_types_taking_facts_out_leaves_the_rest_as_it_was(text: str, line_end: str):
    text = text.replace("\n", line_end)
    facts = parse_facts(text)

    assert remove_facts(text, []) == text
    for fact in facts:
        left = remove_facts(text, [fact]).splitlines()
        assert left == [line for at, line in enumerate(text.splitlines()) if not fact.begin <= at < fact.end]
    assert len({fact.key for fact in parse_facts(merge_facts(text))}) == len({fact.key for fact in facts})


@given(st.text(alphabet="aZß茶é -*#.,(1)\t", max_size=60))
def test_every_line_has_a_key_that_is_its_own(line: str):
    assert fact_key(f"- {line}") == fact_key(f"* {line}")


def test_what_weighs_least_leaves_first_and_only_as_much_as_must():
    text = "# Memory\n\n- Asked about the weather today\n- Is allergic to nuts\n- Has a red bicycle\n"

    kept, gone = fit_facts(text, len(text.encode()) - 1, fact_weight)

    assert [fact.text for fact in gone] == ["Asked about the weather today"]
    assert kept == "# Memory\n\n- Is allergic to nuts\n- Has a red bicycle\n"


def test_a_fact_that_leaves_joins_no_two_others():
    text = "- Likes tea. (pinned)\nSpeaks Welsh.\n  named Rex (pinned)\n"
    facts = parse_facts(text)

    left = parse_facts(remove_facts(text, facts[1:2]))

    assert [(fact.text, fact.pinned) for fact in left] == [("Likes tea.", True), ("named Rex", True)]


# --- edits: what none names stays, byte for byte

MEMORY = (
    "\ufeff# Memory\r\n\r\n## People\r\n- Anna is a friend.\r\n- Friend: Anna\r\n<!-- - no fact -->\r\n\r\n"
    "## Food\r\n* Likes tea\r\n  with milk\r\n```\r\n- code\r\n```\r\n* Has lunch at one"
)

WORDS = st.sampled_from(
    ["tea", "dog", "Anna", "42", "not", "likes", "Rex", "茶", "## x", "", "  cont", "* star", "> q"]
)
LINES = st.lists(
    st.tuples(st.sampled_from(["- ", "* ", "", "  ", "# ", "1. "]), st.lists(WORDS, max_size=4)), max_size=14
)
ENDS = st.sampled_from(["\n", "\r\n"])


def test_what_says_the_same_becomes_one_line_in_the_manner_of_the_first():
    merge = FactEdit((fact_key("Anna is a friend"), fact_key("Friend: Anna")), "Anna is a good friend")

    text, done = apply_edits(MEMORY, [merge])

    assert done == [merge]
    assert text == MEMORY.replace("- Anna is a friend.\r\n- Friend: Anna\r\n", "- Anna is a good friend\r\n")


def test_a_fact_of_two_lines_leaves_whole_and_the_last_line_keeps_its_end():
    text, _ = apply_edits(
        MEMORY,
        [FactEdit((fact_key("Likes tea with milk"),)), FactEdit((fact_key("Has lunch at one"),), "Lunch at two")],
    )

    assert text == MEMORY.replace("* Likes tea\r\n  with milk\r\n", "").replace("* Has lunch at one", "* Lunch at two")


def test_a_fact_moves_behind_what_stands_under_its_heading():
    text, _ = apply_edits(MEMORY, [FactEdit((fact_key("Likes tea with milk"),), under="People")])

    people, food = text.split("## Food")
    assert people.endswith("<!-- - no fact -->\r\n- Likes tea with milk\r\n\r\n")
    assert "tea" not in food


def test_what_does_not_stand_there_is_not_edited():
    gone = FactEdit((fact_key("Anna is a friend"), fact_key("Bob is a friend")), "Anna and Bob are friends")
    nowhere = FactEdit((fact_key("Friend: Anna"),), under="Work")
    twice = FactEdit((fact_key("Friend: Anna"),), "Likes tea with milk")

    assert apply_edits(MEMORY, [gone, nowhere, twice]) == (MEMORY, [])


@given(LINES, ENDS, st.booleans(), st.data())
def test_any_edits_of_any_memory_keep_every_other_line(
    lines: list[tuple[str, list[str]]], end: str, ends: bool, data: st.DataObject
):
    text = end.join(lead + " ".join(words) for lead, words in lines) + (end if ends else "")
    facts = parse_facts(text)
    keys = st.lists(st.sampled_from([fact.key for fact in facts] or ["x"]), min_size=1, max_size=3, unique=True).map(
        tuple
    )
    texts = st.sampled_from(["", "Says something else", "Likes tea", "not 42"])
    headings = [name for _, name in find_headings(text.splitlines())]
    edits = data.draw(
        st.lists(
            st.builds(FactEdit, keys, texts, st.sampled_from(["", *headings])),
            max_size=4,
        )
    )

    after, done = apply_edits(text, edits)

    named = {one for edit in done for one in edit.keys} | {fact_key(edit.text) for edit in done}
    cut = {at for fact in facts if fact.key in named for at in range(fact.begin, fact.end)}
    kept = [line for at, line in enumerate(text.splitlines()) if at not in cut]
    left = iter(after.splitlines())
    assert all(line in left for line in kept), "the others, in their order"
    assert done or after == text
