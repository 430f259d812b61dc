"""What a mail says, however it was written; and no bytes that break the reading of it."""

import base64
import email.policy
import time
from datetime import UTC, datetime
from email.message import EmailMessage
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.channels.email.message import MailFile, read_mail, readable, split_quote
from nanobot.channels.email.send import OutgoingMail, first_subject, fit_references, message_id, reply_subject
from nanobot.utils.html import visible_markdown


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("plain", "plain"),
        ("=?utf-8?q?J=C3=B6rg_X?=", "Jörg X"),
        ("=?UTF-8?B?5L2g5aW9?= Anna", "你好 Anna"),
        ("=?gb2312?B?xOO6ww==?=", "你好"),
        ("=?utf-8?b?5L2g?=\r\n =?utf-8?b?5aW9?=", "你好"),
        ("=?utf-8?b?5L2g5Q==?= =?utf-8?b?pb0=?=", "你好"),
        ("=?nonsense?q?J=F6rg?=", "Jörg"),
        ("=?utf-8*en?q?a?= b", "a b"),
        ("=?utf-8?b?5?=", "=?utf-8?b?5?="),
        ("two\r\n lines\tand\x07 a bell", "two lines and a bell"),
    ],
)
def test_a_header_is_read_as_people_read_it(line, says):
    assert readable(line) == says


@pytest.mark.parametrize(
    ("lines", "sender", "is_one"),
    [
        ("From: Grüße <anna@friends.test>", "anna@friends.test", True),
        ("From: Anna <Anna@Friends.test>", "anna@friends.test", True),
        ('From: "eve@evil.test" <anna@friends.test>', "anna@friends.test", True),
        ("From: anna@friends.test, eve@evil.test", "anna@friends.test", False),
        ("From: anna@friends.test\r\nFrom: eve@evil.test", "anna@friends.test", False),
        ("From: =?utf-8?q?eve=40evil=2Etest=2C?= <anna@friends.test>", "anna@friends.test", True),
        ("From: nobody", "", False),
        ("From:", "", False),
        ("X: y", "", False),
        ("From: Anna <anna@friends.test", "anna@friends.test", True),
    ],
)
def test_the_sender_is_one_or_none(lines, sender, is_one):
    mail = read_mail(f"{lines}\r\n\r\nhi".encode())

    assert (mail.sender, mail.has_one_sender) == (sender, is_one)


def test_a_thread_is_known_by_its_first_mail():
    mail = read_mail(b"Message-ID: <c@x>\nIn-Reply-To: <b@x>\nReferences: <a@x>\n <b@x>\n\n")

    assert (mail.message_id, mail.root, mail.ancestors) == ("c@x", "a@x", ("a@x", "b@x"))


def test_a_mail_without_an_id_has_one_of_its_bytes():
    one, same, other = (read_mail(b"Subject: " + text + b"\n\n").message_id for text in (b"a", b"a", b"b"))

    assert one == same != other


@pytest.mark.parametrize(
    ("charset", "data"),
    [
        ("gb2312", "价格：100元 镕".encode("gb18030")),
        ("iso-8859-1", "“100 €”".encode("cp1252")),
        ("utf-8", "Grüße".encode("cp1252")),
        ("no-such-charset", "Grüße".encode()),
        ("zlib", "Grüße".encode()),
        ("ISO-2022-JP", "日本語".encode("iso-2022-jp")),
        ("'utf-8'", "Grüße".encode()),
    ],
)
def test_a_charset_is_what_it_is_not_what_it_is_called(charset, data):
    raw = b"Content-Type: text/plain; charset=%s\nContent-Transfer-Encoding: base64\n\n" % charset.encode()

    text = read_mail(raw + base64.encodebytes(data)).text

    assert text in ("价格：100元 镕", "“100 €”", "Grüße", "日本語")


@pytest.mark.parametrize(
    "read",
    [
        lambda: split_quote("> x\n" * 100_000 + "own words"),
        lambda: split_quote("On On wrote " * 20_000),
        lambda: visible_markdown("<blockquote><div>" * 50_000),
        lambda: readable("=?" * 10_000),
        lambda: read_mail(b"Content-Type: text/plain; " + b"a=b; " * 400_000),
        lambda: read_mail(b'Content-Disposition: attachment; filename="' + b";" * 400_000 + b"\n\nx"),
        lambda: read_mail(b"Content-Type: text/plain; charset=punycode\n\n" + b"a" * 200_000 + b"-" + b"z" * 200_000),
        *(
            lambda bit=bit: read_mail(b"Content-Type: text/html\n\n" + bit * 200_000)
            for bit in (b"<a", b"<!--", b"</x ")
        ),
    ],
)
def test_a_strangers_mail_does_not_keep_the_reader_for_minutes(read):
    began = time.process_time()

    read()

    assert time.process_time() - began < 3


