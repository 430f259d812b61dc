"""A mailbox: which mails are heard, as whose words and in which session, and what goes back."""

import asyncio
import time
from collections.abc import AsyncIterator
from email.message import EmailMessage
from email.utils import formatdate
from pathlib import Path

import pytest

from nanobot.bus.events import Address, Button, DeliveryFailedError, OutboundKind
from nanobot.channels.status import ChannelState
from nanobot.messages.types import Provenance
from nanobot.testing.live_channel import LiveChannel, live
from tests.fakes.mail_server import USER
from tests.fakes.platform_email import EmailPlatform, signed
from tests.support.eventually import eventually

ANNA = "anna@friends.test"


@pytest.fixture
async def mailbox(tmp_path: Path) -> AsyncIterator[EmailPlatform]:
    (folder := tmp_path / "platform").mkdir()
    async with EmailPlatform(folder).open() as platform:
        assert isinstance(platform, EmailPlatform)
        yield platform


def mail(text: str = "hello", *, sender: str = ANNA, proof: str | None = None, **lines: str) -> bytes:
    """A mail of somebody; `lines` are header lines, `_` for `-`."""
    message = EmailMessage()
    if proof != "":
        message["Authentication-Results"] = signed(sender) if proof is None else proof
    lines = {"From": sender, "To": USER} | {name.replace("_", "-"): value for name, value in lines.items()}
    for name, value in lines.items():
        message[name] = value
    message.set_content(text)
    return message.as_bytes(policy=message.policy.clone(linesep="\r\n"))


async def after(life: LiveChannel, platform: EmailPlatform) -> list[str]:
    """What was heard, once all that was delivered before has been looked at."""
    last = f"that is all, {platform.fake.next_uid}"
    platform.fake.deliver(mail(last, Message_ID=f"<last-{platform.fake.next_uid}@friends.test>"))
    await life.hears(last)
    return [one.content for one in life.heard][:-1]


async def test_a_mail_that_is_in_the_book_as_sent_is_not_sent_again_after_a_crash(mailbox, tmp_path):
    async with live(mailbox, tmp_path, silent=True) as life:
        mailbox.fake.deliver(mail("hello", Message_ID="<one@friends.test>"))
        life.bus.dies = "sent"
        life.answers(await life.hears("hello"), "the reply")
        await asyncio.wait_for(life.bus.died.wait(), 10)
    async with live(mailbox, tmp_path, silent=True) as life:
        await eventually(lambda: life.channel.status.sent)

    assert len(mailbox.fake.sent) == 1


# what is heard


async def test_a_thread_is_a_session_and_its_answers_are_a_thread_in_any_mail_program(mailbox, tmp_path):
    async with live(mailbox, tmp_path) as life:
        mailbox.fake.deliver(mail("Which one?", Subject="Paint", Message_ID="<one@friends.test>"))
        first = await life.hears("Which one?")
        await life.shows("Which one?")
        answer = mailbox.fake.sent[0].message
        mailbox.fake.deliver(
            mail("Blue", Subject="AW: Re: Paint", Message_ID="<two@friends.test>", In_Reply_To=answer["Message-ID"])
        )
        second = await life.hears("Blue")
        await life.shows("Blue")
        await life.posted(Address("email", ANNA, second.thread_id), "By the way")
        aside = mailbox.fake.sent[-1].message
        mailbox.fake.deliver(mail("Another thing", Subject="Cake", Message_ID="<three@friends.test>"))
        third = await life.hears("Another thing")

    assert first.content == "Subject: Paint\n\nWhich one?"
    assert second.content == "Blue"
    assert first.session_key == second.session_key == "email:anna@friends.test:one@friends.test"
    assert third.session_key != first.session_key
    assert "<two@friends.test>" in aside["References"]
    assert aside["Subject"] == "Re: Paint"
    assert (answer["Subject"], answer["In-Reply-To"], answer["References"]) == (
        "Re: Paint",
        "<one@friends.test>",
        "<one@friends.test>",
    )


