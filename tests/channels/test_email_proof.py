"""Who is believed: only what the mailbox's own server found, about the domain of the From line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.channels.email.proof import checker_of, judge

OWN = checker_of("imap.bot.test", ["me@bot.test"])


def proven(*results: str, domain: str = "friends.test", checker=OWN) -> bool:
    return judge([("Authentication-Results", one) for one in results], domain, checker).is_proven


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
    icloud = checker_of("imap.mail.me.com", ["me@icloud.com"])
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
    assert proven(found, checker=checker_of(host, ["me@example.org"]))


def test_a_name_in_the_config_stands_alone():
    checker = checker_of("imap.bot.test", ["me@bot.test"], "Checker.Elsewhere.test")

    assert proven("checker.elsewhere.test; dmarc=pass header.from=friends.test", checker=checker)
    assert not proven("mx.bot.test; dmarc=pass header.from=friends.test", checker=checker)


def test_a_domain_where_anybody_registers_is_nobodys_server():
    checker = checker_of("mail.co.uk", ["me@bot.test"])

    assert not proven("evil.co.uk; dmarc=pass header.from=friends.test", checker=checker)


def test_the_reason_names_the_key_to_set():
    verdict = judge([("Authentication-Results", "mx9.hoster.test; dmarc=pass")], "friends.test", OWN)

    assert "'mx9.hoster.test'" in verdict.reason
    assert "channels.email.authservId" in verdict.reason


@given(st.text(alphabet='mx.bot.test;=() "\\@\r\ndmarcpsfheaderfromfriends', max_size=200))
def test_whatever_stands_behind_a_sender_of_elsewhere_never_passes(noise):
    hidden = noise.replace("\\", "").replace('"', "").replace("(", "").replace(")", "")

    assert not proven(f'mx.bot.test; spf=pass smtp.mailfrom="{hidden}"@evil.test')
    assert not proven(f"mx.bot.test; spf=pass ({hidden}) smtp.mailfrom=evil.test")


@given(st.text(max_size=300), st.text(max_size=50))
def test_no_header_breaks_it(header, domain):
    judge([("Authentication-Results", header)], domain, OWN)