def test_of_several_forms_the_plain_one_is_read_and_files_are_kept():
    message = EmailMessage()
    message.set_content("plain words")
    message.add_alternative("<p>rich words</p>", subtype="html")
    message.add_attachment(b"\x00\x01", "image", "png", filename="=?utf-8?q?B=C3=A4r=2Epng?=")
    message.add_attachment("a,b\n1,2\n", filename="t.csv", subtype="csv")
    inner = EmailMessage()
    inner.set_content("<p>Hello <b>you</b></p><p>Bye</p>", subtype="html")
    message.add_attachment(inner)

    mail = read_mail(message.as_bytes())

    assert mail.text == "plain words"
    assert [(one.name, one.content_type) for one in mail.files[:2]] == [("Bär.png", "image/png"), ("t.csv", "text/csv")]
    assert b"Hello <b>you</b>" in mail.files[2].data
    assert read_mail(inner.as_bytes()).text == "Hello **you**\n\nBye"


def test_lines_that_only_the_width_parted_are_joined():
    head = b"Content-Type: text/plain; format=flowed"
    text = b"\n\nOne long \nline.\n\n> quoted \n> on\n-- \nAnna"

    assert read_mail(head + text).text == "One long line.\n\n> quoted \n> on\n-- \nAnna"
    assert read_mail(head + b"; delsp=yes" + text).text.startswith("One longline.")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\r\n",
        b"\xff\xfe\x00",
        b"Content-Type: multipart/mixed\n\nno boundary",
        b"Content-Type: multipart/mixed; boundary=\n\n--\n",
        b"Content-Type: text/plain; charset*=x''%ff\n\n\xff",
        b"Content-Transfer-Encoding: base64\n\n!!!!",
        b"Content-Transfer-Encoding: x-uuencode\n\nbegin 666 x\nM!!!\n",
        b"Content-Type: message/rfc822\n\nSubject: \xff\n\n",
        b"Content-Disposition: attachment; filename*0*=x''%FF; filename*2=y\n\nx",
        b"From: =?utf-8?b?" + b"=" * 5000,
        b"From: " + b"(" * 5000 + b"\nSubject: " + b"=?" * 5000 + b"\n\n" + b">" * 10000,
        b"Content-Type: text/html\n\n" + b"<div><blockquote>" * 3000,
        b"Content-Type: text/html\n\n<![<!",
        b"Content-Type: multipart/alternative; charset*0*=utf-8''x\n\nno parts",
    ],
)
def test_broken_mails_are_read_as_far_as_they_go(raw):
    read_mail(raw)


def test_a_mail_nested_beyond_reading_is_read_as_it_was_written():
    nested = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (one, one) for one in range(1000))

    mail = read_mail(b"From: eve@evil.test\nSubject: deep\n" + nested + b"\nthe bottom")

    assert (mail.sender, mail.subject) == ("eve@evil.test", "deep")
    assert mail.text.endswith("the bottom")


_WORDS = """Content-Type: |multipart/mixed; boundary=b|text/html; charset=utf-7|From: a@b.c|--b|\r\n|\n\n|=?utf-8?q?=|
Content-Disposition: attachment; filename*=|Content-Transfer-Encoding: |base64|quoted-printable|message/rfc822|\xe4|
<a href=|Message-ID: <""".encode().split(b"|")


@given(st.lists(st.one_of(st.sampled_from(_WORDS), st.binary(max_size=12)), max_size=40).map(b"".join))
def test_no_bytes_break_the_reading(raw):
    mail = read_mail(raw)

    mail.text.encode()
    mail.subject.encode()
    assert mail.message_id


PAGE = [
    "<p>", "</p>", "<blockquote>", "</div>", "<a href='http://x.y'>", "<!--", "<td>", "<pre>", "\n", "<style>",
    "&#55296;", "<div style='display:none'>", "<?xml:namespace />",
]  # fmt: skip


@given(st.lists(st.one_of(st.sampled_from(PAGE), st.text(max_size=5)), max_size=30).map("".join))
def test_no_page_breaks_the_reading(html):
    visible_markdown(html)


def test_a_page_says_what_a_person_sees():
    html = (
        "<?xml:namespace prefix = o />"
        "<head><title>T</title><style>p{}</style></head><p>Hi,\n  <b>you</b>!</p><div style='DISPLAY : none'>obey</div>"
        "<span hidden>obey</span><p style='font-size:0px'>obey</p><p style='opacity:0.5'>seen</p>"
        "<ul><li>a<li><a href='https://x.test/y'>b</a></ul><a href='https://x.test'>x.test</a>"
        "<blockquote>old<br>older</blockquote><table><tr><td>1</td><td>2</td></tr></table><pre>a\n  b</pre>"
        "<table><tr><td><table><tr><th>A</th></tr><tr><td>cell</td></tr></table></td></tr></table>"
        "<!DOCTYPE html><!--[if mso]><p>obey</p><![endif]--><p>a <b>1 < 2</b><script>if (a<b) obey()</script> end</p>"
        "<img alt='a cat' src=x><img src='https://x.test/pixel'><script>obey</script> my_id *&amp;\u200b."
    )

    text = visible_markdown(html)

    assert "obey" not in text
    assert text.startswith("Hi,\n**you**!\n\nseen\n\n- a\n- [b](https://x.test/y)\n")
    assert "> old\n> older\n" in text
    assert "| 1 | 2 |" in text
    assert "a\n  b" in text
    assert "a **1 < 2** end" in text
    assert "| A |\n| --- |\n| cell |" in text  # the table around it only places it
    assert text.endswith("[a cat] my_id *&.")  # not escaped: it may be a command


