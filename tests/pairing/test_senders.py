"""Which spellings are the same sender, and what a sender cannot pretend to be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.pairing.senders import LONGEST, Sender, SenderList, display_name

SAME = [
    ("12345", "12345"),
    ("12345", " 12345 "),
    ("12345|alice", "12345"),
    ("12345|alice", "@alice"),
    ("12345|alice", "alice"),
    ("12345|Alice_99", "@alice_99"),
    ("12345|alice", "12345|somebody_else_by_now"),
    ("12345|", "12345"),
    ("-1001234567890", "-1001234567890"),
    ("4915112345678@s.whatsapp.net", "+4915112345678"),
    ("4915112345678@s.whatsapp.net", "4915112345678"),
    ("4915112345678@s.whatsapp.net", "+49 (151) 123-456.78"),
    ("4915112345678:23@s.whatsapp.net", "+4915112345678"),
    ("4915112345678_1:23@s.whatsapp.net", "4915112345678@c.us"),
    ("4915112345678", "+4915112345678"),
    ("+4915112345678", "4915112345678@s.whatsapp.net"),
    ("272700845121588:4@lid", "272700845121588@lid"),
    ("120363041234567890@g.us", "120363041234567890@g.us"),
    ("Anna@Example.org", "anna@example.ORG"),
    ("@anna:Example.org", "@anna:example.org"),
    ("!abc:example.org", "!abc:example.org"),
    ("U02ABCDEF", "U02ABCDEF"),
    ("U02ABCDEF", "<@U02ABCDEF>"),
    ("U02ABCDEF", "<@U02ABCDEF|anna>"),
    ("80351110224678912", "<@!80351110224678912>"),
    ("ou_84aad35d084aa403a838cf73ee18467", "ou_84aad35d084aa403a838cf73ee18467"),
    ("$:LWCP_v1:$aBc+/=", "$:LWCP_v1:$aBc+/="),
]
OTHERS = [
    ("12345", "123456"),
    ("99999|12345", "12345"),
    ("99999|x|12345", "12345"),
    ("99999|alice", "12345|alice"),
    ("12345", "@12345"),
    ("attacker|anna@example.org", "anna@example.org"),
    ("U99|U02ABCDEF", "U02ABCDEF"),
    ("U99|alice", "alice"),
    ("bos\u212a", "bosk"),
    ("bos\u212a@example.org", "bosk@example.org"),
    ("\uff11\uff12\uff13", "123"),
    ("1|\u0430lice", "alice"),
    ("272700845121588@lid", "272700845121588"),
    ("272700845121588@lid", "+272700845121588"),
    ("4915112345678@evil.example", "+4915112345678"),
    ("$:lwcp_v1:$abc+/=", "$:LWCP_v1:$aBc+/="),
    ("@Anna:example.org", "@anna:example.org"),
    ("@anna:evil.example", "@anna:example.org"),
    ("owner|x@evil.example", "owner"),
    ("12345\n", "12345"),
    (" 12345", "12345"),
    ("anyone", "* "),
    ("", ""),
    ("|alice", "alice"),
    ("x" * (LONGEST + 1), "x" * (LONGEST + 1)),
]


@pytest.mark.parametrize(("sender", "entry"), SAME)
def test_an_entry_is_this_sender_however_it_is_spelled(sender: str, entry: str):
    assert SenderList([entry]).matches(Sender.of(sender))


@pytest.mark.parametrize(("sender", "entry"), OTHERS)
def test_an_entry_is_nobody_else(sender: str, entry: str):
    assert not SenderList([entry]).matches(Sender.of(sender))


@pytest.mark.parametrize(
    ("sender", "pasted"),
    [
        ("12345|alice", "12345"),
        ("4915112345678:23@s.whatsapp.net", "+4915112345678"),
        ("272700845121588:4@lid", "272700845121588@lid"),
        ("Anna@Example.org", "anna@example.org"),
        ("@alice", "@alice"),
    ],
)
def test_what_is_pasted_is_the_id_that_lasts(sender: str, pasted: str):
    assert Sender.of(sender).id == pasted


@given(st.text(max_size=40))
def test_what_is_pasted_names_the_same_sender_again(sender_id: str):
    sender = Sender.of(sender_id)

    assert Sender.of(sender.id).key == sender.key
    assert bool(sender.key) == bool(sender_id)


@given(st.from_regex(r"[0-9]{1,20}|[A-Z][A-Z0-9]{1,12}", fullmatch=True), st.integers(0, 10**12), st.text(max_size=30))
def test_nobody_becomes_another_by_calling_themselves_so(listed: str, own_id: int, name: str):
    pretender = Sender.of(f"{own_id}|{name}|{listed}")

    named_by_word = not listed.isdigit()  # where ids are numbers, a word in the list can only be meant as a name
    assert SenderList([listed]).matches(pretender) <= (str(own_id) == listed or named_by_word)


@given(st.lists(st.integers(-(10**13), 10**13), min_size=2, max_size=2, unique=True))
def test_two_numbers_are_two_senders(numbers: list[int]):
    one, other = map(str, numbers)

    assert not SenderList([one]).matches(Sender.of(other))


def test_the_star_lets_everybody_in_and_names_nobody():
    everybody = SenderList(["*"])

    assert everybody.admits(Sender.of("12345"))
    assert everybody.admits(Sender.of(""))
    assert not everybody.matches(Sender.of("*"))
    assert not SenderList([]).admits(Sender.of("12345"))


@pytest.mark.parametrize(
    ("name", "handle", "shown"),
    [
        ("Bob", "bob", "Bob (@bob)"),
        ("Ann (@ann)", "", "Ann ann"),
        ("Ann (@ann)", "eve_1", "Ann ann (@eve_1)"),
        ("**Bob**\n[x](y)\u202e", "", "Bob x y"),
        ("", "bob", "@bob"),
        ("Bob", "b\n(@ann)", "Bob"),
    ],
)
def test_a_name_shows_no_handle_but_the_platforms_and_no_markup(name: str, handle: str, shown: str):
    assert display_name(name, handle) == shown


@given(st.text(), st.text())
def test_a_name_is_one_short_printable_line(name: str, handle: str):
    shown = display_name(name, handle)

    assert shown.isprintable()
    assert len(shown) <= 40 + len(" (@)") + 64
