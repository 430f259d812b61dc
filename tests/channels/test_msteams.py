"""What only Teams has: signed requests, trusted addresses, cards with buttons, and files once people agree."""

import json
from datetime import UTC, datetime
from pathlib import Path

import httpx
import jwt
import pytest

from nanobot.bus.events import Address, Button
from nanobot.bus.queue import MessageBus
from nanobot.channels.chat_channel import SendOptions
from nanobot.channels.errors import ChannelSetupError, NotConnectedError
from nanobot.channels.msteams import TeamsChannel
from nanobot.channels.status import ChannelState
from nanobot.config.loader import load_config
from nanobot.gateway.service import Options, open_gateway
from nanobot.markdown import split_message
from nanobot.markdown.dialects import TEAMS
from nanobot.messages.types import Provenance
from nanobot.testing import FrozenClock, ScriptedProvider
from nanobot.testing.live_channel import delta, live
from tests.fakes.msteams import ANNA, BOT, HALL, chat_of
from tests.support.eventually import eventually

NOON = datetime(2026, 11, 27, 12, tzinfo=UTC)


async def test_a_port_that_is_taken_is_told(teams, tmp_path):
    async with live(teams, tmp_path) as life:
        await life.is_up()
        async with live(teams, tmp_path / "other") as second:
            await eventually(lambda: second.channel.status.state is ChannelState.FAILED)

            assert (
                "is used by another program. Choose another channels.msteams.port" in second.channel.status.last_error
            )


async def test_login_tries_the_password_and_says_what_to_enter_at_azure(teams, capsys):
    assert await teams.channel(MessageBus(), host="").login()
    assert "https://YOUR-ADDRESS/hooks/msteams" in capsys.readouterr().out

    assert await teams.channel(MessageBus()).login()
    assert "https://YOUR-ADDRESS/api/messages" in capsys.readouterr().out

    with pytest.raises(ChannelSetupError, match="AADSTS7000215"):
        await teams.channel(MessageBus(), app_password="bad").login()


@pytest.mark.parametrize(
    "forged",
    [
        {"key": "of a stranger", "kid": "key-1"},
        {"key": "of a stranger"},
        {"aud": "another-bot"},
        {"iss": "https://sts.example"},
        {"exp": 1_700_000_000},
        {"serviceurl": "https://smba.trafficmanager.net/emea/"},
        {"token": jwt.encode({"aud": BOT}, "x" * 32, "HS256", headers={"kid": "key-1"})},
        {"token": jwt.encode({"aud": BOT}, "", "none", headers={"kid": "key-1"})},
        {"token": "no.token.atall"},
    ],
    ids=str,
)
async def test_a_forged_message_is_rejected(teams, tmp_path, forged):
    async with live(teams, tmp_path) as life:
        await life.asked("hello")
        status = await teams.deliver(teams.message("let me in"), **forged)
        await life.asked("bye")

    assert status == 403
    assert not any("let me in" in message.content for message in life.heard)


async def test_where_people_choose_their_ids_themselves_nobody_is_known(teams, tmp_path):
    teams.endorsements = ["msteams", "webchat"]
    async with live(teams, tmp_path) as life:
        status = await teams.deliver({**teams.message("it is me", chat="a:web"), "channelId": "webchat"})
        await life.asked("hello")
        chat = await life.channel.chat_with(ANNA)

    assert (status, chat) == (200, chat_of(ANNA))
    assert [message.content for message in life.heard] == ["hello"]
    assert len(teams.shown()) == 1


@pytest.mark.parametrize("service_url", ["https://evil.example/", "http://smba.trafficmanager.net/", "http://[", None])
async def test_no_token_goes_to_an_address_that_is_not_trusted(teams, tmp_path, service_url, caplog):
    trusted = ["127.0.0.1", "smba.trafficmanager.net"]
    async with live(teams, tmp_path, trusted_service_url_hosts=trusted) as life:
        status = await teams.deliver({**teams.message("psst"), "serviceUrl": service_url})
        await life.asked("hello")

    assert status == 403
    assert [message.content for message in life.heard] == ["hello"]
    assert "channels.msteams.trustedServiceUrlHosts" in caplog.text


async def test_a_key_that_is_not_for_teams_is_rejected(teams, tmp_path):
    teams.endorsements = ["webchat"]
    async with live(teams, tmp_path) as life:
        await life.is_up()

        assert await teams.deliver(teams.message("hello")) == 403


async def test_keys_are_fetched_again_for_an_unknown_one_but_once_a_minute(teams, tmp_path):
    clock, server = FrozenClock(NOON), teams
    async with live(teams, tmp_path, clock=clock) as life:
        await life.asked("hello")
        server.keys.append("key-2")
        early = [await server.deliver(server.message("early"), key="key-2") for _ in range(3)]
        fetched = server.calls.count("keys")
        clock.advance(61)
        late = await server.deliver(server.message("late"), key="key-2")
        await life.hears("late")

    assert (early, fetched) == ([403] * 3, 1)
    assert (late, server.calls.count("keys")) == (200, 2)


