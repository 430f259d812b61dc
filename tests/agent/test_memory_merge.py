"""Changing a memory fact by fact: what no edit names stays, byte for byte."""

from hypothesis import given
from hypothesis import strategies as st

from nanobot.agent.memory.edits import FactEdit, apply_edits
from nanobot.agent.memory.facts import fact_key, find_headings, parse_facts

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


def key(text: str) -> str:
    return fact_key(text)


def test_what_says_the_same_becomes_one_line_in_the_manner_of_the_first():
    merge = FactEdit((key("Anna is a friend"), key("Friend: Anna")), "Anna is a good friend")

    text, done = apply_edits(MEMORY, [merge])

    assert done == [merge]
    assert text == MEMORY.replace("- Anna is a friend.\r\n- Friend: Anna\r\n", "- Anna is a good friend\r\n")


def test_a_fact_of_two_lines_leaves_whole_and_the_last_line_keeps_its_end():
    text, _ = apply_edits(
        MEMORY, [FactEdit((key("Likes tea with milk"),)), FactEdit((key("Has lunch at one"),), "Lunch at two")]
    )

    assert text == MEMORY.replace("* Likes tea\r\n  with milk\r\n", "").replace("* Has lunch at one", "* Lunch at two")


def test_a_fact_moves_behind_what_stands_under_its_heading():
    text, _ = apply_edits(MEMORY, [FactEdit((key("Likes tea with milk"),), under="People")])

    people, food = text.split("## Food")
    assert people.endswith("<!-- - no fact -->\r\n- Likes tea with milk\r\n\r\n")
    assert "tea" not in food


def test_what_does_not_stand_there_is_not_edited():
    gone = FactEdit((key("Anna is a friend"), key("Bob is a friend")), "Anna and Bob are friends")
    nowhere = FactEdit((key("Friend: Anna"),), under="Work")
    twice = FactEdit((key("Friend: Anna"),), "Likes tea with milk")

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
