"""A bot by qq-botpy-sdk: it prints as JSON what it reads, and answers with a text (twice, one number) and a picture."""

import base64
import json
import sys

import botpy
from botpy.protocol.errors import ApiError

APP_ID, SECRET, URL = sys.argv[1:]
PICTURE = base64.b64encode(b"a picture").decode()


class Bot(botpy.Client):  # type: ignore[misc]
    async def on_c2c_message_create(self, message):
        sender = message.author.user_openid
        await message.reply(content="You said it", msg_seq=1)
        try:
            await message.reply(content="You said it", msg_seq=1)
            refused = 0
        except ApiError as error:
            refused = error.code
        media = await self.api.post_c2c_file(sender, 1, file_data=PICTURE)
        await message.reply(msg_type=7, content=" ", media={"file_info": media["file_info"]}, msg_seq=2)
        self.tell(message, sender=sender, refused=refused)

    async def on_group_at_message_create(self, message):
        group = message.group_openid
        await message.reply(content="You said it", msg_seq=1)
        media = await self.api.post_group_file(group, 1, file_data=PICTURE)
        await message.reply(msg_type=7, content=" ", media={"file_info": media["file_info"]}, msg_seq=2)
        self.tell(message, group=group)

    def tell(self, message, **more):
        urls = [one.url for one in message.attachments]
        print(json.dumps({"id": message.id, "text": message.content.strip(), "urls": urls, **more}), flush=True)


intents = botpy.Intents(public_messages=True)
Bot(intents=intents, base_url=URL, token_base_url=URL, bot_log=None, ext_handlers=False).run(APP_ID, SECRET)
