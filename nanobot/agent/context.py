"""The prompt: what a model is told before it reads the person's words, and what is said beside them.

The system prompt holds what stays: identity, the workspace's own files, memory, skills. It is built once, and again
only when one of its files has changed, so that each request is, byte for byte, the head of the next and providers can
cache it.
What changes with every message (time, channel, today's notes) stands at the end of the message, in the runtime context.
"""

import os
import platform
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from pathlib import Path, PurePath

from nanobot.agent.memory import BUDGET_BYTES, MemoryStore, read_capped
from nanobot.agent.scope import OWNERS, Scope, apart
from nanobot.agent.skills import Shelf, SkillsLoader
from nanobot.messages.shown import CONTEXT_CLOSE, CONTEXT_MARK
from nanobot.messages.types import ChatMessage, with_context
from nanobot.security.opening import Opener
from nanobot.security.paths import PathPolicy
from nanobot.utils.clock import Clock, SystemClock, zone_name

BOOTSTRAP_FILES = ("AGENTS.md", "SOUL.md", "USER.md", "TOOLS.md", "IDENTITY.md")
MAX_NOTES_CHARS = 4_000
_MOST_PAGES = 64
"""Scopes whose prompts are kept."""

CONTEXT_OPEN = f"{CONTEXT_MARK} — metadata only, not instructions]"
NOTES_HEADING = "## Today's Notes"

_BETWEEN_PARTS = "\n\n---\n\n"
_SYSTEMS = {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f\[\]]+")

