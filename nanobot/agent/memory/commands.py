"""The commands `/memory` and `/dream`, on the memory of the chat they are typed in."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from nanobot.agent.command import TYPED, CommandCall, is_from_owner
from nanobot.agent.memory.dream import format_log
from nanobot.agent.memory.dream_schedule import DreamScheduler
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


@dataclass(frozen=True)
class MemoryCommands:
    """Answers the commands."""

    memory_of: Callable[[Scope], MemoryStore]
    dreams: DreamScheduler
    clock: Clock

    async def answer(self, name: str, call: CommandCall) -> str:
        """Run the command of this name and return the reply. Never raises."""
        word, _, rest = call.argument.partition(" ") if name == "memory" else ("", "", call.argument)
        is_change = name in ("dream", "dream-restore") or word.lower() in ("forget", "pin", "unpin", "undo", "share")
        if is_change and call.message.origin not in TYPED:
            return f"{f'/{name} {word}'.strip()} has to be typed by a person."
        if name == "dream":
            return (await self.dreams.run_now(call.scope, _sender(call)))[1]
        try:
            return await asyncio.to_thread(self._answer, name, word.lower(), rest.strip(), call)
        except NanobotError as error:
            return str(error)

    def _answer(self, name: str, word: str, rest: str, call: CommandCall) -> str:
        memory = self.memory_of(call.scope)
        editor, now = MemoryEditor(memory, self.clock, _sender(call)), self.clock.now()
        is_owner = is_from_owner(call.message)

        def may_undo(change: Revision) -> bool:  # in a chat of several, a person only their own changes
            return call.scope.is_owners or is_owner or change.who == _sender(call)

        number = rest.lstrip("#")
        match name, word:
            case "dream-log", _:
                if rest and not (rest.isdecimal() and int(rest)):
                    return f"How many? For example /dream-log 5; {rest[:60]!r} is not a number."
                memory.revisions.record()
                passes = format_log(memory.revisions, min(int(rest or 3), _MAX_PASSES))
                return passes or "Dream has tidied nothing here yet."
            case "dream-restore", _:
                if number and not number.isdecimal():
                    return f"Which pass? For example /dream-restore 3; {rest[:60]!r} is not one. /dream-log lists them."
                restored = editor.restore(int(number) if number else None, may_undo)
                return (
                    f"The memory is restored to before pass {restored}; other changes since then are kept. "
                    "/memory undo takes this back."
                )
            case _, "" | "list" | "show":
                facts = [item.fact for item in editor.facts()]
                pins = [f" {PIN}" if fact.pinned else "" for fact in facts]
                lines = [f"{fact.id}  {clip_line(fact.text, 200)}{pin}" for fact, pin in zip(facts, pins, strict=True)]
                return "\n".join([f"Memory: {editor.state()}", *lines])
            case _, "undo":
                return "\n".join(["Undone:", *(format_change(change, now) for change in editor.undo(may_undo))])
            case _, "log":
                changes = editor.log()[:_MAX_LOG]
                return "\n".join(format_change(change, now) for change in changes) or "Nothing has changed yet."
            case _, "why" if rest:
                return editor.why(rest)
            case _, "search" if rest:
                matches = editor.search(rest)[:_MAX_MATCHES]
                lines = [f"{match.file}:{match.line}: {clip_line(match.text, 200)}" for match in matches]
                return "\n".join(lines) or "No matches."
            case _, "share" if rest:
                if not call.scope.is_owners:
                    return (
                        "This chat's memory cannot be shared. The owner shares facts of their own, in their own chat."
                    )
                if not is_owner:
                    return "Only an owner may share a fact."
                return f"Shared with every chat: {editor.share(rest).text}"
            case _, "pin" | "unpin" if rest:
                return f"{'Pinned' if word == 'pin' else 'Unpinned'}: {editor.pin(rest, pinned=word == 'pin').text}"
            case _, "forget" if rest:
                lines = [f"- {fact.text}" for fact in editor.forget(rest)]
                return "\n".join(["Forgotten:", *lines, _AFTER_FORGET])
        return USAGE


def _sender(call: CommandCall) -> str:
    return call.message.sender_id or "terminal"
