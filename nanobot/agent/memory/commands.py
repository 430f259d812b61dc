"""The commands `/memory` and `/dream`. They work on the memory of the chat they are typed in."""

import asyncio
from collections.abc import Callable

from nanobot.agent.command import TYPED, CommandCall, is_from_owner
from nanobot.agent.memory.dream_schedule import DreamScheduler
from nanobot.agent.memory.dream_texts import format_log
from nanobot.agent.memory.editor import MemoryEditor, format_change
from nanobot.agent.memory.facts import PIN
from nanobot.agent.memory.revisions import Revision
from nanobot.agent.memory.store import MemoryStore
from nanobot.agent.scope import Scope
from nanobot.errors import NanobotError
from nanobot.utils.clock import Clock
from nanobot.utils.text import clip_line

_MAX_LOG = 15
_MAX_PASSES = 20
_MAX_MATCHES = 20
USAGE = (
    "/memory lists what is remembered here. /memory why ID-or-TEXT shows where a fact came from, /memory forget "
    "ID-or-TEXT removes it, /memory pin ID-or-TEXT keeps it as it is (/memory unpin), /memory undo reverts the last "
    "change, /memory search TEXT and /memory log show more, and "
    "/memory share ID shares a fact with every chat (the owner's memory, owner only)."
)

_AFTER_FORGET = """\
New conversations will not use it. This one may still mention it until /new; it also remains in HISTORY.md and in past \
messages, where a search finds it. /memory undo restores it."""


class MemoryCommands:
    """Answers the commands. `memory_of` returns the memory of a scope."""

    def __init__(self, memory_of: Callable[[Scope], MemoryStore], dreams: DreamScheduler, clock: Clock) -> None:
        self._memory_of = memory_of
        self._dreams = dreams
        self._clock = clock

    async def answer(self, name: str, call: CommandCall) -> str:
        """Run the command of this name and return the reply. Never raises."""
        if name == "dream":
            if call.message.origin not in TYPED:
                return "/dream has to be typed by a person."
            return (await self._dreams.run_now(call.scope, _sender(call)))[1]
        answers = {"memory": self._memory, "dream-log": self._dream_log, "dream-restore": self._dream_restore}
        try:
            return await asyncio.to_thread(answers[name], call)
        except NanobotError as error:
            return str(error)

    def _editor(self, call: CommandCall) -> MemoryEditor:
        return MemoryEditor(self._memory_of(call.scope), self._clock, _sender(call))

    def _dream_log(self, call: CommandCall) -> str:
        count = call.argument or "3"
        if not count.isdecimal() or not int(count):
            return f"How many? For example /dream-log 5; {call.argument[:60]!r} is not a number."
        memory = self._memory_of(call.scope)
        memory.record_changes()
        return format_log(memory.revisions, min(int(count), _MAX_PASSES)) or "Dream has tidied nothing here yet."

    def _dream_restore(self, call: CommandCall) -> str:
        if call.message.origin not in TYPED:
            return "/dream-restore has to be typed by a person."
        number = call.argument.lstrip("#")
        if number and not number.isdecimal():
            return (
                f"Which pass? For example /dream-restore 3; {call.argument[:60]!r} is not one. /dream-log lists them."
            )
        restored = self._editor(call).restore(int(number) if number else None, lambda change: _may_undo(call, change))
        return (
            f"The memory is restored to before pass {restored}; other changes since then are kept. "
            "/memory undo takes this back."
        )

    def _memory(self, call: CommandCall) -> str:
        word, _, rest = call.argument.partition(" ")
        word, rest = word.lower(), rest.strip()
        message, now = call.message, self._clock.now()
        editor = self._editor(call)
        if word in ("forget", "pin", "unpin", "undo", "share") and message.origin not in TYPED:
            return f"/memory {word} has to be typed by a person."
        if word in ("", "list", "show"):
            return self._list(editor)
        if word == "undo":
            undone = editor.undo(lambda change: _may_undo(call, change))
            return "\n".join(["Undone:", *(format_change(change, now) for change in undone)])
        if word == "log":
            changes = editor.log()[:_MAX_LOG]
            return "\n".join(format_change(change, now) for change in changes) or "Nothing has changed yet."
        if word not in ("why", "forget", "pin", "unpin", "share", "search") or not rest:
            return USAGE
        if word == "why":
            return editor.why(rest)
        if word == "search":
            matches = editor.search(rest)[:_MAX_MATCHES]
            return (
                "\n".join(f"{match.file}:{match.line}: {clip_line(match.text, 200)}" for match in matches)
                or "No matches."
            )
        if word == "share":
            return self._share(call, editor, rest)
        if word in ("pin", "unpin"):
            fact = editor.pin(rest, pinned=word == "pin")
            return f"{'Pinned' if word == 'pin' else 'Unpinned'}: {fact.text}"
        forgotten = editor.forget(rest)
        lines = "\n".join(f"- {fact.text}" for fact in forgotten)
        return f"Forgotten:\n{lines}\n{_AFTER_FORGET}"

    def _list(self, editor: MemoryEditor) -> str:
        facts = editor.facts()
        lines = [
            f"{item.fact.id}  {clip_line(item.fact.text, 200)}{f' {PIN}' if item.fact.pinned else ''}" for item in facts
        ]
        return "\n".join([f"Memory: {editor.state()}", *lines])

    def _share(self, call: CommandCall, editor: MemoryEditor, wanted: str) -> str:
        if not call.scope.is_owners:
            return "This chat's memory cannot be shared. The owner shares facts of their own, in their own chat."
        if not is_from_owner(call.message):
            return "Only an owner may share a fact."
        return f"Shared with every chat: {editor.share(wanted).text}"


def _sender(call: CommandCall) -> str:
    return call.message.sender_id or "terminal"


def _may_undo(call: CommandCall, change: Revision) -> bool:
    """The owner may; in a chat of several, also the person who made the change."""
    return call.scope.is_owners or is_from_owner(call.message) or change.who == _sender(call)