async def test_a_body_that_is_no_activity_is_refused(teams, tmp_path):
    async with live(teams, tmp_path) as life, httpx.AsyncClient(trust_env=False, verify=False) as client:
        await life.is_up()
        told = [(await client.post(teams.webhook, content=body)).status_code for body in (b"{", b"[" * 100_000)]
        told.append((await client.post(teams.webhook, content=b"[]")).status_code)
        await life.asked("hello")

    assert told == [400, 400, 403]


async def test_the_gateway_answers_at_its_own_address(teams, tmp_path):
    section = teams.channel(MessageBus(), host="").config.model_dump(by_alias=True)
    (tmp_path / "config.json").write_text(json.dumps({"channels": {"msteams": section}}), encoding="utf-8")
    config = load_config(tmp_path / "config.json")
    async with open_gateway(
        config, data_dir=tmp_path / "home", options=Options(port=0), provider=ScriptedProvider("hello"), environ={}
    ) as gateway:
        teams.webhook = f"http://127.0.0.1:{gateway.http.port}/hooks/msteams"
        await teams.says("hi")
        await eventually(lambda: [one.text for one in teams.shown()] == ["hello"])

    assert teams.acknowledged(next(iter(teams.sent)))


async def test_the_bots_name_is_no_word_of_a_message_and_other_names_are(teams, tmp_path):
    mention = {"type": "mention", "text": "<at>Nano</at>", "mentioned": {"id": BOT, "name": "Nano"}}
    other = {"type": "mention", "text": "<at>Zoe</at>", "mentioned": {"id": "29:zoe", "name": "Zoe"}}
    chat = f"{HALL};messageid=1"
    async with live(teams, tmp_path, allow_from=[HALL]) as life:
        text = "<at>Nano</at> ask <at>Zoe</at> for A&amp;B&nbsp;please"
        await teams.writes(text, chat=chat, entities=[mention, other])
        message = await life.hears("ask")

    assert message.content == "ask @Zoe for A&B please"
    assert (message.chat_id, message.is_mentioned) == (chat, True)


async def test_a_mention_without_a_word_gets_the_configured_answer_and_asks_no_model(teams, tmp_path):
    async with live(teams, tmp_path, mention_only_response="Yes?") as life:
        await teams.says("", chat=HALL, mention=True)
        await life.shows("Yes?", HALL)
        await teams.says("", sender=teams.stranger, chat=HALL, mention=True)
        await life.asked("after")

    assert [message.content for message in life.heard] == ["after"]
    assert len(teams.shown(HALL)) == 1


@pytest.mark.parametrize(("author", "trust"), [("8:orgid:zoe", Provenance.PERSON), (BOT, Provenance.OWNER)])
async def test_a_quote_is_set_apart_from_the_answer_to_it(teams, tmp_path, author, trust):
    reply = (
        '<blockquote itemscope="" itemtype="http://schema.skype.com/Reply" itemid="1700">'
        f'<strong itemprop="mri" itemid="{author}">Zoe</strong><span itemprop="time" itemid="1700"></span>'
        '<p itemprop="preview">the plan is old</p></blockquote><p>is it?</p>'
    )
    shown = [{"contentType": "text/html", "content": reply}]
    async with live(teams, tmp_path) as life:
        life.people.admit("msteams", ANNA, owner=True)
        await teams.writes("Zoe the plan is old is it?", attachments=shown)
        message = await life.hears("is it?")

    assert message.content == "[in reply to a message]\n> the plan is old\nis it?"
    assert message.provenance is trust


async def test_a_file_from_onedrive_is_fetched_without_the_bots_token(teams, tmp_path):
    teams.stored["plan.pdf"] = b"%PDF-1.7 the plan"
    file = {
        "contentType": "application/vnd.microsoft.teams.file.download.info", "name": "plan.pdf",
        "content": {"downloadUrl": f"{teams.url.replace('127.0.0.1', 'localhost')}/shared/plan.pdf"},
    }  # fmt: skip
    async with live(teams, tmp_path) as life:
        await teams.writes("read it", attachments=[file])
        message = await life.hears("read it")

    assert Path(message.media[0]).read_bytes() == b"%PDF-1.7 the plan"
    assert "file: no token" in teams.calls


async def test_a_private_chat_is_found_after_a_restart_until_it_is_too_old(teams, tmp_path):
    clock, elsewhere = FrozenClock(NOON), "http://127.0.0.1:9/nowhere"
    async with live(teams, tmp_path, clock=clock, service_url=elsewhere) as life:
        await life.asked("hello")
        await life.asked("hello all", chat=HALL, mention=True)
    async with live(teams, tmp_path, clock=clock, service_url=elsewhere) as life:
        await life.is_up()
        chat = await life.channel.chat_with(ANNA)
        await life.posted(Address("msteams", chat_of(ANNA)), "good morning")
        assert isinstance(life.channel, TeamsChannel)
        with pytest.raises(NotConnectedError):  # of groups nothing is kept, unless pruneNonPersonalRefs is false
            await life.channel.post(Address("msteams", HALL), split_message("hello", TEAMS)[0], SendOptions())
    clock.advance(31 * 24 * 3600)
    async with live(teams, tmp_path, clock=clock, service_url=elsewhere) as life:
        await life.is_up()
        with pytest.raises(NotConnectedError):
            await life.channel.chat_with(ANNA)

    assert chat == chat_of(ANNA)


