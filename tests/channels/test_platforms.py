"""What each of the newer platforms says in words of its own: settings that are no good, refusals, odd payloads."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.bus.events import Address, DeliveryFailedError
from nanobot.bus.queue import MessageBus
from nanobot.channels import dingtalk as dingtalk_channel
from nanobot.channels import msteams as teams_channel
from nanobot.channels import qq as qq_channel
from nanobot.channels import wecom as wecom_channel
from nanobot.channels import weixin as weixin_channel
from nanobot.channels.errors import ChannelSetupError
from nanobot.channels.incoming import Payload
from nanobot.channels.matrix import client as matrix_client
from nanobot.channels.status import ChannelState
from nanobot.channels.whatsapp import channel as whatsapp_channel
from nanobot.messages.types import Provenance
from nanobot.testing.live_channel import live, until
from tests.fakes import dingtalk, feishu, matrix, mochat, msteams, qq, wecom, weixin, whatsapp
from tests.fakes.platforms import platform_class
from tests.fakes.served import RefusedError
from tests.support.odd_json import odd_objects


@pytest.fixture
async def platform(request, tmp_path):
    """The platform that a row names."""
    (folder := tmp_path / "platform").mkdir()
    async with platform_class(request.param)(folder).open() as opened:
        yield opened


NO_GOOD: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("dingtalk", {"client_id": ""}, {}, "dingtalk.clientId is not set. Run `nanobot channels login dingtalk`."),
    ("dingtalk", {"client_secret": " "}, {}, "dingtalk.clientSecret is not set"),
    ("dingtalk", {"client_secret": "bad"}, {}, "dingtalk.clientId and clientSecret. Copy both again from open-"),
    ("dingtalk", {}, {"stream_mode": False}, "Robot with Stream mode, and publish a version"),
    ("qq", {"app_id": ""}, {}, "channels.qq.appId is not set. Run `nanobot channels login qq`."),
    ("qq", {"secret": "bad"}, {}, "channels.qq.appId and channels.qq.secret (invalid appid or secret, 100016)"),
    ("qq", {}, {"is_listed": False}, "Add the address to the IP allow list at q.qq.com"),
    ("qq", {}, {"close_code": 4014}, "may not receive private and group"),
    ("qq", {}, {"close_code": 4915}, "banned the bot"),
    ("wecom", {"bot_id": ""}, {}, "channels.wecom.botId is not set. Run `nanobot channels login wecom`."),
    ("wecom", {"secret": "bad"}, {}, "channels.wecom.botId and channels.wecom.secret (invalid bot_id or secret"),
    ("weixin", {"token": " "}, {}, "channels.weixin.token is not set. Run `nanobot channels login weixin`."),
    ("mochat", {"claw_token": ""}, {}, "channels.mochat.clawToken is not set. Run `nanobot channels login mochat`."),
    ("mochat", {"agent_user_id": " "}, {}, "channels.mochat.agentUserId is not set"),
    ("mochat", {"claw_token": "claw_bad"}, {}, "does not take channels.mochat.clawToken (invalid token"),
    ("msteams", {"app_id": ""}, {}, "channels.msteams.appId is not set. Run `nanobot channels login msteams`."),
    ("msteams", {"app_password": "bad"}, {}, "msteams.appPassword and channels.msteams.tenantId (AADSTS7000215: Inva"),
    ("msteams", {"api_base": "http://login.example"}, {}, "channels.msteams.apiBase must be an https address"),
    ("msteams", {"openid_url": "http://keys.example"}, {}, "channels.msteams.openidUrl must be an https address"),
    ("msteams", {"validate_inbound_auth": False, "host": "0.0.0.0"}, {}, "channels.msteams.validateInboundAuth is fa"),
    ("msteams", {"validate_inbound_auth": False, "host": ""}, {}, "channels.msteams.validateInboundAuth is false"),
    ("matrix", {"access_token": ""}, {}, "channels.matrix.password is not set. Run `nanobot channels login matrix`."),
    ("matrix", {"password": matrix.PASSWORD, "user_id": ""}, {}, "channels.matrix.userId is not set"),
    ("matrix", {"password": "bad"}, {}, "channels.matrix.userId and channels.matrix.password (Invalid username"),
    ("matrix", {"access_token": "bad"}, {}, "does not take channels.matrix.accessToken"),
    ("matrix", {"homeserver": "example.org"}, {}, "channels.matrix.homeserver must begin with https://"),
    ("matrix", {"homeserver": "{url}/nothing"}, {}, "is no Matrix homeserver. Set channels.matrix.homeserver"),
    ("feishu", {"app_id": ""}, {}, "channels.feishu.appId is not set. Run `nanobot channels login feishu`."),
    ("feishu", {"app_secret": "bad"}, {}, "channels.feishu.appId and channels.feishu.appSecret (app secret inv"),
    ("feishu", {"app_id": "cli_other"}, {}, "config set channels.feishu.domain lark"),
    ("feishu", {}, {"has_bot": False}, "Add the capability Bot"),
    ("feishu", {}, {"activate_status": 0}, "The app is not released. Create a version"),
    ("feishu", {}, {"endpoint_code": 403}, "must be those of a custom app of your company"),
    ("feishu", {}, {"endpoint_code": 1000040350}, "Stop its other programs"),
    ("whatsapp", {"bridge_token": " "}, {}, "channels.whatsapp.bridgeToken is not set"),
]
"""Platform, settings, what is so there, and what the owner is told."""


@pytest.mark.parametrize(("platform", "section", "there", "told"), NO_GOOD, indirect=["platform"])
async def test_settings_that_are_no_good_are_named_with_what_to_do(platform, tmp_path, section, there, told):
    vars(platform).update(there)
    if "{url}" in section.get("homeserver", ""):
        section = {"homeserver": section["homeserver"].format(url=platform.url)}
    async with live(platform, tmp_path, **section) as life:
        await until(lambda: life.channel.status.state is ChannelState.FAILED)

        assert told in life.channel.status.last_error


@pytest.mark.parametrize(
    ("platform", "said", "bad", "told"),
    [
        ("dingtalk", f"the robot {dingtalk.CLIENT_ID}", {"client_secret": "bad"}, "clientSecret"),
        ("qq", "Your bot is Nano", {"secret": "bad"}, "secret"),
        ("wecom", "Find the robot by its name", {"secret": "bad"}, "secret"),
        ("weixin", "", {"token": "bad"}, r"channels\.weixin\.token"),
        ("mochat", "The agent is in 3 chats", {"claw_token": "claw_bad"}, "clawToken"),
        ("feishu", f"/app/{feishu.APP_ID}\nEvents & Callbacks", {"app_secret": "bad"}, "appSecret"),
    ],
    indirect=["platform"],
)
async def test_login_tries_the_credentials_and_says_what_to_do_next(platform, capsys, said, bad, told):
    assert await platform.channel(MessageBus()).login()

    assert said in capsys.readouterr().out
    with pytest.raises(ChannelSetupError, match=told):
        await platform.channel(MessageBus(), **bad).login()


HIDDEN: dict[str, list[str]] = {
    "dingtalk": [dingtalk.SECRET, "token-1", "ticket"],
    "qq": [qq.SECRET, "token-"],
    "wecom": [wecom.SECRET],
    "weixin": [weixin.TOKEN, "context-"],
    "mochat": [mochat.TOKEN],
    "msteams": [msteams.PASSWORD, "token-"],
    "matrix": [matrix.TOKEN],
    "feishu": [feishu.SECRET, "access_key", "token-"],
    "whatsapp": [whatsapp.TOKEN],
}


@pytest.mark.parametrize("platform", HIDDEN, indirect=True)
async def test_nothing_that_opens_a_door_is_in_the_log(platform, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    async with live(platform, tmp_path) as life:
        await life.asked("hello")
        await platform.drop()
        await life.asked("again")
        await platform.revoke()
        await until(lambda: life.channel.status.state is ChannelState.FAILED)
        said = life.channel.status.last_error

    of_fakes = ("aiohttp", "asyncio", "websockets.server")
    text = said + "".join(one.getMessage() + str(one.exc_text) for one in caplog.records if one.name not in of_fakes)
    assert [secret for secret in HIDDEN[platform.name] if secret in text] == []


@pytest.mark.parametrize(
    ("platform", "call"),
    [
        ("dingtalk", "POST /v1.0/oauth2/accessToken"),
        ("qq", "POST /app/getAppAccessToken"),
        ("feishu", "token"),
        ("msteams", f"token {msteams.TENANT}"),
    ],
    indirect=["platform"],
)
async def test_an_access_token_that_ran_out_is_renewed(platform, tmp_path, call):
    async with live(platform, tmp_path) as life:
        life.adjust(login_s=60.0)
        await life.asked("before")
        platform.expire_tokens()
        await life.asked("after")

    assert platform.calls.count(call) == 2


@pytest.mark.parametrize(
    ("platform", "chat", "code", "told"),
    [
        ("dingtalk", "nobody", 0, "the app's organisation has no such member"),
        (
            "dingtalk",
            dingtalk.ANNA,
            "scope",
            "the permission qyapi_robot_sendmsg. Add it at open-dev.dingtalk.com",
        ),
        ("qq", "0" * 32, 0, "that person has not added the bot"),
        ("qq", qq.ANNA, 40054013, "that person does not want messages from the bot"),
        ("qq", qq.ANNA, 40034006, "it does not allow the text"),
        ("wecom", "nobody", 0, "they have not written to the bot yet"),
        ("feishu", "oc_gone", 0, "the bot is not in that chat"),
        ("feishu", "ou_gone", 0, "availability"),
        ("whatsapp", whatsapp.ANNA, 404, "not on WhatsApp"),
        ("whatsapp", whatsapp.ANNA, 463, "not on WhatsApp"),
        ("whatsapp", whatsapp.ANNA, 479, "not on WhatsApp"),
    ],
    indirect=["platform"],
)
async def test_what_a_platform_never_takes_is_tried_once_and_said_in_words_to_act_on(
    platform, tmp_path, chat, code, told
):
    if code == "scope":
        platform.scopes.clear()
    elif code:
        platform.refusals.extend([RefusedError(code, "not on WhatsApp")] * 2)
    async with live(platform, tmp_path) as life:
        with pytest.raises(DeliveryFailedError, match=re.escape(told)):
            await life.posted(Address(platform.name, chat), "hello")

    assert len(life.dead) == 1
    assert len(platform.refusals) == (1 if isinstance(code, int) and code else 0)


@pytest.mark.parametrize(
    ("platform", "code", "status"),
    [
        ("dingtalk", "new.code", 400),
        ("qq", 49999999, 200),
        ("qq", 49999999, 400),
        ("wecom", 49999, 0),
        ("weixin", weixin.UNKNOWN, 0),
    ],
    indirect=["platform"],
)
async def test_an_error_that_nobody_knows_is_tried_again_and_then_said(platform, tmp_path, code, status):
    platform.refusals.extend(RefusedError(code, "不知道", status) for _ in range(4))
    async with live(platform, tmp_path, silent=True) as life:
        message = await life.receives("hello")
        with pytest.raises(DeliveryFailedError, match=rf"不知道 \({code}\)"):
            await life.posted(message, "lost")
        await life.posted(message, "next")

    assert len(life.dead) == 1
    assert [shown.text for shown in platform.shown()] == ["next"]


@pytest.mark.parametrize(
    ("platform", "frames"),
    [
        (
            "dingtalk",
            [
                '{"type": "CALLBACK", "headers": {"topic": "/v1.0/im/bot/messages/get"}, "data": "{"}',
                '{"type": "EVENT", "headers": {"topic": "*", "messageId": "e"}, "data": "{}"}',
            ],
        ),
        (
            "qq",
            [
                '{"op": 0, "t": "C2C_MESSAGE_CREATE", "d": {"id": 7, "author": "anna"}}',
                '{"op": 0, "t": "GROUP_ADD_ROBOT", "d": {"group_openid": "x"}}',
            ],
        ),
        (
            "wecom",
            [
                '{"cmd": 7}',
                '{"cmd": "aibot_msg_callback", "headers": 1, "body": []}',
                '{"cmd": "aibot_event_callback", "body": {"event": {"eventtype": "feedback_event"}}}',
            ],
        ),
        ("whatsapp", ['{"type": 7}', '{"type": "message", "id": 3, "media": [1]}', '{"type": "sent"}']),
    ],
    indirect=["platform"],
)
async def test_frames_that_are_not_as_documented_do_not_end_the_connection(platform, tmp_path, frames):
    async with live(platform, tmp_path) as life:
        await life.asked("before")
        (line,) = platform.lines
        for text in ("no JSON", "[]", *frames):
            await line.socket.send_str(text)
        await life.asked("after")

        assert platform.lines == [line]


def read_wecom(message):
    wecom_channel.read_press(message, "yes")
    wecom_channel.event_of(message)
    return wecom_channel.read_message(message)


REPLY = '<blockquote itemtype="http://schema.skype.com/Reply"><strong itemid="8:x">Z</strong></blockquote><p>yes'
READERS: dict[str, tuple[Any, dict[str, Any], str, str, list[object]]] = {
    "dingtalk": (
        lambda message: dingtalk_channel.read_message(message, isolate_users=True),
        {"senderStaffId": "anna", "conversationId": "c"},
        "anna",
        "msgId conversationId conversationType senderStaffId senderId senderNick msgtype text content richText "
        "createAt repliedMsg isInAtList recognition downloadCode type fileName",
        ["text", "richText", "audio", "picture", "file", "other"],
    ),
    "qq": (
        lambda message: qq_channel.read_event("C2C_MESSAGE_CREATE", message),
        {"id": "m", "author": {"user_openid": qq.ANNA}},
        qq.ANNA,
        "id author user_openid member_openid group_openid content timestamp attachments url content_type "
        "asr_refer_text voice_wav_url filename message_type msg_elements username",
        [],
    ),
    "wecom": (
        read_wecom,
        {"msgid": "m", "from": {"userid": wecom.ANNA}, "chattype": "single"},
        wecom.ANNA,
        "msgid chatid chattype from userid msgtype text content mixed msg_item image file voice url aeskey filename "
        "quote create_time event eventtype enter_chat",
        ["group", "mixed", "image", "text"],
    ),
    "weixin": (
        lambda message: weixin_channel.read_message(message, {}, "https://cdn.example"),
        {"from_user_id": weixin.ZOE},
        weixin.ZOE,
        "message_id from_user_id create_time_ms item_list type text_item text voice_item image_item file_item media "
        "full_url encrypt_query_param aes_key aeskey file_name ref_msg message_item svr_id title msg_id context_token",
        [1, 2, 3, "http://[", "x=="],
    ),
    "msteams": (
        teams_channel.read_message,
        {"id": "1", "from": {"id": "29:anna"}, "conversation": {"id": "a:1"}},
        "29:anna",
        "type id name value context file uploadInfo text from recipient conversation isGroup conversationType "
        "aadObjectId entities mentioned attachments contentType content contentUrl downloadUrl timestamp",
        ["mention", "text/html", "image/png", REPLY, "<at>x"],
    ),
    "whatsapp": (
        lambda message: whatsapp_channel.read_message(message, {"+4930123456"}, {}),
        {"id": "m", "sender": whatsapp.ANNA, "pn": whatsapp.ANNA, "isGroup": False},
        "+4915112345678",
        "id chat sender pn lid content timestamp isGroup media path quoted text pushName",
        [whatsapp.ANNA, whatsapp.ANNA_LID, whatsapp.HALL],
    ),
    "matrix": (
        lambda message: matrix_client.read_message(
            Payload({"type": "m.room.message", "origin_server_ts": 1, **message}), matrix_client.Bot(matrix.BOT)
        ),
        {"sender": matrix.ANNA, "event_id": "$1", "content": {"msgtype": "m.text", "body": "hello"}},
        matrix.ANNA,
        "content sender event_id msgtype body m.relates_to m.mentions file url info filename formatted_body",
        ["m.text", "m.image", "m.file"],
    ),
}
"""How a message is read; what it must have, and whose it is then; names and values to try."""


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
def test_any_message_is_read_or_ignored(name, data):
    read, known, sender, names, values = READERS[name]
    message = data.draw(odd_objects(names, *values))

    read(message)
    incoming = read(message | known)

    assert incoming is not None
    assert incoming.sender_id == sender
    assert all(file.source for file in incoming.attachments) or name not in ("dingtalk", "qq")


QUOTED = "the plan\nis old"
READ = "[in reply to a message]\n> the plan\n> is old\nis it?"


@pytest.mark.parametrize(
    ("platform", "words", "more", "read"),
    [
        ("qq", ["is it?"], {"message_type": 103, "msg_elements": [{"msg_idx": "R1", "content": QUOTED}]}, READ),
        ("wecom", ["is it?"], {"group": wecom.HALL, "quote": {"msgtype": "text", "text": {"content": QUOTED}}}, READ),
        ("whatsapp", ["is it?"], {"quoted": {"id": "x", "sender": whatsapp.ZOE, "text": QUOTED}}, READ),
        ("whatsapp", ["look at this"], {"forwarded": True}, "look at this"),
    ],
    indirect=["platform"],
)
async def test_words_of_somebody_else_are_read_as_theirs(platform, tmp_path, words, more, read):
    async with live(platform, tmp_path, silent=True) as life:
        life.people.admit(platform.name, platform.person, owner=True)
        await platform.writes(*words, **more)
        quoting = await life.hears(words[0])
        own = await life.receives("mine")

    assert quoting.content == read
    assert (quoting.provenance, own.provenance) == (Provenance.PERSON, Provenance.OWNER)


@pytest.mark.parametrize(
    ("platform", "kind", "name", "data"),
    [
        ("dingtalk", "file", "plan.pdf", b"%PDF-1.7 x"),
        ("dingtalk", "video", "a.mp4", b"\0\0\0 ftypisom"),
        ("dingtalk", "audio", "a.amr", b"#!AMR\nx"),
        ("qq", "file", "plan.pdf", b"%PDF-1.7 x"),
        ("qq", "video/mp4", "a.mp4", b"\0\0\0 ftypisom"),
    ],
    indirect=["platform"],
)
async def test_files_are_fetched(platform, tmp_path, kind, name, data):
    place = platform.put_file(name, data)
    async with live(platform, tmp_path, silent=True) as life:
        if platform.name == "qq":
            await platform.writes(attachments=[{"content_type": kind, "filename": name, "url": place}])
        else:
            await platform.writes(msgtype=kind, content={"downloadCode": place, "fileName": name, "duration": 1})
        message = await life.hears("[")

    (path,) = map(Path, message.media)
    assert (path.read_bytes(), path.suffix) == (data, Path(name).suffix)
    assert str(path) in message.content
