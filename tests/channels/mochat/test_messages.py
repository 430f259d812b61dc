"""Which messages of Mochat the bot answers, when, and what it sends."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nanobot.bus.events import Address
from nanobot.messages.types import Provenance
from nanobot.testing.live_channel import live
from tests.fakes.mochat import AGENT, ANNA, DM, GENERAL, GROUP, TOM, TRIO, ZOE, MochatPlatform
from tests.support.eventually import eventually

WAITS: dict[str, Any] = {"group_policy": "open", "mention": {}, "reply_delay_mode": "non-mention"}


async def test_a_panel_is_answered_once_it_is_silent_and_as_one_message(mochat, tmp_path):
    async with live(mochat, tmp_path, allow_from=[ANNA, TOM], reply_delay_ms=300, **WAITS) as life:
        await eventually(lambda: mochat.subscribed)
        await mochat.says("who has time?", chat=GENERAL)
        last = await mochat.says("me", sender=TOM, chat=GENERAL)
        message = await life.hears("me")
        await life.shows("You said", GENERAL)

    assert message.content.splitlines() == ["Nick 1: who has time?", "Nick 3: me"]
    assert (message.sender_id, message.message_id, message.is_mentioned) == (TOM, last, False)
    assert message.provenance is Provenance.PERSON
    assert len(life.heard) == 1


async def test_a_mention_answers_a_panel_at_once_with_what_was_written_before(mochat, tmp_path):
    async with live(mochat, tmp_path, **WAITS) as life:
        await eventually(lambda: mochat.subscribed)
        await mochat.says("the bus leaves at 6", chat=GENERAL)
        await mochat.writes("when does it leave?", chat=GENERAL, mention=True)
        message = await life.hears("when")

    assert message.content.splitlines() == ["Nick 1: the bus leaves at 6", "Nick 1: when does it leave?"]
    assert message.is_mentioned


async def test_a_mention_that_is_read_again_takes_nothing_along(mochat, tmp_path):
    async with live(mochat, tmp_path, reply_delay_ms=300, **WAITS) as life:
        mention_id, _, _ = await life.asked("first", chat=GENERAL, mention=True)
        await mochat.says("later", chat=GENERAL)
        await mochat.again(mention_id)
        message = await life.hears("later")

    assert message.content == "later"


async def test_a_stranger_in_a_panel_hastens_nothing_and_is_not_read(mochat, tmp_path):
    async with live(mochat, tmp_path, reply_delay_ms=300, **WAITS) as life:
        await eventually(lambda: mochat.subscribed)
        await mochat.says("mine", chat=GENERAL)
        await mochat.says("theirs", sender=ZOE, chat=GENERAL, mention=True)
        message = await life.hears("mine")

    assert message.content == "mine"
    assert len(life.heard) == 1


async def test_what_waits_for_a_silent_panel_is_not_lost_at_a_restart(mochat, tmp_path):
    async with live(mochat, tmp_path, **WAITS) as life:
        await life.asked("earlier", chat=GENERAL, mention=True)
        await mochat.says("still waiting", chat=GENERAL)
        await life.asked("in private")
    async with live(mochat, tmp_path, reply_delay_ms=50, **WAITS) as life:
        message = await life.hears("still waiting")

    assert message.content == "still waiting"


@pytest.mark.parametrize(
    ("section", "answered"),
    [
        ({"mention": {"requireInGroups": True}}, False),
        ({"mention": {"require_in_groups": True}, "groups": {GROUP: {"requireMention": False}}}, True),
        ({"groups": {GENERAL: {"require_mention": True}}}, False),
        ({"groups": {"*": {"requireMention": True}, GENERAL: {"requireMention": False}}}, True),
        ({"groups": {"*": {"requireMention": True}}}, False),
        ({"group_policy": "mention"}, False),
        ({"group_policy": "allowlist"}, False),
        ({"group_policy": "allowlist", "allow_from": [ANNA, GROUP]}, True),
    ],
)
async def test_a_mention_is_required_where_the_owner_wants_it(mochat, tmp_path, section, answered):
    async with live(mochat, tmp_path, **{"group_policy": "open", "mention": {}, **section}) as life:
        await eventually(lambda: mochat.subscribed)
        await mochat.says("hello all", chat=GENERAL)
        reads = panel_reads(mochat)
        await eventually(lambda: panel_reads(mochat) > reads + 1)  # so what the first one found was processed

    assert [message.content for message in life.heard if message.in_group] == (["hello all"] if answered else [])


def panel_reads(mochat: MochatPlatform) -> int:
    return sum(path == "groups/panels/messages" for path, _ in mochat.calls)


@pytest.mark.parametrize(
    "meta", [{"mentioned": True}, {"mentionIds": [AGENT]}, {"mentionedUsers": [{"userId": AGENT}]}]
)
async def test_a_mention_beside_the_text_counts(mochat, tmp_path, meta):
    async with live(mochat, tmp_path) as life:
        await mochat.writes("you there", chat=GENERAL, meta=meta)
        message = await life.hears("you there")

    assert message.is_mentioned


async def test_a_chat_of_several_people_is_a_group_and_answered_at_once(mochat, tmp_path):
    async with live(mochat, tmp_path, **WAITS) as life:
        _, message, answer = await life.asked("hello both", chat=TRIO)

    assert message.in_group
    assert answer.text == "You said: hello both"


async def test_only_the_chats_and_panels_that_the_owner_names_are_read(mochat, tmp_path):
    async with live(mochat, tmp_path, sessions=[DM], panels=["67b0other"]) as life:
        await eventually(lambda: mochat.subscribed)
        await mochat.says("elsewhere", chat=TRIO, mention=True)
        await mochat.says("elsewhere", chat=GENERAL, mention=True)
        await life.asked("here")

    assert len(life.heard) == 1


async def test_messages_from_long_before_the_first_start_are_ignored(mochat, tmp_path):
    old = {"createdAt": (datetime.now(UTC) - timedelta(hours=1)).isoformat()}
    await mochat.writes("old", **old)
    await mochat.writes("old", chat=GENERAL, mention=True, **old)
    async with live(mochat, tmp_path) as life:
        await life.asked("new")
        await life.asked("new there", chat=GENERAL, mention=True)

    assert [message.content for message in life.heard] == ["new", "new there"]


async def test_content_that_is_no_text_is_given_as_json(mochat, tmp_path):
    async with live(mochat, tmp_path) as life:
        await mochat.writes({"type": "card", "title": "Größe"})
        message = await life.hears("card")

    assert message.content == '{"type": "card", "title": "Größe"}'


async def test_a_file_is_named_because_mochat_takes_none(mochat, tmp_path):
    (tmp_path / "report.pdf").write_bytes(b"%PDF-1.7")
    async with live(mochat, tmp_path, silent=True) as life:
        media = [str(tmp_path / "report.pdf"), "https://example.org/list.txt"]
        await life.posted(Address("mochat", DM), "here", media=media)

    assert [post.text for post in mochat.posts] == [
        "here",
        "(report.pdf: files cannot be sent on Mochat.)",
        "https://example.org/list.txt",
    ]


async def test_a_panel_is_found_by_its_name_and_by_the_ids_of_the_original(mochat, tmp_path):
    async with live(mochat, tmp_path) as life:
        await life.is_up()
        names = ("general 0", f"panel:{GENERAL}", f"mochat:{DM}", GENERAL)

        assert [await life.manager.find("mochat", name) for name in names] == [GENERAL, GENERAL, DM, GENERAL]
