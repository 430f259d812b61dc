"""`/memory`: what a chat remembers, said and changed in the chat. Each speaks of its own chat's memory alone."""

import asyncio
from collections.abc import Callable

from nanobot.agent.desk import Asked
from nanobot.agent.memory import MemoryStore
from nanobot.agent.memory_book import Change
from nanobot.agent.memory_editing import MemoryEditor, told_change
from nanobot.agent.scope import Scope
from nanobot.agent.slash_commands import TYPED, is_from_owner
from nanobot.errors import NanobotError
from nanobot.utils.clock import Clock
from nanobot.utils.text import clip_line

_MOST_LOG = 15
_MOST_FOUND = 20
USAGE = (
    "/memory lists what is remembered here. /memory why ID-or-TEXT says where it came from, /memory forget ID-or-TEXT "
    "takes it out, /memory undo takes the last change back, /memory search TEXT and /memory log look further, and "
    "/memory share ID tells every chat of it (the owner's memory, owner only)."
)

_REMAINS = """\
No new conversation is told of it. This one may still speak of it, until /new; so do HISTORY.md and what was said \
before, where a search finds it. /memory undo brings it back."""


class MemoryWords:
    """The answers. `memory_of` gives the memory of a scope."""

    def __init__(self, memory_of: Callable[[Scope], MemoryStore], clock: Clock) -> None:
        self._memory_of = memory_of
        self._clock = clock

    async def answer(self, asked: Asked) -> str:
        """Do what is asked; what the person is told. Never raises."""
        try:
            return await asyncio.to_thread(self._answer, asked)
        except NanobotError as error:
            return str(error)

    def _answer(self, asked: Asked) -> str:
        word, _, rest = asked.argument.partition(" ")
        word, rest = word.lower(), rest.strip()
        message = asked.message
        editor = MemoryEditor(self._memory_of(asked.scope), self._clock, message.sender_id or "terminal")
        if word in ("forget", "undo", "share") and message.origin not in TYPED:
            return f"/memory {word} has to be typed by a person."
        if word in ("", "list", "show"):
            return self._list(editor)
        if word == "undo":
            return "\n".join(["Taken back:", *map(told_change, editor.undo(lambda change: _may_undo(asked, change)))])
        if word == "log":
            return "\n".join(map(told_change, editor.log()[:_MOST_LOG])) or "Nothing has changed yet."
        if word not in ("why", "forget", "share", "search") or not rest:
            return USAGE
        if word == "why":
            return editor.why(rest)
        if word == "search":
            found = editor.search(rest)[:_MOST_FOUND]
            return "\n".join(f"{one.file}:{one.line}: {clip_line(one.text, 200)}" for one in found) or "Nothing."
        if word == "share":
            return self._share(asked, editor, rest)
        gone = editor.forget(rest)
        said = "\n".join(f"- {fact.text}" for fact in gone)
        return f"Forgotten:\n{said}\n{_REMAINS}"

    def _list(self, editor: MemoryEditor) -> str:
        known = editor.facts()
        lines = [f"{one.fact.id}  {clip_line(one.fact.text, 200)}" for one in known]
        return "\n".join([f"Memory: {editor.state()}", *lines])

    def _share(self, asked: Asked, editor: MemoryEditor, wanted: str) -> str:
        if not asked.scope.is_owners:
            return "What is remembered here stays here. The owner shares facts of their own, where only they read."
        if not is_from_owner(asked.message):
            return "Only an owner may share a fact."
        return f"Every chat is told of it from now on: {editor.share(wanted).text}"


def _may_undo(asked: Asked, change: Change) -> bool:
    """An owner; in a chat of several, who made the change."""
    return asked.scope.is_owners or is_from_owner(asked.message) or change.who == asked.message.sender_id