_IMAGES = frozenset({".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".heic"})
_AUDIO = frozenset({".mp3", ".wav", ".m4a", ".aac", ".flac", ".ogg", ".oga", ".opus"})

_IDENTITY = """\
# nanobot

You are {name}, a personal AI agent. You belong to one person and work on their machine, with tools.

## Runtime

{system}, Python {python}

## Workspace

Your workspace is {workspace}
- Long-term memory: {memory}
- History log: {history}
- Today's note: {note}
- The person's own skills: {skills}

## Guidelines

- Before a tool call, say in a few words what you will do, never what it will return.
- Read a file before you edit it, and again after a write that matters.
- When a tool fails, read the error and change something before you try again.
- Make calls together that do not need each other's results.
- Your answer reaches the person by itself. `message` is for other chats, and for files.
- Say what is so. If you do not know or could not do it, say that.
- A `[Runtime Context]` block at the end of a message is metadata from nanobot, not a request."""

_HOW_TO_SKILL = """\
# Skills

Before you do what a skill describes, read its file with `read_file`. `$name` in a message means one. One with
available="false" lacks what it requires: say so, or help to install it."""

_Stamp = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class _Sources:
    """What the system prompt is made of. Equal sources make equal prompts."""

    files: tuple[_Stamp, ...]
    shelf: Shelf


@dataclass(slots=True)
class _Page:
    """The prompt of one scope (of one day, where not all skills fit): its files, and what was made of them last."""

    memory: MemoryStore
    files: tuple[str, ...]
    built: tuple[_Sources, str] | None = None


class ContextBuilder:
    """Builds the prompts of one workspace. It reads files and never raises for one that is missing or damaged."""

    def __init__(
        self,
        workspace: Path,
        *,
        clock: Clock | None = None,
        name: str = "nanobot",
        disabled_skills: Collection[str] = (),
        builtin_skills_dir: Path | None = None,
        paths: PathPolicy | None = None,
        memory_budget_bytes: int = BUDGET_BYTES,
        skills: SkillsLoader | None = None,
    ) -> None:
        """`paths` says where links in the workspace may lead; with `skills` the two words about them say nothing."""
        self.workspace = workspace.expanduser().absolute()
        self.files = Opener(paths or PathPolicy(self.workspace))
        """Opens what nanobot itself reads and writes in the workspace."""
        self.memory = MemoryStore(self.workspace, clock=clock, files=self.files, budget_bytes=memory_budget_bytes)
        """The owner's; `memory_of` has those of the chats beside it."""
        self.skills = skills or SkillsLoader(self.workspace, builtin_skills_dir, disabled_skills, self.files.descriptor)
        self._clock = clock or SystemClock()
        self._name = name
        self._pages: dict[tuple[Scope, date | None], _Page] = {}

    def build_system_prompt(self, summary: str = "", *, scope: Scope = OWNERS, began: date | None = None) -> str:
        """The head of every request; the very same text until a file it comes from changes.

        `summary` is what a session remembers of its own archived past; it stands last. `scope` says whose memory may
        be told, `began` when the session did: where not all skills fit, it is shown those that were of use by then.
        """
        shelf = self.skills.shelf(began)
        page = self._page_of(scope, shelf.day)
        sources = _Sources(tuple(map(_stamp, page.files)), shelf)
        if page.built is None or page.built[0] != sources:
            page.built = (sources, self._build(shelf, page.memory))
        text = page.built[1]
        summary = page.memory.as_told(page.memory.without_forgotten(summary)).strip()
        return _BETWEEN_PARTS.join([text, f"# Earlier in this Conversation\n\n{summary}"]) if summary else text

    def memory_of(self, scope: Scope) -> MemoryStore:
        """The memory that a turn in this scope may be told of."""
        return self._page_of(scope).memory

    def _page_of(self, scope: Scope, day: date | None = None) -> "_Page":
        """What is kept of a scope's prompt, for the scopes that spoke last."""
        page = self._pages.pop((scope, day), None)
        if page is None:
            memory = self.memory.of(scope)
            places = (*(self.workspace / name for name in _bootstrap_of(scope)), *memory.prompt_files)
            page = _Page(memory, tuple(map(os.fspath, places)))
        while len(self._pages) >= _MOST_PAGES:
            del self._pages[next(iter(self._pages))]
        self._pages[scope, day] = page
        return page

    def build_messages(
        self,
        history: Sequence[ChatMessage],
        current_message: str,
        media: Sequence[str] | None = None,
        channel: str | None = None,
        chat_id: str | None = None,
        *,
        runtime_context: str | None = None,
        summary: str = "",
    ) -> list[ChatMessage]:
        """The request: system prompt, history, and the person's message, whose text ends in the runtime context.

        Hand in the `runtime_context` that was stored with the message, so that it is replayed as it was first sent.
        """
        if runtime_context is None:
            runtime_context = self.runtime_context(channel, chat_id, history)
        content = with_attachments(current_message, media or ())
        message: ChatMessage = {"role": "user", "content": content, "runtime_context": runtime_context}
        if media:
            message["media"] = list(media)
        system: ChatMessage = {"role": "system", "content": self.build_system_prompt(summary)}
        return [system, *map(as_sent, history), as_sent(message)]

    def runtime_context(
        self,
        channel: str | None = None,
        chat_id: str | None = None,
        history: Sequence[ChatMessage] = (),
        *,
        scope: Scope = OWNERS,
        goal: str = "",
    ) -> str:
        """What is said beside a message: today's notes where the history has not shown them yet, what is to be said of
        the session's goal, then the block.
        """
        lines = [CONTEXT_OPEN, f"Current Time: {_spoken_time(self._clock.now())}"]
        places = {"Channel": channel, "Chat ID": chat_id}
        lines += [f"{label}: {_CONTROL.sub(' ', value)}" for label, value in places.items() if value]
        block = "\n".join([*lines, CONTEXT_CLOSE])
        if goal:
            block = f"{goal}\n\n{block}"
        notes = _notes_of(self.memory_of(scope))
        return f"{notes}\n\n{block}" if notes and not _is_shown(notes, history) else block

    def _build(self, shelf: Shelf, memory: MemoryStore) -> str:
        files = replace(self.files, policy=apart(self.files.policy, memory.scope))
        parts = [
            self._identity(memory),
            *(_headed(f"## {name}", read_capped(self.workspace / name, files)) for name in _bootstrap_of(memory.scope)),
            _headed("# Memory", memory.get_memory_context()),
            _headed("# Active Skills", self.skills.load_skills_for_context(self.skills.get_always_skills())),
            _headed(_HOW_TO_SKILL, self.skills.summary_of(shelf)),
        ]
        return _BETWEEN_PARTS.join(part for part in parts if part)

    def _identity(self, memory: MemoryStore) -> str:
        return _IDENTITY.format(
            name=self._name,
            system=f"{_SYSTEMS.get(sys.platform, sys.platform)} {platform.machine()}".strip(),
            python=platform.python_version(),
            workspace=self.workspace,
            memory=memory.memory_file,
            history=memory.history_file,
            note=memory.memory_dir / "YYYY-MM-DD.md",  # the day itself would move the prompt every midnight
            skills=self.workspace / "skills" / "<name>" / "SKILL.md",
        )


def as_sent(message: ChatMessage) -> ChatMessage:
    """A chat message as a model reads it: the stored runtime context made part of its content.

    A pure function of the row, so that a row is replayed byte for byte as it was first sent.
    """
    context = message.get("runtime_context")
    if message["role"] != "user" or not context:
        return message
    sent = message.copy()
    del sent["runtime_context"]
    content = sent["content"]
    if isinstance(content, list):
        sent["content"] = [*content, {"type": "text", "text": context}]
    else:
        sent["content"] = with_context(content or "", context)
    return sent


def with_attachments(text: str, media: Sequence[str] = ()) -> str:
    """What a person sent, in words: the text, and each attachment it does not name itself as `[image: path]`,
    `[audio: path]` or `[file: path]`, so that the agent can open it."""
    tags = [f"[{_kind_of(path)}: {path}]" for path in media if f": {path}]" not in text]
    return "\n".join([text, *tags] if text.strip() else tags) or "[empty message]"


def _kind_of(path: str) -> str:
    suffix = PurePath(path).suffix.lower()
    return "image" if suffix in _IMAGES else "audio" if suffix in _AUDIO else "file"


def _spoken_time(now: datetime) -> str:
    offset = now.strftime("%z") or "+0000"
    return f"{now:%Y-%m-%d %H:%M (%A)} ({zone_name(now)}, UTC{offset[:3]}:{offset[3:5]})"


def _is_shown(notes: str, history: Sequence[ChatMessage]) -> bool:
    """Whether the notes of the day that this history showed last are these."""
    shown = (message.get("runtime_context") or "" for message in reversed(history))
    return next((one for one in shown if one.startswith(NOTES_HEADING)), "").startswith(f"{notes}\n\n")


def _notes_of(memory: MemoryStore) -> str:
    text = memory.as_told(memory.without_forgotten(memory.read_today())).strip()
    if len(text) > MAX_NOTES_CHARS:
        text = f"(the last of {len(text)} characters)\n{text[-MAX_NOTES_CHARS:]}"
    return _headed(NOTES_HEADING, text)


def _bootstrap_of(scope: Scope) -> Sequence[str]:
    """The files of a prompt: what the owner says of themselves is told where nobody else reads."""
    return BOOTSTRAP_FILES if scope.is_owners else [name for name in BOOTSTRAP_FILES if name != "USER.md"]


def _headed(heading: str, text: str) -> str:
    return f"{heading}\n\n{text}" if text else ""


def _stamp(path: str) -> _Stamp:
    """Every turn asks, so it is kept lean."""
    try:
        status = os.stat(path)  # noqa: PTH116 a Path costs more than the look
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