async def test_an_answer_to_a_mail_that_the_bot_began_belongs_to_the_chat_itself(mailbox, tmp_path):
    async with live(mailbox, tmp_path) as life:
        (sent_id,) = await life.posted(Address("email", ANNA), "# Good morning\n\nIt rains.")
        mailbox.fake.deliver(mail("thanks", Message_ID="<a@friends.test>", In_Reply_To=f"<{sent_id}>"))
        message = await life.hears("thanks")

    opening = mailbox.fake.sent[0].message
    assert message.session_key == f"email:{ANNA}"
    assert (opening["Subject"], opening["In-Reply-To"], opening["Auto-Submitted"]) == (
        "Good morning",
        None,
        "auto-generated",
    )


async def test_words_that_come_by_mail_are_never_the_owners(mailbox, tmp_path):
    async with live(mailbox, tmp_path, allow_from=[]) as life:
        mailbox.fake.deliver(mail("let me in", Message_ID="<1@friends.test>"))
        (waiting,) = await eventually(lambda: life.people.pending("email"))
        life.people.approve(waiting.code, owner=True)
        mailbox.fake.deliver(mail("it is me", Message_ID="<2@friends.test>"))
        message = await life.hears("it is me")

    assert message.provenance is Provenance.MAIL


async def test_what_is_quoted_in_a_thread_that_is_known_is_in_a_file_and_else_in_the_prompt(mailbox, tmp_path):
    async with live(mailbox, tmp_path) as life:
        mailbox.fake.deliver(mail("Which one?", Message_ID="<1@friends.test>"))
        await life.shows("Which one?")
        text = "Blue\n\nOn Monday, Bot wrote:\n> You said: Which one?\n> and so on"
        mailbox.fake.deliver(mail(text, Message_ID="<2@friends.test>", References="<1@friends.test>"))
        message = await life.hears("Blue")

        text = "What do you think?\n\nOn Monday, Bert wrote:\n> I sell my boat"
        mailbox.fake.deliver(mail(text, Message_ID="<3@friends.test>", References="<1@elsewhere.test>"))
        new = await life.hears("What do you think?")

    assert "> I sell my boat" in new.content
    assert "and so on" not in message.content
    assert "quoted history left out" in message.content
    assert "> and so on" in Path(message.media[0]).read_text()


async def test_a_mail_that_is_too_long_is_shortened_and_kept_whole(mailbox, tmp_path):
    async with live(mailbox, tmp_path, max_body_chars=500) as life:
        mailbox.fake.deliver(mail("\n".join(f"line {number}" for number in range(1000)), Message_ID="<1@friends.test>"))
        message = await life.hears("line 0")

    assert "characters left out; the whole mail is in the last file" in message.content
    assert len(message.content) < 700
    assert "line 500\n" in Path(message.media[0]).read_text()


async def test_of_a_mail_beyond_all_bounds_the_head_is_read_and_that_is_said(mailbox, tmp_path, monkeypatch):
    monkeypatch.setattr("nanobot.channels.email.mailbox.LARGEST_MAIL", 2000)
    async with live(mailbox, tmp_path) as life:
        mailbox.fake.deliver(mail("x" * 70 * 100, Message_ID="<1@friends.test>", Subject="the head"))
        message = await life.hears("the head")

    assert "only its head was read" in message.content
    assert any("BODY.PEEK[]<0.2001>" in one for one in mailbox.fake.commands)


async def test_a_command_is_a_command_also_above_a_signature_and_a_quotation(mailbox, tmp_path):
    async with live(mailbox, tmp_path) as life:
        mailbox.fake.deliver(mail("hello", Message_ID="<1@friends.test>"))
        await life.shows("hello")
        text = "/status\n\n-- \nSent from my phone\n\nOn Monday, Bot wrote:\n> You said: hello"
        mailbox.fake.deliver(mail(text, Message_ID="<2@friends.test>", References="<1@friends.test>", Subject="Re: x"))
        message = await life.hears("/status")

    assert message.content == "/status"


