"""What only Slack has: two tokens, mentions that come twice, threads, envelopes, lines that are about to be closed."""

import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.request import SocketModeRequest
from slack_sdk.socket_mode.response import SocketModeResponse
from slack_sdk.web.async_client import AsyncWebClient

from nanobot.bus.events import Address, Button, DeliveryFailedError, OutboundKind
from nanobot.bus.queue import MessageBus
from nanobot.channels.errors import ChannelSetupError
from nanobot.channels.status import ChannelState
from nanobot.messages.types import Provenance
from nanobot.testing.live_channel import live, turn_of
from tests.fakes.slack import APP_TOKEN, BOT, BOT_TOKEN, PERSON_TOKEN, SCOPES, ZOE, SlackPlatform
from tests.support.eventually import eventually

HALL, TRIO = "C0HALL", "G0TRIO"


# the tokens


@pytest.mark.parametrize(
    ("section", "changes", "told"),
    [
        ({"bot_token": ""}, {}, "channels.slack.botToken is not set. Run `nanobot channels login slack`."),
        ({"app_token": ""}, {}, "channels.slack.appToken is not set. Run `nanobot channels login slack`."),
        ({"bot_token": APP_TOKEN, "app_token": BOT_TOKEN}, {}, "channels.slack.botToken is not an xoxb- token"),
        ({"app_token": BOT_TOKEN}, {}, "channels.slack.appToken is not an xapp- token"),
        ({"bot_token": "xoxb-1-bad"}, {}, "does not take channels.slack.botToken (invalid_auth)"),
        ({"app_token": "xapp-1-bad"}, {}, "does not take channels.slack.appToken (invalid_auth)"),
        ({"app_token": PERSON_TOKEN}, {}, "channels.slack.appToken is the wrong kind of token. It must be xapp-"),
        ({"bot_token": PERSON_TOKEN}, {}, "set channels.slack.userTokenReadOnly to false"),
        ({}, {"scopes": {*SCOPES} - {"chat:write"}}, "channels.slack.botToken lacks the scope chat:write"),
        ({}, {"app_scopes": set()}, "channels.slack.appToken lacks the scope connections:write"),
        ({}, {"socket_mode": False}, "that Socket Mode is on"),
    ],
)
async def test_what_its_owner_has_to_mend_is_named_with_what_to_do(slack, tmp_path, section, changes, told):
    vars(slack.workspace).update(changes)
    async with live(slack, tmp_path, **section) as life:
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)

        assert told in life.channel.status.last_error
        assert "is not set" in told or "api.slack.com/apps" in life.channel.status.last_error


async def test_a_scope_that_only_something_needs_is_a_line_in_the_log(slack, tmp_path, caplog):
    slack.workspace.scopes -= {"files:read", "reactions:write", "users:read"}
    async with live(slack, tmp_path) as life:
        await slack.says(f"ask <@{ZOE}>")
        message = await life.hears("ask")

    told = [one.message for one in caplog.records if one.levelno == logging.WARNING]
    assert message.content == f"ask @{ZOE}"
    assert "files:read (files that people send cannot be fetched)" in told[0]
    assert "reactions:write" in told[0]
    assert "users:read (people who are named in a message are ids to the agent)" in caplog.text


@pytest.mark.parametrize("is_told", [False, True])
async def test_an_app_that_was_taken_out_turns_red_and_what_it_has_to_send_waits(slack, tmp_path, is_told):
    async with live(slack, tmp_path, silent=True) as life:
        await slack.says("hello")
        message = await life.hears("hello")
        slack.workspace.good_tokens.discard(BOT_TOKEN)
        if is_told:
            await slack.workspace.tell({"type": "app_uninstalled"})
        receipt = life.post(message, "the reply", **turn_of(message))
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)

        assert "does not take channels.slack.botToken" in life.channel.status.last_error
    assert not receipt.settled
    assert life.dead == []


@pytest.mark.parametrize("method", ["auth.test", "apps.connections.open"])
async def test_a_login_that_slack_wants_later_is_tried_again(slack, tmp_path, method):
    slack.workspace.limited[method] = 1
    async with live(slack, tmp_path) as life:
        await life.asked("hello")

    assert slack.workspace.calls.count(method) == 2


