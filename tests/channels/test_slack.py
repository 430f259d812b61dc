"""What only Slack has: two tokens, mentions that come twice, threads, envelopes, lines that are about to be closed."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.request import SocketModeRequest
from slack_sdk.socket_mode.response import SocketModeResponse
from slack_sdk.web.async_client import AsyncWebClient

from nanobot.bus.events import Address, Button, DeliveryFailedError, OutboundKind
from nanobot.bus.queue import MessageBus
from nanobot.channels.errors import ChannelSetupError
from nanobot.channels.slack.incoming import BotIdentity, read_command, read_event, read_press, to_plain_text
from nanobot.channels.status import ChannelState
from nanobot.testing.live_channel import live, turn_of
from tests.fakes.slack import APP_TOKEN, BOT, BOT_TOKEN, PERSON_TOKEN, SCOPES, ZOE, SlackPlatform
from tests.support.eventually import eventually

HALL, TRIO = "C0HALL", "G0TRIO"


# the tokens


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"bot_token": APP_TOKEN, "app_token": BOT_TOKEN}, "channels.slack.botToken is not an xoxb- token"),
        ({"app_token": BOT_TOKEN}, "channels.slack.appToken is not an xapp- token"),
        ({"bot_token": "xoxb-1-bad"}, "does not take channels.slack.botToken (invalid_auth)"),
        ({"app_token": "xapp-1-bad"}, "does not take channels.slack.appToken (invalid_auth)"),
        ({"app_token": PERSON_TOKEN}, "channels.slack.appToken is the wrong kind of token. It must be xapp-"),
        ({"bot_token": PERSON_TOKEN}, "set channels.slack.userTokenReadOnly to false"),
    ],
)
async def test_a_token_that_is_no_good_is_named_with_what_to_do(slack, tmp_path, section, told):
    async with live(slack, tmp_path, **section) as life:
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)

        assert told in life.channel.status.last_error
        assert "api.slack.com/apps" in life.channel.status.last_error


@pytest.mark.parametrize(("section", "key"), [({"bot_token": ""}, "botToken"), ({"app_token": ""}, "appToken")])
async def test_a_missing_token_is_named_with_the_command_that_asks_for_it(slack, tmp_path, section, key):
    async with live(slack, tmp_path, **section) as life:
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)

        assert f"channels.slack.{key} is not set. Run `nanobot channels login slack`." in life.channel.status.last_error


async def test_a_scope_without_which_nothing_works_is_named(slack, tmp_path):
    slack.workspace.scopes.remove("chat:write")
    async with live(slack, tmp_path) as life:
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)
        of_bot = life.channel.status.last_error
    slack.workspace.scopes.add("chat:write")
    slack.workspace.app_scopes.clear()
    async with live(slack, tmp_path) as life:
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)
        of_app = life.channel.status.last_error

    assert "channels.slack.botToken lacks the scope chat:write" in of_bot
    assert "channels.slack.appToken lacks the scope connections:write" in of_app


async def test_a_scope_that_only_something_needs_is_a_line_in_the_log(slack, tmp_path, caplog):
    slack.workspace.scopes -= {"files:read", "reactions:write"}
    async with live(slack, tmp_path) as life:
        await life.asked("hello")

    (line,) = [one.message for one in caplog.records if one.levelno == logging.WARNING]
    assert "files:read (files that people send cannot be fetched)" in line
    assert "reactions:write" in line


@pytest.mark.parametrize("method", ["auth.test", "apps.connections.open"])
async def test_a_login_that_slack_wants_later_is_tried_again(slack, tmp_path, method):
    slack.workspace.limited[method] = 1
    async with live(slack, tmp_path) as life:
        await life.asked("hello")

    assert slack.workspace.calls.count(method) == 2


async def test_socket_mode_that_is_off_is_said(slack, tmp_path):
    slack.workspace.socket_mode = False
    async with live(slack, tmp_path) as life:
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)

        assert "that Socket Mode is on" in life.channel.status.last_error


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


async def test_people_who_are_named_are_names_and_asked_for_once(slack, tmp_path):
    async with live(slack, tmp_path) as life:
        await slack.says(f"ask <@{ZOE}>, <@{ZOE}> or <@U0NOBODY>")
        first = await life.hears("or")
        await slack.says(f"<@{ZOE}> again, not <@U9|Ann>")
        second = await life.hears("again")

    assert first.content == f"ask @Zoe Z. ({ZOE}), @Zoe Z. ({ZOE}) or @U0NOBODY"
    assert second.content == f"@Zoe Z. ({ZOE}) again, not @Ann"
    assert slack.workspace.calls.count("users.info") == 2


async def test_without_the_scope_for_names_an_id_stays_and_the_log_says_what_is_missing(slack, tmp_path, caplog):
    slack.workspace.scopes.remove("users:read")
    async with live(slack, tmp_path) as life:
        await slack.says(f"ask <@{ZOE}>")
        message = await life.hears("ask")

    assert message.content == f"ask @{ZOE}"
    assert "users:read (people who are named in a message are ids to the agent)" in caplog.text


async def test_a_name_that_slack_does_not_say_in_time_holds_no_message_up(slack, tmp_path):
    slack.workspace.slow_people_s = 60.0
    async with live(slack, tmp_path) as life:
        await slack.says(f"ask <@{ZOE}>")
        first = await life.hears("ask")
        slack.workspace.slow_people_s = 0.0
        await slack.says(f"thank <@{ZOE}>")
        second = await life.hears("thank")

    assert (first.content, second.content) == (f"ask @{ZOE}", f"thank @Zoe Z. ({ZOE})")


async def test_nobody_is_looked_up_in_a_message_that_is_not_for_the_bot(slack, tmp_path):
    async with live(slack, tmp_path) as life:
        await slack.says(f"lunch, <@{ZOE}>?", chat=slack.group)
        await life.asked("after")

    assert "users.info" not in slack.workspace.calls


def test_the_manifest_of_the_guide_asks_for_what_is_used_and_no_more():
    page = (Path(__file__).parents[2] / "docs" / "guides" / "slack.md").read_text(encoding="utf-8")
    manifest = yaml.safe_load(page.partition("```text\n")[2].partition("```")[0])

    assert set(manifest["oauth_config"]["scopes"]["bot"]) == SCOPES
    assert {"app_mention", "message.im"} < set(manifest["settings"]["event_subscriptions"]["bot_events"])
    assert manifest["settings"]["socket_mode_enabled"] is True


# what is heard


async def test_a_mention_that_comes_twice_is_heard_once_and_both_are_acknowledged(slack, tmp_path):
    async with live(slack, tmp_path) as life:
        message_id, _, _ = await life.asked("hello", chat=HALL, mention=True)
        await eventually(lambda: slack.acknowledged(message_id))
        await life.asked("after")

    assert [one.content for one in life.heard] == ["hello", "after"]
    assert len([one for one in slack.workspace.envelopes if one.ts == message_id and one.acknowledged]) == 2


async def test_a_mention_that_comes_as_nothing_else_is_heard(slack, tmp_path):
    told = {"type": "app_mention", "user": slack.person, "channel": HALL, "ts": "1770000000.000100"}
    async with live(slack, tmp_path) as life:
        await slack.workspace.tell(told | {"text": f"<@{BOT}> only this"})
        message = await life.hears("only this")

    assert message.thread_id == "1770000000.000100"


async def test_a_file_beside_a_mention_is_not_lost_though_the_mention_does_not_name_it(slack, tmp_path):
    (tmp_path / "notes.txt").write_text("buy milk", encoding="utf-8")
    async with live(slack, tmp_path) as life:
        await slack.says("read this", chat=HALL, mention=True, file=tmp_path / "notes.txt")
        message = await life.hears("read this")
        await life.asked("after")

    assert [Path(one).read_text(encoding="utf-8") for one in message.media] == ["buy milk"]
    assert len(life.heard) == 2


async def test_what_no_person_says_is_acknowledged_and_not_heard(slack, tmp_path):
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
        await life.asked("after")

        assert [one.content for one in life.heard] == ["after"]
        await eventually(lambda: all(slack.acknowledged(f"1770000000.00010{n}") for n in range(len(events))))


async def test_words_of_a_person_in_another_form_are_heard(slack, tmp_path):
    forms = ["thread_broadcast", "me_message", "file_share"]
    async with live(slack, tmp_path) as life:
        for number, subtype in enumerate(forms):
            told = {"type": "message", "subtype": subtype, "channel_type": "im", "channel": slack.private}
            told |= {"user": slack.person, "text": subtype, "ts": f"1770000000.00010{number}"}
            await slack.workspace.tell(told)
            await life.hears(subtype)

    assert [one.content for one in life.heard] == forms


@pytest.mark.parametrize(
    ("section", "chat", "mention", "is_heard"),
    [
        ({}, HALL, False, False),
        ({"group_policy": "open"}, HALL, False, True),
        ({"group_policy": "allowlist"}, HALL, True, False),
        ({"group_policy": "allowlist", "group_allow_from": [HALL]}, HALL, False, True),
        ({"group_policy": "open", "group_allow_from": ["C0OTHER"]}, HALL, True, False),
        ({}, TRIO, False, False),
        ({}, TRIO, True, True),
        ({"dm": {"enabled": False}}, TRIO, True, False),
        ({"dm": {"enabled": False}}, "D0ANNA", False, False),
        ({"dm": {"policy": "allowlist"}}, "D0ANNA", False, False),
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
    async with live(slack, tmp_path, reply_in_thread=False) as life:
        _, flat, beside = await life.asked("beside", chat=HALL, mention=True)

    assert answer.thread_id == message_id
    assert message.session_key == f"slack:{HALL}:{message_id}"
    assert in_private.thread_id is None
    assert beside.thread_id is None
    assert flat.session_key == f"slack:{HALL}"


async def test_an_answer_below_what_the_bot_said_needs_no_mention(slack, tmp_path):
    async with live(slack, tmp_path) as life:
        (posted,) = await life.posted(Address("slack", HALL), "the report")
        await slack.says("thanks", chat=HALL, thread=posted, parent_user_id=BOT)
        message = await life.hears("thanks")

    assert message.thread_id == posted


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


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (f"<@{BOT}> hello", "hello"),
        (f"  <@{BOT}|nanobot>: <@{BOT}>, hello", "hello"),
        (f"ask <@{BOT}> or <@U0ZOE|zoe> or <@U9>", "ask @nanobot or @zoe or @U9"),
        ("in <#C1|general> and <#C2>", "in #general and #C2"),
        ("<!here> <!subteam^S1|@team> <!date^1^{date}|1 May>", "@here @team 1 May"),
        (
            "see <https://a.example/x|the page> and <https://b.example>",
            "see the page (https://a.example/x) and https://b.example",
        ),
        ("<http://a.example|a.example> <mailto:a@b.example|a@b.example>", "http://a.example a@b.example"),
        ("1 &lt; 2 &amp;&amp; 3 &gt; 2, &amp;lt;", "1 < 2 && 3 > 2, &lt;"),
        ("```\nif a &lt; b:\n    <https://c.example>\n```", "```\nif a < b:\n    https://c.example\n```"),
    ],
)
def test_what_is_written_is_read_as_people_see_it(written, read):
    assert to_plain_text(written, BOT, "nanobot") == read


def test_what_was_forwarded_is_told_as_somebody_elses_words():
    share = {
        "is_share": True,
        "author_name": "Zoe",
        "text": "meet at <https://a.example|noon>",
        "files": [{"id": "F1"}],
    }
    event = {"type": "message", "user": "U1", "channel": "D1", "ts": "1.5", "text": "look", "attachments": [share]}

    said = read_event(event, BotIdentity(BOT), reply_in_thread=True)

    assert said is not None
    assert said.text == "look\n[forwarded from Zoe]\nmeet at noon (https://a.example)"
    assert said.quotes_others
    assert [one.id for one in said.attachments] == ["F1"]


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.text("a<@>|&", max_size=5)
    | st.sampled_from(["message", "im", "1.5", "button"]),
    lambda some: (
        st.lists(some, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["user", "channel", "ts", "text", "files", "attachments", "actions", "container", "id", "type"]
            ),
            some,
        )
    ),
    max_leaves=12,
)
_USUAL = {
    "type": "message",
    "user": "U1",
    "channel": "C1",
    "ts": "1.5",
    "command": "/x",
    "user_id": "U1",
    "channel_id": "C1",
}


@given(odd=st.dictionaries(st.sampled_from([*_USUAL, "files", "attachments", "actions", "text", "trigger_id"]), _JSON))
def test_whatever_an_envelope_holds_reading_it_never_raises(odd):
    for kind in ("message", "block_actions"):
        told = {**_USUAL, "type": kind, **odd}
        for said in (read_event(told, BotIdentity(BOT), reply_in_thread=True), read_command(told), read_press(told)):
            assert said is None or all((said.sender_id, said.chat_id, said.message_id))
            assert said is None or said.sent_at is None or said.sent_at.tzinfo is not None


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
    ],
)
async def test_where_it_cannot_write_it_says_what_to_do(slack, tmp_path, chat, told):
    async with live(slack, tmp_path) as life:
        with pytest.raises(DeliveryFailedError, match=told):
            await life.posted(Address("slack", chat), "hello")


async def test_a_person_is_written_to_in_private_by_their_id(slack, tmp_path):
    (tmp_path / "a.txt").write_text("a", encoding="utf-8")
    async with live(slack, tmp_path) as life:
        await life.posted(Address("slack", ZOE), "good morning", media=[str(tmp_path / "a.txt")])

    assert [(one.text, one.files) for one in slack.shown("D0ZOE")] == [("good morning", []), ("", ["a.txt"])]


async def test_a_scope_that_sending_needs_is_named(slack, tmp_path):
    slack.workspace.scopes.remove("files:write")
    (tmp_path / "a.txt").write_text("a", encoding="utf-8")
    async with live(slack, tmp_path) as life:
        with pytest.raises(DeliveryFailedError, match="lacks the scope files:write"):
            await life.posted(Address("slack", slack.private), "", media=[str(tmp_path / "a.txt")])


async def test_what_slack_wants_later_is_not_asked_before(slack, tmp_path):
    async with live(slack, tmp_path) as life:
        slack.refuse(1, status=429, retry_after_s=0.3)
        first = life.post(Address("slack", slack.private), "one")
        await eventually(lambda: "chat.postMessage" in slack.workspace.calls)
        await life.posted(Address("slack", "D0ZOE"), "two")
        await first.wait()

    assert slack.workspace.calls.count("chat.postMessage") == 3


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


async def test_socket_mode_that_is_switched_off_later_turns_it_red(slack, tmp_path):
    async with live(slack, tmp_path) as life:
        life.adjust(stall_s=slack.stall_s)
        await life.asked("before")
        slack.workspace.socket_mode = False
        await slack.workspace.end_lines("link_disabled", close=True)
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)

        assert "that Socket Mode is on" in life.channel.status.last_error


async def test_what_was_said_while_the_line_was_cut_is_asked_for_when_it_is_back(slack, tmp_path):
    async with live(slack, tmp_path) as life:
        await life.asked("before")
        await slack.gone(gone=True)
        await slack.says("meanwhile")
        given_up(slack)
        await slack.gone(gone=False)
        await life.hears("meanwhile")

    assert slack.workspace.calls.count("auth.test") == 1


async def test_a_token_that_sending_finds_revoked_turns_it_red_and_the_message_waits(slack, tmp_path):
    async with live(slack, tmp_path, silent=True) as life:
        await slack.says("hello")
        message = await life.hears("hello")
        slack.workspace.good_tokens.discard(BOT_TOKEN)
        receipt = life.post(message, "the reply", **turn_of(message))
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)

        assert "does not take channels.slack.botToken" in life.channel.status.last_error
    assert not receipt.settled
    assert life.dead == []


async def test_an_app_that_was_taken_out_of_the_workspace_turns_red(slack, tmp_path):
    async with live(slack, tmp_path) as life:
        await life.asked("before")
        slack.workspace.good_tokens.discard(BOT_TOKEN)
        await slack.workspace.tell({"type": "app_uninstalled"})
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)


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


@pytest.mark.parametrize("status", [404, 500])
async def test_a_history_that_cannot_be_had_stops_nothing(slack, tmp_path, status, caplog):
    async with live(slack, tmp_path) as life:
        await life.asked("before")
    slack.workspace.broken["conversations.history"] = status
    async with live(slack, tmp_path) as life:
        await life.asked("after")

    assert f"missed messages in D0ANNA cannot be fetched (Slack: HTTP {status}" in caplog.text


async def test_a_history_that_has_to_wait_is_waited_for(slack, tmp_path):
    async with live(slack, tmp_path) as life:
        await life.asked("before")
    await slack.says("missed")
    given_up(slack)
    slack.workspace.limited["conversations.history"] = 2
    async with live(slack, tmp_path) as life:
        await life.hears("missed")

    assert slack.workspace.calls.count("conversations.history") == 3


async def test_the_first_start_digs_up_nothing(slack, tmp_path):
    slack.workspace.add(slack.workspace.rooms[slack.private], slack.person, "long ago")
    async with live(slack, tmp_path) as life:
        await life.asked("hello")

    assert [one.content for one in life.heard] == ["hello"]
    assert "conversations.history" not in slack.workspace.calls


async def test_a_chat_that_is_there_no_more_is_not_asked_again_and_damaged_marks_stop_nothing(slack, tmp_path, caplog):
    async with live(slack, tmp_path) as life:
        await life.asked("before", chat=TRIO, mention=True)
    del slack.workspace.rooms[TRIO]
    for word in ("one", "two"):
        async with live(slack, tmp_path) as life:
            await life.asked(word)
            await eventually(lambda: "conversations.replies" in slack.workspace.calls)
    (tmp_path / "slack.json").write_text("{", encoding="utf-8")
    async with live(slack, tmp_path) as life:
        await life.asked("after")

    assert slack.workspace.calls.count("conversations.replies") == 1
    assert "slack.json cannot be read" in caplog.text


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


async def test_a_frame_nested_without_end_is_nonsense_and_ends_no_line(slack, tmp_path):
    async with live(slack, tmp_path) as life:
        await life.asked("hello")
        (line,) = slack.workspace.lines
        await line.socket.send_str('{"envelope_id": "1", "payload": ' + "[" * 200_000 + "]" * 200_000 + "}")
        await life.asked("still here?")

    assert slack.workspace.opened == 1