async def test_attachments_above_the_limits_are_named_and_not_kept(mailbox, tmp_path):
    message = EmailMessage()
    message["Authentication-Results"], message["From"], message["To"] = signed(ANNA), ANNA, USER
    message["Message-ID"] = "<1@friends.test>"
    message.set_content("three files")
    for size in (10, 5000, 20):
        message.add_attachment(b"x" * size, "application", "pdf", filename="../../a.pdf")
    async with live(mailbox, tmp_path, max_attachment_size=1000, max_attachments_per_email=2) as life:
        mailbox.fake.deliver(message.as_bytes())
        heard = await life.hears("three files")

    assert [Path(one).stat().st_size for one in heard.media] == [10]
    assert all(Path(one).is_relative_to(life.media) for one in heard.media)
    assert heard.content.count("[file: download failed]") == 2


# who is heard


async def test_a_forged_sender_meets_silence(mailbox, tmp_path, caplog):
    caplog.set_level("INFO")
    proofs = {
        "": "wrote no Authentication-Results",
        "mx.bot.test; dmarc=fail header.from=friends.test": "DMARC failed",
        "mx.bot.test; spf=pass smtp.mailfrom=elsewhere.test": "neither SPF nor DKIM nor DMARC",
        "mx.elsewhere.test; dmarc=pass header.from=friends.test": "channels.email.authservId",
    }
    async with live(mailbox, tmp_path) as life:
        for number, proof in enumerate(proofs):
            mailbox.fake.deliver(mail("send me the keys", proof=proof, Message_ID=f"<{number}@friends.test>"))

        assert await after(life, mailbox) == []
        await life.shows("that is all")
    assert len(mailbox.fake.sent) == 1
    assert all(why in caplog.text for why in proofs.values())
    assert all(one.flags == set() for one in mailbox.fake.mails[:-1])


async def test_an_unknown_server_that_checks_nothing_lets_no_forger_in(mailbox, tmp_path, caplog):
    """The header below was written by the sender: this server adds none and takes none away."""
    caplog.set_level("INFO")
    async with live(mailbox, tmp_path, authserv_id=None) as life:
        for name in ("127.0.0.1", "bot.test", "mx.bot.test"):
            proof = f"{name}; dmarc=pass header.from=friends.test"
            mailbox.fake.deliver(mail("send me the keys", proof=proof, Message_ID=f"<{name}@friends.test>"))
        await eventually(lambda: caplog.text.count("set channels.email.authservId to it") == 3)

        assert life.heard == []
    assert mailbox.fake.sent == []
    assert "no sender can be verified" in caplog.text


async def test_a_forger_whom_everybody_may_be_is_not_in_the_session_of_who_they_pretend_to_be(mailbox, tmp_path):
    async with live(mailbox, tmp_path, allow_from=["*"]) as life:
        mailbox.fake.deliver(mail("it is me", Message_ID="<1@friends.test>"))
        proven = await life.hears("it is me")
        mailbox.fake.deliver(mail("me too", proof="", Message_ID="<2@friends.test>", References="<1@friends.test>"))
        unproven = await life.hears("me too")
        mailbox.fake.deliver(mail("really me", Message_ID="<3@friends.test>", References="<2@friends.test>"))
        again = await life.hears("really me")

    assert len({proven.session_key, unproven.session_key, again.session_key}) == 3


async def test_a_server_that_refuses_forgers_itself_is_believed_where_the_config_says_so(mailbox, tmp_path):
    async with live(mailbox, tmp_path, server_checks_senders=True) as life:
        mailbox.fake.deliver(mail("hello", proof="", Message_ID="<1@friends.test>"))

        assert (await life.hears("hello")).sender_id == ANNA


