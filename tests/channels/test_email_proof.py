"""Who is believed: only what the mailbox's own server found, about the domain of the From line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.channels.email.sender_auth import auth_server, is_aligned, verify_sender

OWN = auth_server("imap.bot.test", "bot.test")


def proven(*results: str, domain: str = "friends.test", checker=OWN) -> bool:
    return verify_sender([("Authentication-Results", one) for one in results], domain, checker).is_verified


@pytest.mark.parametrize(
    "found",
    [
        "mx.bot.test; dmarc=pass header.from=friends.test",
        "mx.bot.test; dmarc=pass (p=REJECT sp=NONE) header.from=Friends.Test.",
        "mx.bot.test 1; spf=pass smtp.mailfrom=anna@friends.test",
        "mx.bot.test; spf=pass smtp.mailfrom=bounce.friends.test",
        "MX.BOT.TEST; dkim=pass header.d=friends.test header.s=x",
        "mx.bot.test; dkim=fail header.d=x.test; dkim = pass (good) header.i = @friends.test",
        "mx.bot.test;\r\n\tdkim=pass\r\n\theader.d=friends.test",
        "imap.bot.test; dmarc=pass header.from=friends.test",
    ],
)
def test_what_our_server_found_about_this_domain_proves_it(found):
    assert proven(found)


@pytest.mark.parametrize(
    "found",
    [
        "",
        ";",
        "mx.bot.test",
        "mx.bot.test; none",
        "mx.bot.test; dmarc=none header.from=friends.test",
        "mx.bot.test; dmarc=pass",
        "mx.bot.test; dmarc=pass header.from=evil.test",
        "mx.bot.test; spf=pass smtp.mailfrom=anna@friends.test.evil.test",
        "mx.bot.test; spf=pass smtp.mailfrom=notfriends.test",
        "mx.bot.test; spf=pass smtp.helo=friends.test",
        "mx.bot.test; spf=softfail smtp.mailfrom=friends.test",
        "mx.bot.test; dkim=pass header.d=test",
        "mx.bot.test; dkim=pass header.d=evil.test header.d=friends.test",
        "mx.bot.test; dkim=pass header.d=friends.test; dmarc=fail header.from=friends.test",
        'mx.bot.test; spf=pass smtp.mailfrom="x; dmarc=pass header.from=friends.test; y="@evil.test',
        "mx.bot.test; spf=pass (x; dmarc=pass header.from=friends.test) smtp.mailfrom=evil.test",
        "mx.bot.test; spf=pass (x \\) ; dmarc=pass header.from=friends.test (\\() ) smtp.mailfrom=evil.test",
        "mx.bot.test (; dmarc=pass header.from=friends.test",
        "evil.test; dmarc=pass header.from=friends.test",
        "bot.test.evil.test; dmarc=pass header.from=friends.test",
        "spf=pass smtp.mailfrom=friends.test",
    ],
)
def test_anything_else_proves_nothing(found):
    assert not proven(found)


def test_only_the_topmost_counts():
    assert not proven("mx.bot.test; spf=none", "mx.bot.test; dmarc=pass header.from=friends.test")
    assert not proven("evil.test; spf=none", "mx.bot.test; dmarc=pass header.from=friends.test")


def test_a_service_that_writes_one_header_a_check_is_read_whole_and_no_further():
    icloud = auth_server("imap.mail.me.com")
    passed = "dmarc.icloud.com; dmarc=pass header.from=friends.test"

    assert proven("spf.icloud.com; spf=none", passed, checker=icloud)
    assert not proven("spf.icloud.com; spf=none", "evil.test; spf=none", passed, checker=icloud)


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ("imap.gmail.com", "mx.google.com; dkim=pass header.i=@friends.test header.s=x"),
        ("outlook.office365.com", "spf=pass (sender IP is 192.0.2.1) smtp.mailfrom=friends.test"),
        ("imap.fastmail.com", "mx6.messagingengine.com; dmarc=pass header.from=friends.test"),
        ("imap.gmx.net", "gmx.net; dkim=pass header.i=@friends.test"),
        ("imap.mail.yahoo.com", "atlas1.mail.yahoo.com; dmarc=pass header.from=friends.test"),
    ],
)
def test_the_names_of_well_known_services_are_known(host, found):
    assert proven(found, checker=auth_server(host))


def test_a_name_in_the_config_stands_alone():
    checker = auth_server("imap.bot.test", "Checker.Elsewhere.test")

    assert proven("checker.elsewhere.test; dmarc=pass header.from=friends.test", checker=checker)
    assert not proven("mx.bot.test; dmarc=pass header.from=friends.test", checker=checker)


@pytest.mark.parametrize("name", ["imap.bot.test", "mx.bot.test", "bot.test", ""])
def test_an_unknown_server_proves_nothing_until_the_config_names_it(name):
    """A server that writes no such header passes on the sender's own, under whatever name the sender guessed."""
    verdict = verify_sender(
        [("Authentication-Results", f"{name}; dmarc=pass header.from=friends.test")],
        "friends.test",
        auth_server("imap.bot.test"),
    )

    assert not verdict.is_verified
    assert "channels.email.authservId" in verdict.reason


@pytest.mark.parametrize(
    ("one", "other", "aligned"),
    [
        ("friends.test", "friends.test", True),
        ("bounce.friends.test", "friends.test", True),
        ("news.friends.co.uk", "mail.friends.co.uk", True),
        ("evil.co.uk", "friends.co.uk", False),
        ("co.uk", "friends.co.uk", False),
        ("anna.github.io", "evil.github.io", False),
        ("com.br", "bank.com.br", False),
        ("kawasaki.jp", "shop.kawasaki.jp", False),
        ("test", "friends.test", False),
        ("", "", False),
    ],
)
def test_domains_are_aligned_within_one_registration_by_the_public_suffix_list(one, other, aligned):
    assert is_aligned(one, other) is is_aligned(other, one) is aligned


def test_the_reason_names_the_key_to_set():
    verdict = verify_sender([("Authentication-Results", "mx9.hoster.test; dmarc=pass")], "friends.test", OWN)

    assert "'mx9.hoster.test'" in verdict.reason
    assert "channels.email.authservId" in verdict.reason


@given(st.text(alphabet='mx.bot.test;=() "\\@\r\ndmarcpsfheaderfromfriends', max_size=200))
def test_whatever_stands_behind_a_sender_of_elsewhere_never_passes(noise):
    hidden = noise.replace("\\", "").replace('"', "").replace("(", "").replace(")", "")

    assert not proven(f'mx.bot.test; spf=pass smtp.mailfrom="{hidden}"@evil.test')
    assert not proven(f"mx.bot.test; spf=pass ({hidden}) smtp.mailfrom=evil.test")


@given(st.text(max_size=300), st.text(max_size=50))
def test_no_header_breaks_it(header, domain):
    verify_sender([("Authentication-Results", header)], domain, OWN)
