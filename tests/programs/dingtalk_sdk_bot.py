"""A robot by DingTalk's own SDK: it says as JSON what it reads, and answers with an AI card."""

import asyncio
import json
import sys

import dingtalk_stream


class Answering(dingtalk_stream.ChatbotHandler):  # type: ignore[misc]
    async def process(self, callback):
        message = dingtalk_stream.ChatbotMessage.from_dict(callback.data)
        facts = {
            "texts": message.get_text_list(),
            "sender": message.sender_staff_id,
            "chat": message.conversation_id,
            "urls": [self.get_image_download_url(code) for code in message.get_image_list() or ()],
        }
        await asyncio.to_thread(self.answer, message)  # the SDK's requests block
        print(json.dumps(facts), flush=True)
        return dingtalk_stream.AckMessage.STATUS_OK, "OK"

    def answer(self, message):
        card = self.ai_markdown_card_start(message)
        card.ai_streaming("You ")
        card.ai_streaming("said it")
        card.ai_finish("You said it all")


client = dingtalk_stream.DingTalkStreamClient(dingtalk_stream.Credential(sys.argv[1], sys.argv[2]))
client.register_callback_handler(dingtalk_stream.ChatbotMessage.TOPIC, Answering())
asyncio.run(client.start())
