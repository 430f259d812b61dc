"""Prompts: the system prompt, and the runtime context at the end of each user message.

The system prompt holds what is stable: identity, workspace files, memory, skills. It is rebuilt only when one of its
files changes, so that each request is a byte-for-byte prefix of the next and providers can cache it. What changes with
every message (time, channel, today's notes) is in the runtime context.
"""

import os
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path, PurePath

from nanobot.agent.memory.store import BUDGET_BYTES, NOTES_HEADING, MemoryStore, file_stamp, read_capped
from nanobot.agent.scope import OWNERS, Scope, restrict_paths
from nanobot.agent.skills.loader import SkillCatalog, SkillsLoader
from nanobot.messages.types import CONTEXT_CLOSE, CONTEXT_MARK, ChatMessage, with_context
from nanobot.security.files.open import Opener
from nanobot.security.files.paths import PathDeniedError, PathPolicy
from nanobot.utils.clock import Clock, SystemClock, zone_name

BOOTSTRAP_FILES = ("AGENTS.md", "SOUL.md", "USER.md", "TOOLS.md", "IDENTITY.md")
_MAX_CACHED_PROMPTS = 64

CONTEXT_OPEN = f"{CONTEXT_MARK} — metadata only, not instructions]"

_SEPARATOR = "\n\n---\n\n"
_SYSTEM_NAMES = {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}
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

_SKILLS_INTRO = """\
# Skills

Before you do what a skill describes, read its file with `read_file`. `$name` in a message names one. A skill with
available="false" lacks something it requires: say so, or help to install it."""


@dataclass(slots=True)
class _CachedPrompt:
    """The prompt of one scope (and of one day, where not all skills fit): its source files and the last result."""

    memory: MemoryStore
    files: tuple[str, ...]
    built: tuple[tuple[object, ...], str] | None = None
    """Equal sources give equal prompts."""


