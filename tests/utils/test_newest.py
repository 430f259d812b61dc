"""What may be forgotten is forgotten oldest first."""

from nanobot.utils.bounded_dict import put_bounded


def test_the_oldest_goes_and_what_is_put_in_again_is_young():
    table: dict[str, int] = {}

    for number, key in enumerate(("a", "b", "a", "c")):
        put_bounded(table, key, number, most=2)

    assert list(table.items()) == [("a", 2), ("c", 3)]
