"""What `/help` prints, and which command a mistyped one probably meant."""

from collections.abc import Iterable, Iterator, Mapping

from nanobot.agent.command import CommandEntry
from nanobot.utils.text import nearest

_COLUMN = 18
"""Width of the names; the texts are short enough for a terminal of 60 columns."""
_GROUPS = {
    "Conversation": ("new", "stop", "retry", "undo", "history", "copy", "compact", "sessions", "resume", "search"),
    "Model and cost": ("model", "status", "context", "usage", "raise"),
    "Memory": ("memory", "dream", "dream-log", "dream-restore"),
    "Work": ("goal", "tasks", "cron", "skills", "mcp"),
    "Access": ("pairing", "approve", "deny", "approvals"),
}
"""The headings of `/help`; what is in none of them follows under "Other"."""
UNLISTED = frozenset({"start"})
"""In no list: a chat app sends it when a person opens the chat."""
TERMINAL_ONLY = frozenset({"copy", "resume"})
_MEANT = {
    "resume": "continue open load reopen",
    "sessions": "conversations chats session threads",
    "retry": "again redo regenerate",
    "undo": "revert rewind rollback",
    "compact": "compress summarize summarise shrink",
    "copy": "clipboard yank",
    "cron": "jobs job reminders reminder remind schedule",
    "memory": "remember forget facts",
    "search": "find grep",
    "stop": "cancel abort halt kill",
    "help": "commands",
    "model": "models switch",
    "status": "info version about",
    "tasks": "agents subagents",
    "skills": "skill",
    "mcp": "servers",
    "approvals": "permissions allow",
    "context": "window",
    "usage": "tokens costs price budget",
    "history": "log messages",
    "goal": "goals plan",
}
_BY_SYNONYM = {word: name for name, words in _MEANT.items() for word in words.split()}
_NOT_SUGGESTED = frozenset({"new", "clear", "reset", "undo", "restart", "dream", "dream-restore", "raise", "approve"})
"""What a wrong guess would lose or spend something with."""


def suggest(typed: str, names: Iterable[str]) -> str:
    """Return what to say to somebody who typed an unknown command: another word for one, else similar names."""
    known, meant = set(names), _BY_SYNONYM.get(typed, "")
    similar = [meant] if meant in known else nearest(typed, sorted(known - _NOT_SUGGESTED), 2)
    return f"Did you mean {' or '.join('/' + name for name in similar)}?" if similar else "/help lists the commands."


def help_text(table: Mapping[str, CommandEntry], aliases: Mapping[str, str], *, at_terminal: bool) -> str:
    """List the commands of a table under headings. A chat app gets no columns, and names that it links whole."""
    hidden = UNLISTED if at_terminal else UNLISTED | TERMINAL_ONLY
    names = [name for name in table if name not in hidden]
    groups = {heading: [name for name in group if name in names] for heading, group in _GROUPS.items()}
    groups["Other"] = [name for name in names if not any(name in group for group in _GROUPS.values())]
    parts = ["Write anything to talk to nanobot."]
    for heading, group in groups.items():
        lines = [heading]
        for name in group:
            others = [alias for alias, meant in aliases.items() if meant == name]
            lines += _lines(name, table[name], others, at_terminal=at_terminal)
        parts += ["\n".join(lines)] if group else []
    return "\n\n".join(parts)


def _lines(name: str, entry: CommandEntry, aliases: Iterable[str], *, at_terminal: bool) -> Iterator[str]:
    rows = {f"/{name} {entry.arguments}".strip() if at_terminal else f"/{name.replace('-', '_')}": entry.text}
    if others := ", ".join(f"/{alias}" for alias in aliases):
        rows[others] = f"the same as /{name}"
    for call, text in rows.items():
        if not at_terminal:
            yield f"{call} - {text}"
        elif len(call) <= _COLUMN:
            yield f"  {call:<{_COLUMN}} {text}"
        else:
            yield f"  {call}"
            yield f"  {'':<{_COLUMN}} {text}"
