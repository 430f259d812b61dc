"""Hooks as a plugin: one notes requests and ends of turns in a file, one changes messages and results."""

import json

from nanobot.agent.hooks import Hook, NewResult, NewText


class Watches(Hook):
    def __init__(self, settings):
        self.seen = settings["seen"]

    def note(self, what, turn):
        with open(self.seen, "a") as file:
            file.write(json.dumps([what, turn.session_key, turn.turn_id]) + "\n")

    async def on_request(self, request):
        self.note("request", request.turn)

    async def on_turn_end(self, turn):
        self.note("end", turn.turn)


class Changes(Hook):
    async def on_message(self, message):
        return NewText(message.text + " (heard)")

    async def after_tool(self, result):
        return NewResult(result.text + "\n(read)")