async def test_a_person_may_lend_the_bot_their_token_and_does_not_talk_to_themselves(slack, tmp_path):
    slack.workspace.add(slack.workspace.rooms[HALL], "U0X", "x")
    async with live(slack, tmp_path, bot_token=PERSON_TOKEN, user_token_read_only=False, allow_from=["*"]) as life:
        await slack.says("from Anna herself", chat="D0ZOE")
        await slack.says("from Zoe", sender=ZOE, chat="D0ZOE")
        await life.hears("from Zoe")

    assert [one.sender_id for one in life.heard] == [ZOE]


async def test_login_says_whose_tokens_they_are(slack, capsys):
    channel = slack.channel(MessageBus())

    assert await channel.login()

    assert "Your bot is @nanobot" in capsys.readouterr().out
    with pytest.raises(ChannelSetupError, match="appToken"):
        await slack.channel(MessageBus(), app_token="xapp-bad").login()


async def test_people_who_are_named_are_names_and_asked_for_once_and_hold_no_message_up(slack, tmp_path):
    async with live(slack, tmp_path) as life:
        slack.workspace.slow_people_s = 60.0
        await slack.says(f"thank <@{ZOE}>")
        slow = await life.hears("thank")
        slack.workspace.slow_people_s = 0.0
        slack.workspace.calls.clear()
        await slack.says(f"ask <@{ZOE}>, <@{ZOE}> or <@U0NOBODY>")
        first = await life.hears("or")
        await slack.says(f"<@{ZOE}> again, not <@U9|Ann>")
        second = await life.hears("again")

    assert slow.content == f"thank @{ZOE}"
    assert first.content == f"ask @Zoe Z. ({ZOE}), @Zoe Z. ({ZOE}) or @U0NOBODY"
    assert second.content == f"@Zoe Z. ({ZOE}) again, not @Ann"
    assert slack.workspace.calls.count("users.info") == 2


def test_the_manifest_of_the_guide_asks_for_what_is_used_and_no_more():
    page = (Path(__file__).parents[2] / "docs" / "guides" / "slack.md").read_text(encoding="utf-8")
    manifest = yaml.safe_load(page.partition("```text\n")[2].partition("```")[0])

    assert set(manifest["oauth_config"]["scopes"]["bot"]) == SCOPES
    assert {"app_mention", "message.im"} < set(manifest["settings"]["event_subscriptions"]["bot_events"])
    assert manifest["settings"]["socket_mode_enabled"] is True


# what is heard


async def test_a_mention_that_comes_twice_is_heard_once_with_its_file_and_both_are_acknowledged(slack, tmp_path):
    (tmp_path / "notes.txt").write_text("buy milk", encoding="utf-8")
    async with live(slack, tmp_path) as life:
        message_id = await slack.says("hello", chat=HALL, mention=True, file=tmp_path / "notes.txt")
        message = await life.hears("hello")
        await eventually(lambda: slack.acknowledged(message_id))
        await life.asked("after")

    assert len(life.heard) == 2
    assert [Path(one).read_text(encoding="utf-8") for one in message.media] == ["buy milk"]
    assert len([one for one in slack.workspace.envelopes if one.ts == message_id and one.acknowledged]) == 2


async def test_what_no_person_says_is_acknowledged_and_not_heard_and_words_in_any_form_are(slack, tmp_path):
    told = {"type": "message", "channel_type": "im", "channel": slack.private, "user": slack.person, "text": "psst"}
    events: list[dict[str, Any]] = [
        {"subtype": "message_changed", "message": {"text": "psst"}},
        {"subtype": "message_deleted", "deleted_ts": "1.2"},
        {"subtype": "channel_join"},
        {"subtype": "bot_message", "bot_id": "B0OTHER"},
        {"bot_id": "B0OTHER"},
        {"user": BOT},
        {"hidden": True},
        {"type": "reaction_added"},
        {"user": None},
    ]
    async with live(slack, tmp_path) as life:
        for number, event in enumerate(events):
            await slack.workspace.tell(told | {"ts": f"1770000000.00010{number}"} | event)
        for number, subtype in enumerate(forms := ["thread_broadcast", "me_message", "file_share"]):
            await slack.workspace.tell(told | {"subtype": subtype, "text": subtype, "ts": f"1770000000.00020{number}"})
        mention = {"type": "app_mention", "user": slack.person, "channel": HALL, "ts": "1770000000.000300"}
        await slack.workspace.tell(mention | {"text": f"<@{BOT}> only as a mention"})
        message = await life.hears("only as a mention")

        assert [one.content for one in life.heard] == [*forms, "only as a mention"]
        assert message.thread_id == "1770000000.000300"
        await eventually(lambda: all(slack.acknowledged(f"1770000000.00010{n}") for n in range(len(events))))


