"""Messages as WeChat gives them, the login of a gateway, and the state of earlier releases."""

import base64
import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.bus.events import Address
from nanobot.bus.queue import MessageBus
from nanobot.channels.errors import ChannelSetupError
from nanobot.channels.status import ChannelState
from nanobot.channels.weixin.channel import read_message
from nanobot.messages.types import Provenance
from nanobot.testing.live_channel import live, until
from tests.fakes.weixin import ANNA, TOKEN, ZOE, text_item


def voice(words=""):
    return {"type": 3, "voice_item": {"text": words, "encode_type": 6, "media": {"encrypt_query_param": "none"}}}


async def test_ids_and_sessions_are_those_of_the_original(weixin, tmp_path):
    async with live(weixin, tmp_path, silent=True) as life:
        life.people.admit("weixin", ANNA, owner=True)
        message_id = await weixin.writes(text_item("one"), voice("two"))
        message = await life.hears("one")

    assert (message.chat_id, message.sender_id, message.session_key) == (ANNA, ANNA, f"weixin:{ANNA}")
    assert (message.content, message.message_id) == ("one\ntwo", message_id)
    assert message.provenance is Provenance.OWNER
    assert not message.in_group


async def test_messages_of_bots_and_of_groups_are_ignored(weixin, tmp_path):
    async with live(weixin, tmp_path, allow_from=["*"]) as life:
        await weixin.writes(text_item("from the bot"), message_type=2)
        await weixin.writes(text_item("from a group"), group_id="g@chatroom")
        await life.asked("hello")

    assert [message.content for message in life.heard] == ["hello"]


async def test_quotes_are_read_whether_they_are_told_or_named_by_an_id(weixin, tmp_path):
    told = {"title": "Zoe", "message_item": text_item("the plan\nis old")}
    async with live(weixin, tmp_path) as life:
        await weixin.writes(text_item("is it?") | {"ref_msg": told})
        await life.hears("is it?")
        first = await weixin.says("tea or coffee")
        answer = await life.shows("tea or coffee")
        await weixin.writes(text_item("mine") | {"ref_msg": {"svr_id": int(first)}})
        await weixin.writes(text_item("yours") | {"ref_msg": {"svr_id": answer.id}})
        await weixin.writes(text_item("whose") | {"ref_msg": {"svr_id": "1"}})
        await life.hears("whose")

    start = "[in reply to a message]\n> "
    assert [one.content for one in life.heard if one.content != "tea or coffee"] == [
        f"{start}Zoe | the plan\n> is old\nis it?",
        f"{start}tea or coffee\nmine",
        f"{start}You said: tea or coffee\nyours",
        f"{start}(a message that nanobot no longer has)\nwhose",
    ]
    assert life.heard[0].provenance is Provenance.PERSON


async def test_a_file_whose_address_is_not_wechats_is_not_asked_for(weixin, tmp_path):
    media = weixin.put_file(b"%PDF-1.7") | {"full_url": "http://169.254.169.254/latest"}
    strange = {key: value for key, value in media.items() if key != "encrypt_query_param"}
    async with live(weixin, tmp_path, silent=True) as life:
        await weixin.writes({"type": 4, "file_item": {"media": media, "file_name": "plan.pdf"}})
        await life.hears("[file: /")
        await weixin.writes(text_item("strange"), {"type": 4, "file_item": {"media": strange}})
        message = await life.hears("strange")

    assert message.content == "strange"


async def test_a_logged_out_bot_says_what_to_do_and_sends_what_waited_after_the_next_login(weixin, tmp_path):
    async with live(weixin, tmp_path, silent=True) as life:
        await weixin.says("hello")
        message = await life.hears("hello")
        weixin.token = "another"
        receipt = life.post(message, "the answer")
        await until(lambda: life.channel.status.state is ChannelState.FAILED)
        waited = not receipt.settled
        told = life.channel.status.last_error
    async with live(weixin, tmp_path, silent=True, token="another") as life:
        await weixin.says("again")
        await life.shows("the answer")

    assert "nanobot channels login weixin --force" in told
    assert waited


