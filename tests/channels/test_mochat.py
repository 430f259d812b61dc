"""What only Mochat has: a socket beside polls, panels that are answered once they are silent; and python-socketio."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nanobot.bus.events import Address
from nanobot.bus.queue import MessageBus
from nanobot.channels.status import ChannelState
from nanobot.messages.types import Provenance
from nanobot.testing.live_channel import live
from tests.fakes.mochat import AGENT, ANNA, DM, GENERAL, GROUP, TOKEN, TOM, TRIO, ZOE, MochatPlatform, Session
from tests.support.eventually import eventually
from tests.support.sdk_program import sdk_program


async def test_without_a_socket_chats_and_panels_are_polled_until_there_is_one(mochat, tmp_path):
    mochat.has_socket = False
    async with live(mochat, tmp_path) as life:
        await life.asked("in private")
        await life.asked("in a panel", chat=GENERAL, mention=True)
        assert life.channel.is_running
        assert mochat.subscribed == []
        mochat.has_socket = True
        await eventually(lambda: mochat.subscribed)
        await life.asked("told")

    assert mochat.subscribed[0]["cursors"][DM] > 0


async def test_after_as_many_attempts_as_the_owner_wants_it_only_polls_and_says_so(mochat, tmp_path, caplog):
    mochat.has_socket = False
    async with live(mochat, tmp_path, max_retry_attempts=2) as life:
        await eventually(lambda: "no socket after 2 attempts" in caplog.text)
        mochat.has_socket = True
        await life.asked("hello")

    assert mochat.subscribed == []


async def test_a_subscription_that_is_refused_leaves_the_polls(mochat, tmp_path):
    async with live(mochat, tmp_path, sessions=[DM, "session_of_others"]) as life:
        await life.asked("hello")

    assert ("sessions/watch", DM) in {(path, body.get("sessionId")) for path, body in mochat.calls}


async def test_json_works_where_the_owner_disables_msgpack(tmp_path):
    (folder := tmp_path / "platform").mkdir()
    platform = MochatPlatform(folder, msgpack=False)
    async with platform.open() as mochat, live(mochat, tmp_path, socket_disable_msgpack=True) as life:
        await eventually(lambda: platform.server.subscribed)
        await life.asked("hello")


async def test_a_chat_that_is_opened_later_is_read_from_its_first_message(mochat, tmp_path):
    async with live(mochat, tmp_path, refresh_interval_ms=60_000) as life:
        await eventually(lambda: mochat.subscribed)
        mochat.sessions["session_new"] = Session([ANNA, AGENT])
        _, message, _ = await life.asked("hello from here", chat="session_new")

    assert message.chat_id == "session_new"


async def test_more_than_one_page_from_while_it_was_down_is_answered(mochat, tmp_path):
    async with live(mochat, tmp_path, watch_limit=2) as life:
        await life.asked("before")
        await life.asked("there", chat=GENERAL, mention=True)
    for number in range(5):
        await mochat.says(f"private {number}")
        await mochat.says(f"panel {number}", chat=GENERAL, mention=True)
    async with live(mochat, tmp_path, watch_limit=2) as life:
        await eventually(lambda: len(life.heard) == 10)

    texts = [message.content for message in life.heard]
    assert [text for text in texts if "private" in text] == [f"private {number}" for number in range(5)]
    assert [text for text in texts if "panel" in text] == [f"panel {number}" for number in range(5)]


async def test_a_message_to_a_token_that_was_revoked_waits(mochat, tmp_path):
    async with live(mochat, tmp_path, silent=True, refresh_interval_ms=500) as life:
        message = await life.receives("hello")
        mochat.token = "claw_another"
        receipt = life.post(message, "waits")
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)
        is_waiting = not receipt.settled
    mochat.token = TOKEN
    async with live(mochat, tmp_path) as life:
        await life.shows("waits")

    assert is_waiting


async def test_a_login_leaves_no_connection_open(mochat):
    assert await mochat.channel(MessageBus()).login()

    await eventually(lambda: not mochat._runner.server.connections)


async def test_events_that_are_not_as_expected_end_nothing(mochat, tmp_path):
    payloads: list[Any] = [None, "text", 7, [], {}, {"sessionId": 7}, {"sessionId": DM, "events": [1, {}]}]
    names = ("claw.session.events", "claw.panel.events", "notify:chat.message.add", "notify:chat.inbox.append")
    async with live(mochat, tmp_path) as life:
        await life.asked("before")
        for payload in payloads:
            for name in names:
                await mochat.io.emit(name, payload)
        await life.asked("after")

        await eventually(lambda: len(mochat.io.manager.rooms.get("/", {}).get(None, ())) == 1)


@pytest.mark.slow
async def test_the_plain_client_of_python_socketio_talks_to_the_same_fake(mochat):
    async with sdk_program("mochat_client", TOKEN, AGENT, mochat.url, DM, GENERAL) as read:
        assert (await read())["ready"]
        panel = await mochat.writes("look", chat=GENERAL)
        private = await mochat.writes("hello")
        by_id = {one["messageId"]: one for one in (await read(), await read())}
        await eventually(lambda: mochat.posts)

    assert (by_id[private]["content"], by_id[private]["author"], by_id[private]["chat"]) == ("hello", ANNA, DM)
    assert (by_id[panel]["content"], by_id[panel]["chat"]) == ("look", GENERAL)
    assert [(post.text, post.reply_to) for post in mochat.posts] == [("You said it", private)]


WAITS: dict[str, Any] = {"group_policy": "open", "mention": {}, "reply_delay_mode": "non-mention"}


@pytest.mark.parametrize(
    ("delay_ms", "first", "last", "read"),
    [
        (300, (ANNA, "who has time?", False), (TOM, "me", False), "Nick 1: who has time?\nNick 3: me"),
        (60_000, (ANNA, "at 6?", False), (ANNA, "or when?", True), "Nick 1: at 6?\nNick 1: or when?"),
        (300, (ANNA, "mine", False), (ZOE, "theirs", True), "mine"),
    ],
    ids=["one message once it is silent", "at once with a mention", "a stranger hastens nothing and is not read"],
)
async def test_a_panel_is_answered(mochat, tmp_path, delay_ms, first, last, read):
    async with live(mochat, tmp_path, allow_from=[ANNA, TOM], reply_delay_ms=delay_ms, **WAITS) as life:
        await eventually(lambda: mochat.subscribed)
        for sender, text, mention in (first, last):
            message_id = await mochat.writes(text, sender=sender, chat=GENERAL, mention=mention)
        message = await life.hears(first[1])
        await life.shows("You said", GENERAL)

    is_read = last[0] != ZOE
    assert (message.content, message.is_mentioned, len(life.heard)) == (read, last[2] and is_read, 1)
    assert not is_read or (message.sender_id, message.message_id) == (last[0], message_id)
    assert last[0] != TOM or message.provenance is Provenance.PERSON


async def test_a_mention_that_is_read_again_takes_nothing_along(mochat, tmp_path):
    async with live(mochat, tmp_path, reply_delay_ms=300, **WAITS) as life:
        mention_id, _, _ = await life.asked("first", chat=GENERAL, mention=True)
        await mochat.says("later", chat=GENERAL)
        await mochat.again(mention_id)
        message = await life.hears("later")

    assert message.content == "later"


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