@pytest.mark.parametrize(
    ("section", "chat", "mention", "is_heard"),
    [
        ({"group_policy": "allowlist", "group_allow_from": [HALL]}, HALL, False, True),
        ({}, TRIO, False, False),
        ({}, TRIO, True, True),
        ({"dm": {"enabled": False}}, TRIO, True, False),
        ({"dm": {"policy": "allowlist", "allow_from": ["U0ANNA"]}}, "D0ANNA", False, True),
    ],
)
async def test_who_is_heard_where(slack, tmp_path, section, chat, mention, is_heard):
    async with live(slack, tmp_path, **section) as life:
        message_id = await slack.says("hello", chat=chat, mention=mention)
        await eventually(lambda: slack.acknowledged(message_id))

    assert [one.content for one in life.heard] == ["hello"] * is_heard


async def test_an_answer_begins_a_thread_below_the_message_or_not_as_the_config_says(slack, tmp_path):
    async with live(slack, tmp_path) as life:
        message_id, message, answer = await life.asked("in a thread", chat=HALL, mention=True)
        _, _, in_private = await life.asked("no thread")
        (posted,) = await life.posted(Address("slack", HALL), "the report")
        await slack.says("thanks", chat=HALL, thread=posted, parent_user_id=BOT)
        below = await life.hears("thanks")  # an answer to the bot needs no mention
    async with live(slack, tmp_path, reply_in_thread=False) as life:
        _, flat, beside = await life.asked("beside", chat=HALL, mention=True)

    assert below.thread_id == posted
    assert answer.thread_id == message_id
    assert message.session_key == f"slack:{HALL}:{message_id}"
    assert in_private.thread_id is None
    assert beside.thread_id is None
    assert flat.session_key == f"slack:{HALL}"


async def test_a_command_of_the_app_is_a_message(slack, tmp_path):
    usual = {"user_id": slack.person, "channel_id": slack.private, "channel_name": "directmessage"}
    async with live(slack, tmp_path) as life:
        one = await slack.workspace.send(
            "slash_commands", usual | {"command": "/nanobot", "text": "what is new", "trigger_id": "1.1.a"}
        )
        await slack.workspace.send("slash_commands", usual | {"command": "/stop", "text": "", "trigger_id": "1.1.b"})
        await life.hears("/stop")
        await eventually(lambda: one.acknowledged)

    assert [message.content for message in life.heard] == ["what is new", "/stop"]


async def test_a_button_in_a_thread_is_pressed_in_that_thread(slack, tmp_path):
    text = "\n".join(f"line {number}: **what** is long" for number in range(150))
    async with live(slack, tmp_path, silent=True) as life:
        await slack.says("hello", chat=HALL, mention=True)
        message = await life.hears("hello")
        (shown_id,) = await life.posted(message, text, buttons=(Button("Go " * 40, "go"), Button("Wait", "x" * 3000)))
        await slack.press_button(shown_id, "Wait")
        pressed = await life.hears("Wait")

    assert pressed.session_key == message.session_key
    assert pressed.content == "I choose: Wait"  # a value that is too long gives way to the label
    assert [one.text.count("line") for one in slack.shown(HALL)] == [150]


WRITTEN = {
    f"<@{BOT}> hello": "hello",
    f"  <@{BOT}|nanobot>: <@{BOT}>, hello": "hello",
    f"ask <@{BOT}> or <@U0ZOE|zoe> or <@U9>": "ask @nanobot or @zoe or @U9",
    "in <#C1|general> and <#C2>": "in #general and #C2",
    "<!here> <!subteam^S1|@team> <!date^1^{date}|1 May>": "@here @team 1 May",
    "see <https://a.example/x|the page> and <https://b.example>": "see the page (https://a.example/x) and https://b.example",
    "<http://a.example|a.example> <mailto:a@b.example|a@b.example>": "http://a.example a@b.example",
    "1 &lt; 2 &amp;&amp; 3 &gt; 2, &amp;lt;": "1 < 2 && 3 > 2, &lt;",
    "```\nif a &lt; b:\n    <https://c.example>\n```": "```\nif a < b:\n    https://c.example\n```",
}