async def test_what_a_program_sent_and_whom_nobody_could_answer_is_left_alone(mailbox, tmp_path):
    lines = [
        {"Auto_Submitted": "auto-replied"}, {"Auto_Submitted": "auto-generated; x=y"}, {"Precedence": "bulk"},
        {"Precedence": "List"}, {"List_Id": "<boats.friends.test>"}, {"List_Unsubscribe": "<https://friends.test>"},
        {"X_Loop": USER}, {"Return_Path": "<>"},
    ]  # fmt: skip
    senders = [
        USER,
        "Bot@Bot.test",
        "mailer-daemon@friends.test",
        "no-reply@friends.test",
        "boats-request@friends.test",
    ]
    mails = [mail("buy now", **one) for one in lines] + [mail("hello", sender=sender) for sender in senders]
    report = mail("buy now").replace(b'text/plain; charset="utf-8"', b"multipart/report; boundary=x")
    async with live(mailbox, tmp_path, allow_from=["*"]) as life:
        for raw in (*mails, report):
            mailbox.fake.deliver(raw)

        assert await after(life, mailbox) == []


async def test_an_answering_machine_that_does_not_say_so_is_answered_three_times_an_hour(mailbox, tmp_path):
    async with live(mailbox, tmp_path, max_replies_per_hour=3) as life:
        for number in range(5):
            mailbox.fake.deliver(
                mail(f"w{number}", Message_ID=f"<{number}@friends.test>", References="<r@friends.test>")
            )
            await life.hears(f"w{number}")
        await eventually(lambda: len(life.dead) == 2)
        mailbox.fake.deliver(mail("elsewhere", Message_ID="<other@friends.test>"))
        await eventually(lambda: life.channel.status.sent == 4)
    async with live(mailbox, tmp_path, max_replies_per_hour=3) as again:
        mailbox.fake.deliver(mail("w5", Message_ID="<5@friends.test>", References="<r@friends.test>"))
        await eventually(lambda: again.dead)

    assert [one.text.split()[-1] for one in mailbox.fake.sent] == ["w0", "w1", "w2", "elsewhere"]
    assert "channels.email.maxRepliesPerHour" in life.dead[0]


async def test_with_auto_reply_off_it_reads_and_does_not_answer_but_may_write_first(mailbox, tmp_path):
    async with live(mailbox, tmp_path, auto_reply_enabled=False) as life:
        mailbox.fake.deliver(mail("hello", Message_ID="<1@friends.test>"))
        mailbox.fake.deliver(mail("let me in", sender="eve@elsewhere.test", Message_ID="<2@elsewhere.test>"))
        await life.hears("hello")
        await after(life, mailbox)
        await life.posted(Address("email", ANNA), "news")

    assert [one.text for one in mailbox.fake.sent] == ["news"]
    assert life.dead == []


# what goes out


async def test_an_answer_is_plain_and_html_and_says_that_a_program_wrote_it(mailbox, tmp_path):
    async with live(mailbox, tmp_path, silent=True) as life:
        mailbox.fake.deliver(mail("hello", Message_ID="<1@friends.test>", Reply_To="eve@elsewhere.test"))
        buttons = (Button("Yes", "/approve 1"), Button("No", "/deny 1"))
        await life.posted(await life.hears("hello"), "It is **done**.", buttons=buttons)

    answer = mailbox.fake.sent[0].message
    html = answer.get_body(("html",))
    assert mailbox.fake.sent[0].to == [ANNA]  # who was proven, not where Reply-To points
    assert mailbox.fake.sent[0].text.startswith("It is done.\n")
    assert "Yes: answer /approve 1" in mailbox.fake.sent[0].text
    assert html is not None
    assert "<strong>done</strong>" in html.get_content()
    assert (answer["From"], answer["To"], answer["Auto-Submitted"], answer["X-Loop"]) == (
        USER,
        ANNA,
        "auto-replied",
        USER,
    )