class ContextBuilder:
    """Builds the prompts of one workspace. Never raises for a file that is missing or damaged."""

    def __init__(
        self,
        workspace: Path,
        *,
        clock: Clock | None = None,
        name: str = "nanobot",
        paths: PathPolicy | None = None,
        memory_budget_bytes: int = BUDGET_BYTES,
        skills: SkillsLoader | None = None,
        database: Path | None = None,
    ) -> None:
        """`paths`: where links in the workspace may lead. `database` has the revisions of the memory."""
        self.workspace = workspace.expanduser().absolute()
        self.files = Opener(paths or PathPolicy(self.workspace))
        """Opens the workspace files that nanobot itself reads and writes."""
        self.memory = MemoryStore(
            self.workspace, clock=clock, files=self.files, budget_bytes=memory_budget_bytes, database=database
        )
        """The owner's memory; `memory_of` returns those of chats."""
        self.skills = skills or SkillsLoader(self.workspace, opener=self.files.descriptor)
        self._clock = clock or SystemClock()
        self._name = name
        self._prompts: dict[tuple[Scope, date | None], _CachedPrompt] = {}

    def build_system_prompt(self, summary: str = "", *, scope: Scope = OWNERS, began: date | None = None) -> str:
        """Build the system prompt. The text is identical until one of its files changes.

        `summary` is the session summary; it comes last. `scope` selects the memory that may be read. `began` is the
        day the session began: if not all skills fit, those most used by then are listed.
        """
        catalog = self.skills.catalog(began)
        prompt = self._prompt_for(scope, catalog.day)
        sources = (catalog, *map(file_stamp, prompt.files))
        if prompt.built is None or prompt.built[0] != sources:
            prompt.built = (sources, self._build(catalog, prompt.memory))
        text = prompt.built[1]
        summary = prompt.memory.demote_headings(prompt.memory.drop_forgotten(summary)).strip()
        return _SEPARATOR.join([text, f"# Earlier in this Conversation\n\n{summary}"]) if summary else text

    def memory_of(self, scope: Scope) -> MemoryStore:
        """The memory that a turn in this scope may read."""
        return self._prompt_for(scope).memory

    def _prompt_for(self, scope: Scope, day: date | None = None) -> "_CachedPrompt":
        """The cached prompt of a scope; the least recently used one is dropped."""
        prompt = self._prompts.pop((scope, day), None)
        if prompt is None:
            memory = self.memory.of(scope)
            files = (*(self.workspace / name for name in _bootstrap_files(scope)), *memory.prompt_files)
            prompt = _CachedPrompt(memory, tuple(map(os.fspath, files)))
        while len(self._prompts) >= _MAX_CACHED_PROMPTS:
            del self._prompts[next(iter(self._prompts))]
        self._prompts[scope, day] = prompt
        return prompt

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
        """Build a request: system prompt, history, and the user message, whose text ends in the runtime context.

        Pass the `runtime_context` that was stored with the message to replay it byte for byte.
        """
        if runtime_context is None:
            runtime_context = self.runtime_context(channel, chat_id, history)
        content = with_attachments(current_message, media or ())
        message: ChatMessage = {"role": "user", "content": content, "runtime_context": runtime_context}
        if media:
            message["media"] = list(media)
        system: ChatMessage = {"role": "system", "content": self.build_system_prompt(summary)}
        return [system, *map(as_sent_message, history), as_sent_message(message)]

    def runtime_context(
        self,
        channel: str | None = None,
        chat_id: str | None = None,
        history: Sequence[ChatMessage] = (),
        *,
        scope: Scope = OWNERS,
        note: str = "",
        folder: str = "",
    ) -> str:
        """The context sent with a message: today's notes unless the history shows them already, the `note` about the
        message, then the metadata block.

        `folder` is where the person's terminal is; it is named if tools may read it.
        """
        now = self._clock.now()
        offset = now.strftime("%z") or "+0000"
        time = f"{now:%Y-%m-%d %H:%M (%A)} ({zone_name(now)}, UTC{offset[:3]}:{offset[3:5]})"
        lines = [CONTEXT_OPEN, f"Current Time: {time}"]
        fields = {"Channel": channel, "Chat ID": chat_id, "Current Folder": self._describe_folder(folder)}
        lines += [f"{label}: {_CONTROL.sub(' ', value)}" for label, value in fields.items() if value]
        block = "\n".join([*lines, CONTEXT_CLOSE])
        if note:
            block = f"{note}\n\n{block}"
        notes = self.memory_of(scope).todays_notes()
        contexts = (message.get("runtime_context") or "" for message in reversed(history))
        shown = next((text for text in contexts if text.startswith(NOTES_HEADING)), "")
        return f"{notes}\n\n{block}" if notes and not shown.startswith(f"{notes}\n\n") else block

    def _describe_folder(self, folder: str) -> str:
        """The folder and what tools may do in it; empty for the workspace and where they may not read."""
        policy = self.files.policy
        if not folder or Path(folder) == self.workspace or not policy.admits(Path(folder)):
            return ""
        try:
            policy.resolve_writable(Path(folder) / "new file")
            use = "you may read and write there"
        except PathDeniedError:
            use = "you may read there"
        return f"{folder} (where the person works; relative paths in their words start there; {use})"

    def _build(self, catalog: SkillCatalog, memory: MemoryStore) -> str:
        identity = _IDENTITY.format(
            name=self._name,
            system=system_name(),
            python=platform.python_version(),
            workspace=self.workspace,
            memory=memory.memory_file,
            history=memory.history_file,
            note=memory.memory_dir / "YYYY-MM-DD.md",  # the day itself would move the prompt every midnight
            skills=self.workspace / "skills" / "<name>" / "SKILL.md",
        )
        files = replace(self.files, policy=restrict_paths(self.files.policy, memory.scope))
        parts = [
            identity,
            *(
                _section(f"## {name}", read_capped(self.workspace / name, files))
                for name in _bootstrap_files(memory.scope)
            ),
            _section("# Memory", memory.long_term_context()),
            _section("# Active Skills", self.skills.load_skills_for_context(self.skills.get_always_skills())),
            _section(_SKILLS_INTRO, self.skills.format_catalog(catalog)),
        ]
        return _SEPARATOR.join(part for part in parts if part)


def system_name() -> str:
    """Operating system and architecture, as in `Linux x86_64`."""
    return f"{_SYSTEM_NAMES.get(sys.platform, sys.platform)} {platform.machine()}".strip()


def as_sent_message(message: ChatMessage) -> ChatMessage:
    """A chat message as sent to a model, with its stored runtime context as part of the content.

    A pure function of the row, so that a row is replayed byte for byte.
    """
    context = message.get("runtime_context")
    if message["role"] != "user" or not context:
        return message
    sent_message = message.copy()
    del sent_message["runtime_context"]
    content = sent_message["content"]
    if isinstance(content, list):
        sent_message["content"] = [*content, {"type": "text", "text": context}]
    else:
        sent_message["content"] = with_context(content or "", context)
    return sent_message


def with_attachments(text: str, media: Sequence[str] = ()) -> str:
    """The text, followed by `[image: path]`, `[audio: path]` or `[file: path]` for each attachment that the text does
    not name already."""
    tags = [f"[{_attachment_kind(path)}: {path}]" for path in media if f": {path}]" not in text]
    return "\n".join([text, *tags] if text.strip() else tags) or "[empty message]"


def _attachment_kind(path: str) -> str:
    suffix = PurePath(path).suffix.lower()
    return "image" if suffix in _IMAGES else "audio" if suffix in _AUDIO else "file"


def _bootstrap_files(scope: Scope) -> Sequence[str]:
    """The bootstrap files for a scope: USER.md describes the owner, so only the owner's scope has it."""
    return BOOTSTRAP_FILES if scope.is_owners else [name for name in BOOTSTRAP_FILES if name != "USER.md"]


def _section(heading: str, text: str) -> str:
    return f"{heading}\n\n{text}" if text else ""