async def test_what_is_written_is_read_as_people_see_it_and_what_is_forwarded_is_somebody_elses(slack, tmp_path):
    share = {"is_share": True, "author_name": "Zoe", "text": "meet at <https://a.example|noon>"}
    async with live(slack, tmp_path, silent=True) as life:
        life.people.admit("slack", slack.person, owner=True)
        for text in WRITTEN:
            await slack.says(text)
        told = {"type": "message", "channel_type": "im", "channel": slack.private, "user": slack.person}
        await slack.workspace.tell(told | {"text": "look", "ts": "1770000000.000100", "attachments": [share]})
        await life.hears("look")

    *own, forwarded = life.heard
    assert [one.content for one in own] == [*WRITTEN.values()]
    assert forwarded.content == "look\n[forwarded from Zoe]\nmeet at noon (https://a.example)"
    assert [one.provenance for one in life.heard] == [Provenance.OWNER] * len(own) + [Provenance.PERSON]


WORDS = ["user", "channel", "ts", "text", "files", "attachments", "actions", "container", "id", "type", "subtype"]
USUAL = {
    "type": "message", "user": "U1", "channel": "C1", "ts": "1.5", "command": "/x", "user_id": "U1",
    "channel_id": "C1", "trigger_id": "1.5",
}  # fmt: skip


def odd(dice: random.Random, depth: int = 0) -> Any:
    """Any JSON that an envelope may hold where something else is expected."""
    kind = dice.randrange(8 - 2 * (depth > 2))
    if kind == 7:
        return {dice.choice(WORDS): odd(dice, depth + 1) for _ in range(3)}
    if kind == 6:
        return [odd(dice, depth + 1) for _ in range(2)]
    return dice.choice([None, True, -1.5, 1e300, "", "<@|&", "\ud800", "message", "im", "1.5", "button"])


async def test_whatever_an_envelope_holds_ends_no_line(slack, tmp_path):
    dice = random.Random(1)
    async with live(slack, tmp_path) as life:
        await life.asked("hello")
        (line,) = slack.workspace.lines
        for _ in range(300):
            payload = {**USUAL, "type": dice.choice(("message", "block_actions"))}
            payload |= {dice.choice(WORDS): odd(dice) for _ in range(2)}
            kind = dice.choice(("events_api", "slash_commands", "interactive"))
            await slack.workspace.send(kind, {"event": payload} if kind == "events_api" else payload)
        await line.socket.send_str('{"envelope_id": "1", "payload": ' + "[" * 200_000 + "]" * 200_000 + "}")
        await life.asked("still here?")

    assert slack.workspace.opened == 1


# files