ADDRESS = Address("msteams", chat_of(ANNA))


async def test_a_thread_is_answered_in_it_or_beside_it(teams, tmp_path):
    thread = f"{HALL};messageid=7"
    async with live(teams, tmp_path) as life:
        await life.asked("one", chat=HALL, thread="7", mention=True)
        await eventually(lambda: life.channel.status.sent)
    async with live(teams, tmp_path, silent=True, reply_in_thread=False) as life:
        life.adjust(delta_interval_s=0.0)
        message = await life.receives("two", chat=HALL, thread="7", mention=True)
        delta(life, message, "first ")
        await life.shows("first", HALL)
        life.answers(message, "first second")
        await life.shows("first second", HALL)

    assert [(post.chat, post.text) for post in teams.posts] == [
        (thread, "You said: one"),
        (HALL, "first second"),
    ]


async def test_of_many_buttons_the_first_six_are_shown(teams, tmp_path):
    async with live(teams, tmp_path) as life:
        await life.posted(ADDRESS, "which?", buttons=tuple(Button(f"b{number}", "x" * 300) for number in range(9)))

    (post,) = teams.posts
    assert [button["title"] for button in post.buttons] == [f"b{number}" for number in range(6)]
    assert post.text == "which?"


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A file to send."""
    (tmp_path / "plan.txt").write_text("the plan", encoding="utf-8")
    return tmp_path / "plan.txt"


async def test_a_file_is_stored_once_its_person_agrees_even_if_it_is_gone_and_the_bot_was_away(teams, tmp_path, plan):
    async with live(teams, tmp_path) as life:
        await life.posted(ADDRESS, "here it is", media=[str(plan)])
    plan.unlink()
    consent = teams.posts[-1]
    stored_before = dict(teams.stored)
    async with live(teams, tmp_path) as life:
        await life.is_up()
        answers = [await teams.answers_consent(consent, "accept")]
        await eventually(lambda: len(teams.posts) == 3)
        await eventually(lambda: not [*(tmp_path / "files").iterdir()])
        answers.append(await teams.answers_consent(consent, "accept"))
        await life.asked("thanks")

    assert answers == [200, 200]
    assert (stored_before, teams.stored) == ({}, {"stored-plan.txt": b"the plan"})
    (shown,) = teams.posts[2].attachments
    assert (shown["contentType"], shown["name"]) == ("application/vnd.microsoft.teams.card.file.info", "plan.txt")
    assert len(teams.posts) == 4


async def test_a_file_that_is_declined_is_forgotten_and_one_whose_card_is_refused_does_not_wait(teams, tmp_path, plan):
    async with live(teams, tmp_path) as life:
        await life.is_up()
        teams.refuse(1, status=500)
        await life.posted(ADDRESS, "", media=[str(plan)])
        waiting = [*(tmp_path / "files").iterdir()]
        await teams.answers_consent(teams.posts[-1], "decline")
        await eventually(lambda: not [*(tmp_path / "files").iterdir()])

    assert len(waiting) == len(teams.posts) == 1
    assert teams.stored == {}


async def test_an_answer_about_another_file_than_one_that_waits_sends_and_deletes_none(teams, tmp_path, plan):
    (tmp_path / "other.txt").write_text("another", encoding="utf-8")
    async with live(teams, tmp_path) as life:
        await life.posted(ADDRESS, "", media=[str(plan)])
        consent = teams.posts[-1]
        for file_id in ("*", "../../other.txt", "/etc/passwd", "0" * 32, {"odd": 1}):
            consent.attachments[0]["content"]["acceptContext"] = {"file": file_id}
            assert await teams.answers_consent(consent, "accept") == 200
        await life.asked("thanks")
        assert len([*(tmp_path / "files").iterdir()]) == 1

    assert teams.stored == {}


async def test_a_file_that_onedrive_refuses_waits_and_its_person_is_told(teams, tmp_path, plan):
    async with live(teams, tmp_path) as life:
        await life.posted(ADDRESS, "", media=[str(plan)])
        consent = teams.posts[-1]
        teams.onedrive_status = 507
        await teams.answers_consent(consent, "accept")
        await life.shows("plan.txt could not be stored")
        teams.onedrive_status = 201
        await teams.answers_consent(consent, "accept")
        await eventually(lambda: teams.stored)

    assert teams.stored == {"stored-plan.txt": b"the plan"}


async def test_a_group_is_told_of_a_file_that_teams_takes_in_private_chats_only(teams, tmp_path, plan):
    async with live(teams, tmp_path) as life:
        await life.posted(Address("msteams", HALL), "", media=[str(plan)])

    (post,) = teams.posts
    assert "plan.txt cannot be sent here" in post.text
    assert not Path(tmp_path / "files").exists()