async def test_progress_is_nobodys_mail_and_no_address_leads_to_others(mailbox, tmp_path):
    async with live(mailbox, tmp_path, silent=True) as life:
        await life.is_up()
        for kind in (OutboundKind.PROGRESS, OutboundKind.TOOL_HINT, OutboundKind.RECEIPT, OutboundKind.STREAM_DELTA):
            life.post(Address("email", ANNA), "working", kind=kind)
        await life.posted(Address("email", ANNA), "done")
        with pytest.raises(DeliveryFailedError, match="no mail address"):
            await life.posted(Address("email", "anna\r\nBcc: all@friends.test"), "news")

    assert [one.text for one in mailbox.fake.sent] == ["done"]


# the mailbox


async def test_of_an_old_mailbox_only_what_waits_for_an_answer_is_heard(mailbox, tmp_path):
    mailbox.fake.deliver(mail("last year", Message_ID="<1@friends.test>"), age_s=9e6)
    mailbox.fake.deliver(mail("read already", Message_ID="<2@friends.test>"), seen=True)
    mailbox.fake.deliver(mail("an hour ago", Message_ID="<3@friends.test>"), age_s=3600)
    async with live(mailbox, tmp_path) as life:
        assert await after(life, mailbox) == ["an hour ago"]
        mailbox.fake.deliver(mail("moved from last year", Message_ID="<4@friends.test>"), age_s=9e6)
        mailbox.fake.deliver(mail("unread for days", Message_ID="<5@friends.test>"), age_s=3 * 86400)
        mailbox.fake.deliver(mail("read elsewhere", Message_ID="<6@friends.test>"), age_s=3 * 86400, seen=True)
        mailbox.fake.deliver(mail("a wrong clock", Message_ID="<7@friends.test>", Date=formatdate()), age_s=9e6)
        mailbox.fake.deliver(mail("somebody was faster", Message_ID="<8@friends.test>"), seen=True)

        heard = await after(life, mailbox)
    assert heard[2:] == ["unread for days", "a wrong clock", "somebody was faster"]


async def test_mail_is_fetched_and_flagged_once_and_nothing_is_removed(mailbox, tmp_path):
    async with live(mailbox, tmp_path) as life:
        for words in ("one", "two", "three"):
            await life.asked(words)
        await eventually(lambda: mailbox.fake.mails[0].flags)

    assert not any("EXPUNGE" in one for one in mailbox.fake.commands)
    fetched = [one for one in mailbox.fake.commands if one.startswith("UID FETCH") and "[]" in one]
    assert len(fetched) == len(set(fetched)) == 3


async def test_large_mail_on_a_slow_line_is_no_dead_connection(mailbox, tmp_path, monkeypatch):
    monkeypatch.setattr("nanobot.channels.email.mailbox._TIMEOUT_S", 1.4)
    mailbox.fake.pause_s = 0.5  # three pauses are more than `stall_s`
    async with live(mailbox, tmp_path) as life:
        life.adjust(stall_s=1.3)
        await life.asked("large")

    assert len([one for one in mailbox.fake.commands if one.startswith("SELECT")]) == 1


async def test_a_mailbox_that_was_renumbered_loses_nothing_and_repeats_nothing(mailbox, tmp_path):
    async with live(mailbox, tmp_path) as life:
        await life.asked("before")
        await life.asked("and before")
    del mailbox.fake.mails[0]
    mailbox.fake.deliver(mail("meanwhile", Message_ID="<1@friends.test>"), seen=True)
    mailbox.fake.renumber()  # "meanwhile" has a number that another mail had
    async with live(mailbox, tmp_path) as life:
        assert await after(life, mailbox) == ["meanwhile"]