async def test_another_login_starts_with_a_cursor_of_its_own(weixin, tmp_path):
    async with live(weixin, tmp_path) as life:
        await life.asked("hello")
    weixin.token = "another"
    async with live(weixin, tmp_path, token="another") as life:
        await life.asked("again")

    cursors = [body["get_updates_buf"] for method, body in weixin.calls if method == "getupdates"]
    assert cursors.count("") == 2


async def test_wechat_is_told_when_the_bot_comes_and_goes(weixin, tmp_path):
    async with live(weixin, tmp_path) as life:
        await life.asked("hello")

    assert weixin.notices == ["notifystart", "notifystop"]
    assert all("SKRouteTag" not in headers for headers in weixin.headers)


async def test_a_route_tag_goes_with_each_request(weixin, tmp_path):
    async with live(weixin, tmp_path, route_tag=7) as life:
        await life.asked("hello")

    assert {headers["SKRouteTag"] for headers in weixin.headers} == {"7"}


@pytest.mark.parametrize("is_configured", [False, True])
async def test_the_login_of_the_original_goes_on_where_it_stopped(weixin, tmp_path, is_configured):
    folder = tmp_path / "old" if is_configured else tmp_path / "data" / "weixin"
    folder.mkdir(parents=True)
    await weixin.says("answered by the original")
    (context,) = weixin.contexts
    saved = {
        "token": TOKEN,
        "get_updates_buf": base64.b64encode(b"1").decode(),
        "context_tokens": {ANNA: context},
        "base_url": weixin.url,
        "typing_tickets": {ANNA: {"ticket": "x"}},
    }
    (folder / "account.json").write_text(before := json.dumps(saved), encoding="utf-8")
    state = tmp_path / "data" / "state" / "channels" / "weixin"
    state.mkdir(parents=True)
    section: dict[str, Any] = {"state_dir": str(folder)} if is_configured else {}
    async with live(weixin, state, token="", **section) as life:
        await life.is_up()
        await life.posted(Address("weixin", ANNA), "I am back")
        await life.asked("hello")

    assert [message.content for message in life.heard] == ["hello"]
    assert (folder / "account.json").read_text(encoding="utf-8") == before


async def test_without_a_login_it_says_which_command_to_run(weixin, tmp_path):
    async with live(weixin, tmp_path, token=" ") as life:
        await until(lambda: life.channel.status.state is ChannelState.FAILED)

        told = "channels.weixin.token is not set. Run `nanobot channels login weixin`."
        assert life.channel.status.last_error == told


async def test_login_tests_the_token(weixin):
    assert await weixin.channel(MessageBus()).login()
    with pytest.raises(ChannelSetupError, match=r"channels\.weixin\.token"):
        await weixin.channel(MessageBus(), token="bad").login()


async def test_nothing_that_opens_a_door_is_in_the_log(weixin, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    async with live(weixin, tmp_path) as life:
        await life.asked("hello")
        await weixin.drop()
        await life.asked("again")
        await weixin.revoke()
        await until(lambda: life.channel.status.state is ChannelState.FAILED)

    of_fakes = ("aiohttp", "asyncio")
    said = "".join(one.getMessage() + str(one.exc_text) for one in caplog.records if one.name not in of_fakes)
    assert TOKEN not in said
    assert not any(token in said for token in weixin.contexts)


KEYS = st.sampled_from(
    [
        "message_id", "from_user_id", "create_time_ms", "item_list", "type", "text_item", "text", "voice_item",
        "image_item", "file_item", "media", "full_url", "encrypt_query_param", "aes_key", "aeskey", "file_name",
        "ref_msg", "message_item", "svr_id", "title", "msg_id", "context_token",
    ]
)  # fmt: skip
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.sampled_from([1, 2, 3, "http://[", "x=="]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=12,
)


@given(message=ODD, more=st.dictionaries(KEYS, ODD, max_size=10))
def test_any_message_is_read_or_ignored(message, more):
    read_message(message, {}, "https://cdn.example")
    incoming = read_message(more | {"from_user_id": ZOE}, {}, "https://cdn.example")

    assert incoming is not None
    assert (incoming.sender_id, incoming.chat_id) == (ZOE, ZOE)
