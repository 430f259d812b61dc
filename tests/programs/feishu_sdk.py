"""Feishu's own client against a fake: hears two events (and fails at the one named "bad"), then streams a card.

Its WebSocket client takes over the event loop that it finds when it is imported, and never returns.
"""

import json
import sys
import threading

from lark_channel import Client, EventDispatcherHandler
from lark_channel.api.cardkit.v1.model.content_card_element_request import ContentCardElementRequest
from lark_channel.api.cardkit.v1.model.content_card_element_request_body import ContentCardElementRequestBody
from lark_channel.api.cardkit.v1.model.create_card_request import CreateCardRequest
from lark_channel.api.cardkit.v1.model.create_card_request_body import CreateCardRequestBody
from lark_channel.api.cardkit.v1.model.id_convert_card_request import IdConvertCardRequest
from lark_channel.api.cardkit.v1.model.id_convert_card_request_body import IdConvertCardRequestBody
from lark_channel.api.cardkit.v1.model.settings_card_request import SettingsCardRequest
from lark_channel.api.cardkit.v1.model.settings_card_request_body import SettingsCardRequestBody
from lark_channel.api.im.v1.model.create_message_request import CreateMessageRequest
from lark_channel.api.im.v1.model.create_message_request_body import CreateMessageRequestBody
from lark_channel.core.enum import LogLevel
from lark_channel.ws import Client as Connection
from lark_channel.ws.pb.pbbp2_pb2 import Frame

from nanobot.channels.feishu.incoming import Frame as OurFrame
from nanobot.channels.feishu.incoming import new_frame

URL, APP_ID, SECRET = sys.argv[1:]
heard = threading.Semaphore(0)


def on_message(event) -> None:
    text = json.loads(event.event.message.content)["text"]
    print(json.dumps({"text": text, "sender": event.event.sender.sender_id.open_id}), flush=True)
    heard.release()
    if text == "bad":
        raise OSError("the disk is full")


def decodes_alike() -> bool:
    """Whether a frame of ours is one of theirs, and back."""
    made = new_frame(33, 1, {"type": "event", "sum": "1"}, b"\x00payload")
    theirs = Frame()
    theirs.ParseFromString(made)
    is_read = theirs.service == 33 and theirs.payload == b"\x00payload" and theirs.headers[1].key == "sum"
    theirs.LogIDNew, theirs.SeqID = "log", 1 << 60
    ours = OurFrame.decode(theirs.SerializeToString())
    answered = Frame()
    answered.ParseFromString(ours.answer(200))
    return (is_read, answered.LogIDNew, answered.SeqID, answered.payload) == (True, "log", 1 << 60, b'{"code": 200}')


def stream_a_card() -> None:
    heard.acquire()
    heard.acquire()
    client = Client.builder().app_id(APP_ID).app_secret(SECRET).domain(URL).build()
    element = {"tag": "markdown", "content": "say", "element_id": "text"}
    card = {"schema": "2.0", "config": {"streaming_mode": True}, "body": {"elements": [element]}}
    body = CreateCardRequestBody.builder().type("card_json").data(json.dumps(card)).build()
    made = client.cardkit.v1.card.create(CreateCardRequest.builder().request_body(body).build())
    content = json.dumps({"type": "card", "data": {"card_id": made.data.card_id}})
    body = CreateMessageRequestBody.builder().receive_id("ou_anna").msg_type("interactive").content(content)
    request = CreateMessageRequest.builder().receive_id_type("open_id").request_body(body.uuid("u1").build()).build()
    first, again = client.im.v1.message.create(request), client.im.v1.message.create(request)
    body = IdConvertCardRequestBody.builder().message_id(again.data.message_id).build()
    card_id = client.cardkit.v1.card.id_convert(IdConvertCardRequest.builder().request_body(body).build()).data.card_id
    body = ContentCardElementRequestBody.builder().content("said").sequence(1).build()
    request = ContentCardElementRequest.builder().card_id(card_id).element_id("text").request_body(body).build()
    written = client.cardkit.v1.card_element.content(request)
    settings = json.dumps({"config": {"streaming_mode": False}})
    body = SettingsCardRequestBody.builder().settings(settings).sequence(2).build()
    ended = client.cardkit.v1.card.settings(SettingsCardRequest.builder().card_id(card_id).request_body(body).build())
    codes = [made.data.card_id == card_id, *(answer.code for answer in (first, again, written, ended))]
    print(json.dumps({"codes": codes, "frames": decodes_alike()}), flush=True)


handler = EventDispatcherHandler.builder("", "").register_p2_im_message_receive_v1(on_message).build()
threading.Thread(target=stream_a_card, daemon=True).start()
Connection(APP_ID, SECRET, event_handler=handler, domain=URL, log_level=LogLevel.CRITICAL).start()