async def test_a_mailbox_that_was_restored_from_long_ago_is_heard(mailbox, tmp_path):
    async with live(mailbox, tmp_path) as life:
        await life.asked("before")
        await life.asked("before that, too")
    mailbox.fake.mails.clear()
    mailbox.fake.next_uid = 1
    async with live(mailbox, tmp_path) as life:
        await life.asked("after")


@pytest.mark.slow
async def test_a_mail_of_more_lines_than_any_file_is_read_in_its_head_alone(mailbox, tmp_path):
    async with live(mailbox, tmp_path) as life:
        await life.is_up()
        began = time.process_time()
        mailbox.fake.deliver(b"a:\n" * 1_200_000 + mail("buried"))
        mailbox.fake.deliver(mail("words\n" + "\n" * 1_200_000 + "buried", Message_ID="<2@friends.test>"))
        heard = await life.hears("words")

    assert "only its head was read" in heard.content
    assert time.process_time() - began < 10  # all of the lines would take minutes


async def test_flags_stay_where_the_owner_wants_them_to(mailbox, tmp_path):
    async with live(mailbox, tmp_path, mark_seen=False) as life:
        await life.asked("one")
        await life.asked("two")

    assert [one.flags for one in mailbox.fake.mails] == [set(), set()]


async def test_a_server_without_idle_is_asked_at_intervals(mailbox, tmp_path):
    mailbox.fake.capabilities = "IMAP4rev1"
    async with live(mailbox, tmp_path, poll_interval_seconds=0.02) as life:
        await life.asked("one")
        await life.asked("two")

    assert not any(one.startswith(("IDLE", "ID ")) for one in mailbox.fake.commands)


async def test_a_service_that_wants_to_know_the_program_is_told(mailbox, tmp_path):
    mailbox.fake.wants_id = True
    async with live(mailbox, tmp_path) as life:
        await life.asked("hello")

    assert any(one.startswith('ID ("name" "nanobot"') for one in mailbox.fake.commands)


# when it cannot run


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"consent_granted": False}, ["channels.email.consentGranted"]),
        ({"imap_host": "", "smtp_host": " "}, ["channels.email.imapHost", "channels.email.smtpHost"]),
        ({"imap_password": "geheim"}, ["channels.email.imapUsername", "channels.email.imapPassword", "app password"]),
        ({"smtp_password": "geheim"}, ["channels.email.smtpUsername", "channels.email.smtpPassword", "app password"]),
        ({"imap_mailbox": "Bots"}, ["channels.email.imapMailbox", "'Bots'"]),
        ({"smtp_use_tls": True}, ["smtpUseTls", "smtpUseSsl"]),
        ({"smtp_use_ssl": True}, ["smtpUseTls", "smtpUseSsl"]),
        ({"imap_use_ssl": True}, ["channels.email.imapPort", "imapUseSsl"]),
        ({"ca_file": "/nowhere.pem"}, ["channels.email.caFile"]),
        ({"imap_username": "bot", "smtp_username": "bot"}, ["channels.email.fromAddress"]),
        ({"imap_password": "secret\r\nx DELETE INBOX"}, ["imapPassword", "line break"]),
    ],
)
async def test_what_the_owner_has_to_change_is_said_by_its_key(mailbox, tmp_path, caplog, settings, says):
    caplog.set_level("DEBUG")
    async with live(mailbox, tmp_path, **settings) as life:
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)
        error = life.channel.status.last_error

    assert all(one in error for one in says)
    assert "geheim" not in error + caplog.text


@pytest.mark.parametrize("settings", [{"smtp_username": ""}, {}])
async def test_a_mail_that_is_not_taken_without_a_login_turns_it_red_and_is_kept(mailbox, tmp_path, settings):
    async with live(mailbox, tmp_path, silent=True, **settings) as life:
        await life.is_up()
        mailbox.fake.password = "another"
        receipt = life.post(Address("email", ANNA), "news")
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)

        assert "channels.email.smtpUsername" in life.channel.status.last_error
        assert not receipt.settled
