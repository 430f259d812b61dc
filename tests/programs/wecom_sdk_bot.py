"""A robot by WeCom's own SDK: it prints as JSON what it reads, and answers with a stream, a card and a message."""

import asyncio
import json
import sys

import aibot
import aibot.ws

aibot.ws._SSL_CONTEXT = None  # else it refuses an address without TLS


class Quiet:
    def debug(self, message, *args):
        pass

    info = warn = error = debug


async def main():
    client = aibot.WSClient(
        aibot.WSClientOptions(bot_id=sys.argv[1], secret=sys.argv[2], ws_url=sys.argv[3], logger=Quiet())
    )

    async def answer(frame):
        body = frame["body"]
        files = [one["image"] for one in body.get("mixed", {}).get("msg_item", ()) if one["msgtype"] == "image"]
        data = [(await client.download_file(one["url"], one["aeskey"]))[0].decode() for one in files]
        codes = [
            (await client.reply_stream(frame, "s1", "You ", False))["errcode"],
            (await client.reply_stream(frame, "s1", "You said it", True))["errcode"],
        ]
        chat = body.get("chatid") or body["from"]["userid"]
        await client.send_message(chat, {"msgtype": "markdown", "markdown": {"content": "Bye"}})
        facts = {"id": body["msgid"], "sender": body["from"]["userid"], "chat": chat, "data": data, "codes": codes}
        print(json.dumps(facts), flush=True)

    client.on("message", answer)
    await client.connect()
    await asyncio.Event().wait()


asyncio.run(main())