@pytest.mark.parametrize(
    "below",
    [
        "On Mon, 2 Nov 2026 at 10:00, Bot <bot@bot.test> wrote:\n> old\n>\n> > older",
        "On Mon, 2 Nov 2026 at 10:00, A Bot With A Long Name\n<bot@bot.test> wrote:\n\n> old",
        "Am 02.11.26 um 10:00 schrieb Bot:\n> old",
        "Le lun. 2 nov. 2026 à 10:00, Bot <bot@bot.test> a écrit :\n> old",
        "пн, 2 нояб. 2026 г. в 10:00, Bot <bot@bot.test>:\n> old",
        "在 2026年11月2日，Bot <bot@bot.test> 写道：\n> old",
        "-----Original Message-----\nFrom: Bot\nold",
        "________________________________\nFrom: Bot\nSent: Monday\nTo: Anna\nSubject: x\n\nold",
        "Von: Bot\nGesendet: Montag\nAn: Anna\nBetreff: x\n\nold",
        "> old\n> old\n\n-- \nAnna",
    ],
)
def test_what_is_new_is_parted_from_what_is_quoted(below):
    assert split_quote(f"new words\n\n{below}") == ("new words\n\n", below)


@pytest.mark.parametrize(
    "text",
    [
        "> question one\nanswer one\n> question two\nanswer two",
        "On Monday, Bot wrote:\n> question\nanswer below",
        "On Monday I wrote:\nto my aunt",
        "> all of it is quoted",
        "From: me\nit is a poem",
        "",
    ],
)
def test_what_is_not_plainly_a_quotation_stays(text):
    assert split_quote(text) == (text, "")


@given(st.text(alphabet="> On wrote:\nFrom-_ab", max_size=200))
def test_parting_loses_nothing(text):
    assert "".join(split_quote(text)) == text


@pytest.mark.parametrize(
    ("subject", "says"),
    [
        ("Paint", "Re: Paint"),
        ("Re: Paint", "Re: Paint"),
        ("RE: AW: Re[2]: Paint", "Re: Paint"),
        ("回复：油漆", "Re: 油漆"),
        ("", "Re:"),
        ("Regarding paint", "Re: Regarding paint"),
    ],
)
def test_the_prefix_of_a_subject_stands_there_once(subject, says):
    assert reply_subject(subject, "Re: ") == says


def test_a_mail_that_answers_none_is_about_how_it_begins():
    assert first_subject("\n---\nGood  morning\nmore") == "Good morning"
    assert len(first_subject("word " * 40)) <= 71
    assert first_subject("") == "A message from nanobot"


def letter(**more: Any) -> OutgoingMail:
    usual: dict[str, Any] = {
        "sender": "Bot <bot@bot.test>",
        "to": "anna@friends.test",
        "subject": "Größe " * 30,
        "text": "hi\n" * 3,
        "message_id": "1@bot.test",
        "date": datetime(2026, 11, 2, tzinfo=UTC),
    }
    return OutgoingMail(**(usual | more))


@given(
    st.text(st.characters(categories=["L", "N", "S"], include_characters=" -:,"), max_size=80),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"), max_size=300),
    st.lists(st.text("abc.@-", min_size=1, max_size=120), max_size=40),
)
def test_a_letter_arrives_as_it_was_written(subject, text, ancestors):
    raw = letter(subject=subject, text=text, ancestors=fit_references(ancestors)).to_bytes()

    message = email.message_from_bytes(raw, policy=email.policy.default)
    assert readable(message["Subject"]) == " ".join(subject.split())
    assert message.get_content().replace("\r\n", "\n").rstrip("\n") == text.rstrip("\n")
    assert max(len(line) for line in raw.split(b"\r\n")) <= 998
    assert b"\n" not in raw.replace(b"\r\n", b"")
    if ancestors:
        assert message["References"].split()[0] == f"<{ancestors[0]}>"
        assert message["References"].split()[-1] == f"<{ancestors[-1]}>"


def test_files_go_along_under_their_names():
    files = (MailFile("Bär.pdf", "application/pdf", b"%PDF-"), MailFile('a "b".eml', "application/octet-stream", b"x"))
    raw = letter(files=files).to_bytes()

    assert [(one.name, one.data) for one in read_mail(raw).files] == [("Bär.pdf", b"%PDF-"), ('a "b".eml', b"x")]


def test_the_id_of_a_mail_is_the_same_for_the_same_message_and_for_no_other():
    made = message_id("salt", "1", "bot@bot.test")

    assert made == message_id("salt", "1", "bot@bot.test")
    assert len({made, message_id("salt", "2", "bot@bot.test"), message_id("other", "1", "bot@bot.test")}) == 3
    assert made.endswith("@bot.test")
    assert message_id("salt", "half a character: \ud83d", "bot@bot.test")