@asynccontextmanager
async def another_host() -> AsyncIterator[tuple[str, list[str]]]:
    """A host that is not Slack's, and the tokens it was shown."""
    seen: list[str] = []

    async def serve(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization", ""))
        return web.Response(body=b"stolen")

    app = web.Application()
    app.add_routes([web.get("/{any:.*}", serve)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", seen
    finally:
        await runner.cleanup()


async def said_with_file(slack: SlackPlatform, file: dict[str, Any]) -> None:
    post = slack.workspace.add(slack.workspace.rooms[slack.private], slack.person, "look")
    post.files = [file]
    await slack.workspace.tell_of(slack.workspace.rooms[slack.private], post, mention=False)


@pytest.mark.parametrize("trick", ["", "files.slack.com@", "files.slack.com:443@", "x\\@files.slack.com@"])
async def test_the_token_is_shown_to_slack_alone(slack, tmp_path, trick):
    async with another_host() as (address, seen), live(slack, tmp_path) as life:
        file = slack.workspace.put_file("a.txt", b"x")
        url = address.replace("//", f"//{trick}") + "/a.txt"
        await said_with_file(slack, file | {"url_private": url, "url_private_download": url})
        message = await life.hears("look")

    assert message.content == "look\n[file: download failed]"
    assert seen == []


async def test_a_download_that_is_sent_elsewhere_is_given_up(slack, tmp_path):
    slack.workspace.scopes.remove("files:read")
    async with live(slack, tmp_path) as life:
        await said_with_file(slack, slack.workspace.put_file("a.txt", b"x"))
        message = await life.hears("look")

    assert message.content == "look\n[file: download failed]"
    assert slack.workspace.tokens_seen == [f"Bearer {BOT_TOKEN}"]


async def test_a_file_of_another_workspace_is_asked_for_first(slack, tmp_path):
    async with live(slack, tmp_path) as life:
        file = slack.workspace.put_file("a.txt", b"from afar")
        await said_with_file(slack, {"id": file["id"], "file_access": "check_file_info", "mode": "hosted"})
        message = await life.hears("look")

    assert [Path(one).read_bytes() for one in message.media] == [b"from afar"]


@pytest.mark.parametrize(
    ("mode", "told"), [("external", "plan https://docs.example/plan"), ("tombstone", "plan is not to be had")]
)
async def test_a_file_that_does_not_lie_there_is_told_of(slack, tmp_path, mode, told):
    file = {"id": "F1", "mode": mode, "name": "plan", "url_private": "https://docs.example/plan"}
    async with live(slack, tmp_path) as life:
        await said_with_file(slack, file)

        assert (await life.hears("look")).content == f"look\n[file: {told}]"


async def test_a_file_goes_out_byte_for_byte_into_its_thread_and_without_the_token(slack, tmp_path):
    data = bytes(range(256)) * 4000
    (tmp_path / "data.bin").write_bytes(data)
    async with live(slack, tmp_path, silent=True) as life:
        message_id = await slack.says("hello", chat=HALL, mention=True)
        await life.posted(await life.hears("hello"), "", media=[str(tmp_path / "data.bin")])

    (shown,) = slack.shown(HALL)
    assert [kept for _, kept in slack.workspace.stored.values()] == [data]
    assert (shown.files, shown.thread_id) == (["data.bin"], message_id)
    assert slack.workspace.tokens_seen == []


# what goes out


async def test_markdown_goes_out_as_slack_writes_it(slack, tmp_path):
    text = "# News\n\n**bold** and [a page](https://a.example) for <!channel>\n\n| a | b |\n|---|---|\n| 1 | 2 |"
    async with live(slack, tmp_path) as life:
        await life.posted(Address("slack", slack.private), text)

    (post,) = [one for one in slack.workspace.rooms[slack.private].posts.values() if one.user == BOT]
    assert "*bold* and <https://a.example|a page> for &lt;!channel&gt;" in post.text
    assert "**" not in post.text
    assert "```" in post.text  # a table keeps its columns
    assert not post.has_preview  # fetching a URL could leak data that a prompt injection put into it


@pytest.mark.parametrize(
    ("chat", "told"),
    [
        ("C0NONE", "no such chat"),
        ("C0AWAY", "/invite @nanobot"),
        ("C0OLD", "archived"),
        ("U0NONE", "member ID"),
        (ZOE, "lacks the scope files:write"),
    ],
)
async def test_where_it_cannot_write_it_says_what_to_do(slack, tmp_path, chat, told):
    (tmp_path / "a.txt").write_text("a", encoding="utf-8")
    slack.workspace.scopes.remove("files:write")
    async with live(slack, tmp_path) as life:
        with pytest.raises(DeliveryFailedError, match=told):
            await life.posted(Address("slack", chat), "hello", media=[str(tmp_path / "a.txt")])

    assert [one.text for one in slack.shown("D0ZOE")] == ["hello"] * (chat == ZOE)  # a person, by their id


async def test_a_sign_that_is_there_already_is_no_mistake_and_may_be_written_with_colons(slack, tmp_path):
    async with live(slack, tmp_path, silent=True, react_emoji=":eyes:") as life:
        message_id = await slack.says("hello")
        message = await life.hears("hello")
        for _ in range(2):
            life.post(message, "Noted.", kind=OutboundKind.RECEIPT, reply_to=message.message_id)
        await eventually(lambda: slack.workspace.calls.count("reactions.add") == 2)

    assert slack.reactions_on(message_id) == ["eyes"]
    assert slack.shown() == []


# the lines


@pytest.mark.parametrize("reason", ["warning", "refresh_requested", "too_many_websockets"])
async def test_a_line_that_slack_is_about_to_close_is_replaced_and_the_channel_stays_up(slack, tmp_path, reason):
    async with live(slack, tmp_path) as life:
        await life.asked("before")
        since = life.channel.status.since
        await slack.workspace.end_lines(reason)
        await eventually(lambda: slack.workspace.opened == 2)
        await life.asked("after")

        assert life.channel.status.since == since
    assert slack.workspace.calls.count("auth.test") == 1


async def test_what_was_said_while_the_line_was_cut_is_asked_for_when_it_is_back(slack, tmp_path):
    async with live(slack, tmp_path) as life:
        await life.asked("before")
        await slack.gone(gone=True)
        await slack.says("meanwhile")
        given_up(slack)
        await slack.gone(gone=False)
        await life.hears("meanwhile")

    assert slack.workspace.calls.count("auth.test") == 1


async def test_no_log_and_no_error_says_a_token_or_the_address_of_the_socket(slack, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    async with live(slack, tmp_path) as life:
        life.adjust(stall_s=slack.stall_s, connect_s=0.5)
        await life.asked("my secret words")
        slack.workspace.tickets_are_good = False
        await slack.drop()
        await eventually(lambda: "HTTPS_PROXY" in life.channel.status.last_error)
        error = life.channel.status.last_error
        slack.workspace.tickets_are_good = True
        await life.asked("after")

    told = caplog.text + error
    assert all(secret not in told for secret in ("ticket=", BOT_TOKEN, APP_TOKEN, "my secret words"))


# what was said meanwhile


def given_up(slack: SlackPlatform) -> None:
    """Slack has sent it again after a minute and after five, and does no more."""
    for envelope in slack.workspace.envelopes:
        envelope.acknowledged = True


async def test_what_slack_has_given_up_to_send_is_asked_for_in_chats_and_threads_and_comes_first(slack, tmp_path):
    async with live(slack, tmp_path) as life:
        root, _, _ = await life.asked("root", chat=HALL, mention=True)
        await life.asked("before")
    for where in ({}, {"chat": HALL, "mention": True}, {"chat": HALL, "mention": True, "thread": root}):
        await slack.says(f"missed in {where.get('thread') or where.get('chat')}", **where)
    await slack.says("not for the bot", chat=HALL)
    given_up(slack)
    await slack.says("just now")
    async with live(slack, tmp_path) as life:
        await life.hears(f"missed in {root}")
        await life.hears("just now")

    heard = [one.content for one in life.heard]
    assert sorted(heard) == sorted(["missed in None", f"missed in {HALL}", f"missed in {root}", "just now"])
    assert heard.index("missed in None") < heard.index("just now")
    assert {one.session_key for one in life.heard if root in one.content} == {f"slack:{HALL}:{root}"}


async def test_a_history_that_cannot_be_had_stops_nothing_and_one_that_has_to_wait_is_waited_for(
    slack, tmp_path, caplog
):
    slack.workspace.add(slack.workspace.rooms[slack.private], slack.person, "long ago")
    async with live(slack, tmp_path) as life:
        await life.asked("before")
        assert [one.content for one in life.heard] == ["before"]
    slack.workspace.broken["conversations.history"] = 500
    async with live(slack, tmp_path) as life:
        await life.asked("after")
    assert "missed messages in D0ANNA cannot be fetched (Slack: HTTP 500" in caplog.text
    slack.workspace.broken.clear()
    slack.workspace.calls.clear()
    await slack.says("missed")
    given_up(slack)
    slack.workspace.limited["conversations.history"] = 2
    async with live(slack, tmp_path) as life:
        await life.hears("missed")

    assert slack.workspace.calls.count("conversations.history") == 3


# the workspace itself


async def test_the_vendors_own_client_understands_the_workspace(slack):
    """So that a mistake of the stand-in is not taken for one of Slack's ways."""
    heard: list[str] = []
    client = SocketModeClient(APP_TOKEN, web_client=AsyncWebClient(BOT_TOKEN, base_url=f"{slack.workspace.url}/api/"))

    async def listen(own: Any, request: SocketModeRequest) -> None:
        heard.append(request.payload["event"]["text"])
        await own.send_socket_mode_response(SocketModeResponse(envelope_id=request.envelope_id))

    client.socket_mode_request_listeners.append(listen)
    await client.connect()
    message_id = await slack.says("hello")
    await eventually(lambda: slack.acknowledged(message_id))
    posted = await client.web_client.chat_postMessage(channel=slack.private, text="hi")
    await client.close()

    assert heard[0] == "hello"
    assert [one.id for one in slack.shown()] == [posted["ts"]]
