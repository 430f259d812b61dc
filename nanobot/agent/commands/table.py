"""The table of slash commands, their handlers and their help. Terminal and channels share it.

A command is the whole message, in any case, `/cmd@botname` too. It is never stored as conversation. The commands in
`AT_ONCE` run even during a turn; the others wait in the session's lane.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from nanobot import __version__
from nanobot.agent.approval.pending import ApprovalCommands
from nanobot.agent.command import TYPED, Command, CommandCall, CommandEntry, is_from_owner, parse_command
from nanobot.agent.commands.context_report import ContextReport
from nanobot.agent.commands.sessions import SessionCommands, format_messages
from nanobot.agent.context import ContextBuilder
from nanobot.agent.engine.spec import Model
from nanobot.agent.memory.service import MemoryService
from nanobot.agent.models import SessionModels
from nanobot.agent.scope import OWNERS, Scope
from nanobot.agent.session_summary import FORGOTTEN_KEY, session_summary
from nanobot.agent.status import AgentStatus
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.window.state import open_window
from nanobot.bus.events import Button, InboundMessage, MenuEntry
from nanobot.errors import NanobotError, StorageError
from nanobot.messages.types import Origin, least_trusted, text_of
from nanobot.pairing.commands import PairingCommands
from nanobot.providers.metering import Spending
from nanobot.session.manager import Session, SessionManager
from nanobot.usage.ledger import format_sum
from nanobot.usage.types import format_dollars
from nanobot.utils.aio import finish
from nanobot.utils.text import clip_line, count_noun, duration, nearest

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
_MODELS_SHOWN = 30
_ALIASES = {"clear": "new", "reset": "new", "cost": "usage"}
_NO_QUESTION = "No question is open in this session."
_NO_SERVERS = "No MCP server is set up. To add one, run in a terminal: nanobot mcp add NAME -- COMMAND"
_NOTHING_RAISED = "No limit in dollars is nearly reached, so nothing was raised. /usage shows what is left."
_START = """\
Hello, I am a personal assistant. Write to me as you would to a person: I answer questions, look things up, \
keep notes and remind you. I remember what you tell me here until you ask me to forget it."""
_START_BUTTONS = (
    Button("What can you do?", "What can you do for me?"),
    Button("Set a reminder", "I would like to set a reminder."),
    Button("Commands", "/help"),
)


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


class SessionWork(Protocol):
    """The goals and subagents of sessions."""

    async def stop_for(self, message: InboundMessage) -> tuple[str, list[str]]:
        """Stop what runs for the message's session as far as its sender may. Return the title of the goal, empty if
        none was stopped, and the labels of the subagents. Never raises.
        """

    async def other_process_note(self, session_key: str) -> str:
        """Return a sentence if another process works on this session's goal, else an empty string. Never raises."""

    async def forget_session(self, session_key: str) -> tuple[list[str], list[str]]:
        """Stop and delete all of it. Return what that was, and the keys of reports that may still arrive. Raises
        NanobotError.
        """

    async def recover(self, session_key: str | None = None) -> None:
        """Resume what a previous process left unfinished, in this session or in all. Never raises."""

    def status(self, session_key: str) -> list[str]:
        """Return the status of the session's goal, one line each. Does not block."""


@dataclass(slots=True)
class SlashCommands:
    """The commands of a bot, and the services that they use."""

    AT_ONCE = frozenset({"stop", "status", "restart", "tasks", "goal", "dream", "cron"})
    ALONE = frozenset({"new", "model", "compact"})
    """In a shared session only owners may use these: they change it for everybody."""

    sessions: SessionManager
    models: SessionModels
    prompt: ContextBuilder
    tools: ToolRegistry
    status: AgentStatus
    spending: Spending
    pairing: PairingCommands
    approvals: ApprovalCommands
    memory: MemoryService
    work: SessionWork
    scope_of: Callable[[InboundMessage], Awaitable[Scope]]
    mcp_status: Callable[[], str]
    """Returns the status of each MCP server, empty without servers."""
    problems: Callable[[], Sequence[str]]
    """Returns the problems of plugins and hooks, one line each."""
    restart: Callable[[], None] | None
    """Schedules a clean shutdown and restart of the gateway. None outside a gateway."""
    more: Mapping[str, CommandEntry]
    """Commands of other packages, by name."""
    _table: dict[str, CommandEntry] = field(init=False)

    def __post_init__(self) -> None:
        entry, access = partial(CommandEntry, for_owners=True), "list | approve | deny | revoke"
        # the loop answers `/stop`, `/approve` and `/deny` while there is something to stop or to answer, the pipeline
        # `/retry` while there is a message
        self._table = {
            "start": CommandEntry(_replying(_START), "say hello", buttons=_START_BUTTONS),
            "new": CommandEntry(self._new, "start afresh (--all clears memory too)", "[--stop]"),
            "stop": CommandEntry(_replying("Nothing is running."), "stop what is running"),
            "retry": CommandEntry(
                _replying("There is no message of yours to ask again."), "ask your last message again"
            ),
            "copy": CommandEntry(_replying("/copy works in the terminal chat only."), "copy the last answer"),
            "status": CommandEntry(self._status, "model, tokens, window, running turns"),
            "model": CommandEntry(self._model, "show or change the model", "NAME"),
            "history": CommandEntry(self._history, "the last messages", "N"),
            "context": CommandEntry(self._context, "what fills the context window"),
            "compact": CommandEntry(self._compact, "move old messages into memory"),
            "usage": CommandEntry(self._usage, "tokens, cost, and what limits leave"),
            "raise": entry(self._raise, "raise a limit that is nearly reached", "DOLLARS"),
            "restart": entry(self._restart, "restart the gateway"),
            "help": CommandEntry(self._help, "this list"),
            "pairing": entry(lambda call: self.pairing.answer(call.argument), "who may talk to the bot", access),
            "mcp": CommandEntry(self._mcp, "the state of the MCP servers"),
            "approve": entry(_replying(_NO_QUESTION), "allow what waits for you", "ID [always]"),
            "deny": entry(_replying(_NO_QUESTION), "refuse what waits for you", "ID"),
            "approvals": entry(
                lambda call: self.approvals.answer(call.argument), "permanent approvals", "list | forget RULE"
            ),
            **SessionCommands(self.sessions, self.status, self.memory).commands(),
            **self.more,
        }

    def names(self) -> dict[str, str]:
        """Return each command with its description, aliases included, for the terminal."""
        descriptions = {name: entry.text for name, entry in self._table.items() if name not in UNLISTED}
        return descriptions | {alias: f"the same as /{name}" for alias, name in _ALIASES.items()}

    def menu(self) -> tuple[MenuEntry, ...]:
        """Return the entries for platform menus. Owner commands are left out because everybody sees the menu."""
        hidden = UNLISTED | TERMINAL_ONLY
        entries = {n: entry for n, entry in self._table.items() if not entry.for_owners and n not in hidden}
        return tuple(MenuEntry(name, entry.text, entry.arguments) for name, entry in entries.items())

    def canonical(self, command: Command) -> str:
        """Resolve an alias to the command's own name."""
        return _ALIASES.get(command.name, command.name)

    def buttons(self, text: str) -> tuple[Button, ...]:
        """Return the buttons below the reply to this message."""
        command = parse_command(text)
        entry = self._table.get(command.name) if command is not None else None
        return entry.buttons if entry is not None else ()

    async def answer(
        self, command: Command, session: Session, message: InboundMessage, *, attended: bool = False
    ) -> str:
        """Run a command and return the reply. Raises NanobotError only for storage failures."""
        name, is_owner = self.canonical(command), is_from_owner(message)
        if (entry := self._table.get(name)) is None:
            return f"There is no command /{clip_line(command.name, 60)}. {suggest(command.name, self.names())}"
        if entry.for_owners and not is_owner:
            if message.origin not in TYPED:
                return f"/{name} must be typed by an owner."
            return await self.pairing.refuse(message.channel, message.sender_id, name)
        if name in self.ALONE and not is_owner and has_other_authors(session, message.sender_id):
            return f"Other people have written in this chat, so only an owner may use /{name}."
        return await entry.answer(
            CommandCall(session, command.argument, message, await self.scope_of(message), attended)
        )

    async def _new(self, call: CommandCall) -> str:
        if "--all" in call.argument.split():
            return await finish(self._reset_all(call))
        goal, labels = await self.work.stop_for(call.message) if call.argument == "--stop" else ("", [])
        names = [*labels, *([f"the goal ({goal})"] if goal else [])]
        stopped = f" Stopped: {', '.join(names)}." if names else ""
        archived = await finish(asyncio.to_thread(self.sessions.archive, call.session.key))
        self.status.forget(call.session.key)
        if archived is None:
            return f"This session is already new.{stopped}"
        await self.memory.on_session_archived(call.session.key, archived)
        return f"Started a new session. The old one is archived: nanobot sessions show {archived.stem}{stopped}"

    async def _reset_all(self, call: CommandCall) -> str:
        """Clear everything that a prompt of this chat would include from the past: all of it, or nothing on a storage
        failure.
        """
        session, key, messages = call.session, call.session.key, call.session.message_count
        if note := await self.work.other_process_note(key):
            return note
        summary = session_summary(session.metadata)
        cleared, restore = await self.memory.clear(call)
        try:
            archived = await asyncio.to_thread(self.sessions.archive, key)
        except NanobotError:
            if restore is not None:
                await restore()
            raise
        self.status.forget(key)
        if archived is not None:
            size, file = count_noun(messages, "message"), f"archived: nanobot sessions show {archived.stem}"
            cleared = [f"this conversation ({size}; {file})", *(["its session summary"] if summary else []), *cleared]
        stopped, reports = await self.work.forget_session(key)
        cleared += stopped
        if reports:  # under way: they are dropped on arrival
            session.metadata[FORGOTTEN_KEY] = list(reports)
            await self.sessions.append(session)
        if not cleared:
            return "There was nothing to clear."
        hint = " /memory undo restores the memory." if restore is not None else ""
        items = "\n".join(f"- {item}" for item in cleared)
        return f"Cleared:\n{items}\nYour own files (AGENTS.md, SOUL.md, USER.md) are unchanged.{hint}"

    async def _status(self, call: CommandCall) -> str:
        """Reads only, so it is safe during a turn."""
        session, status, is_owners = call.session, self.status, call.scope.is_owners
        try:
            model = await self.models.of_session(session)
            model_text, window = _describe_model(model), str(self.report(session, model, call.scope).use)
            notes = model.provider.notes()
        except NanobotError as error:
            model_text, window, notes = f"none: {error}", "unknown", []
        usage, cost = status.usage_of(session.key), status.cost_of(session.key)
        sent, cached = usage.get("prompt_tokens", 0), usage.get("cached_tokens", 0)
        share = f" ({cached / sent:.0%} cached)" if sent and cached else ""
        price = f", {format_dollars(cost)}" if cost else ""
        running = status.running if is_owners else status.running & {session.key}
        lines = [
            f"nanobot {__version__}, up {duration(status.uptime())}",
            f"Model: {model_text}",
            *(f"  {note}" for note in notes),
            f"Window: {window}",
            f"Tokens since the start: {sent:,} in{share}, {usage.get('completion_tokens', 0):,} out{price}",
            f"Messages: {session.message_count}",
            f"Running turns: {', '.join(sorted(running)) or 'none'}",
            *self.approvals.waiting(session.key),
            *self.work.status(session.key),
            *self.memory.state(session, call.scope),
        ]
        if is_owners:  # these may quote what another chat said
            lines += [f"Memory: {status.memory_note}"] if status.memory_note else []
            lines += [f"Plugins: {problem}" for problem in self.problems()]
            lines += [f"Last error: {status.last_error}"] if status.last_error else []
        return "\n".join(lines)

    async def _model(self, call: CommandCall) -> str:
        if not call.argument:
            model, names = await self.models.of_session(call.session), await self.models.choices(call.session)
            choices = [f"  {name}" for name in names[:_MODELS_SHOWN]]
            choices += [f"and {len(names) - _MODELS_SHOWN} more"] if len(names) > _MODELS_SHOWN else []
            listing = "\n".join(choices)
            return f"Model for this session: {_describe_model(model)}.\nTo change it, type /model NAME:\n{listing}"
        name = None if call.argument.lower() == "default" else call.argument
        try:
            model = await self.models.choose(call.session, name)
        except NanobotError as error:
            return str(error)
        await self.sessions.append(call.session)
        return f"Model for this session: {_describe_model(model)}."

    async def _history(self, call: CommandCall) -> str:
        count = int(call.argument[:9]) if call.argument.isdecimal() else 0 if call.argument else 10
        if not count:
            return "How many messages? For example: /history 20"
        text = await asyncio.to_thread(format_messages, call.session, count)
        return text or "This session has no messages yet."

    async def _context(self, call: CommandCall) -> str:
        model = await self.models.of_session(call.session)
        return self.report(call.session, model, call.scope).text()

    def report(self, session: Session, model: Model, scope: Scope = OWNERS) -> ContextReport:
        """Return what fills the context window of a session. May read older messages; raises StorageError."""
        summary, began = session_summary(session.metadata), session.created_at.date()
        system = self.prompt.build_system_prompt(summary, scope=scope, began=began)
        rows, window = open_window(session)
        return ContextReport(model, system, self.tools, rows, window, self.status.last_usage(session.key))

    async def _compact(self, call: CommandCall) -> str:
        """Consolidate now. The caller holds the session."""
        session, model = call.session, await self.models.of_session(call.session)
        before, count = self.report(session, model, call.scope).use, session.message_count - session.last_consolidated
        reason = await self.memory.consolidation.compact_now(session)
        moved = count - (session.message_count - session.last_consolidated)
        if not moved:
            return f"Nothing was moved into memory. {reason or 'The last messages of a conversation stay.'}"
        self.status.forget_last_usage(session.key)
        after, moved_text = self.report(session, model, call.scope).use, count_noun(moved, "message")
        text = f"Moved {moved_text} into memory. Window: {before.tokens:,} tokens before, now {after}."
        return f"{text} {reason}".strip()

    async def _usage(self, call: CommandCall) -> str:
        try:
            summary = await self.spending.summary(call.session.key)
        except StorageError as error:
            return str(error)
        if not summary.month.calls:
            return "No model calls this month."
        sums = {"This session": summary.session, "Today": summary.today, "This month": summary.month}
        limits = await self.spending.budget.limits_now()
        lines = [f"{name}: {format_sum(used)}" for name, used in sums.items()]
        return "\n".join([*lines, *limits.left(summary.today.spent, summary.month.spent)])

    async def _raise(self, call: CommandCall) -> str:
        try:
            usd = float(call.argument.lstrip("$")) if call.argument else None
        except ValueError:
            usd = math.nan
        if usd is not None and not 0 < usd < math.inf:
            return f"How many dollars more? For example: /raise 2. {call.argument!r} is not an amount."
        try:
            lines = await self.spending.budget.raise_by(usd)
        except StorageError as error:
            return f"The limit is raised until nanobot restarts. {error}"
        return "\n".join(lines) or _NOTHING_RAISED

    async def _mcp(self, call: CommandCall) -> str:
        return self.mcp_status() or _NO_SERVERS

    async def _restart(self, call: CommandCall) -> str:
        if self.restart is None:
            return "No gateway is running here. Leave and start nanobot again; the conversation is kept."
        self.restart()
        return "Restarting. Running work continues afterwards."

    async def _help(self, call: CommandCall) -> str:
        is_owner = is_from_owner(call.message)
        allowed = {name: entry for name, entry in self._table.items() if is_owner or not entry.for_owners}
        return help_text(allowed, _ALIASES, at_terminal=call.message.origin is Origin.CLI)


def _replying(text: str) -> Callable[[CommandCall], Awaitable[str]]:
    """Return a command that always gives this reply."""

    async def answer(call: CommandCall) -> str:
        return text

    return answer


def last_request(session: Session, message: InboundMessage) -> InboundMessage | None:
    """Return the last message that this sender typed in the session, to be asked again at the address of `message`;
    None if there is none. It is never trusted more than it was.
    """
    for row in reversed(session.get_history() if message.origin in TYPED else ()):
        is_typed = row["role"] == "user" and row.get("origin") in TYPED
        if is_typed and _id_of(str(row.get("sender_id"))) == _id_of(message.sender_id):
            provenance = least_trusted([row.get("provenance", message.provenance), message.provenance])
            text, media = text_of(row["content"]), list(row.get("media", ()))
            return replace(message, content=text, media=media, provenance=provenance)
    return None


def has_other_authors(session: Session, sender_id: str) -> bool:
    """Whether another person's messages are in the history a model still sees."""
    people = [row for row in session.get_history() if row.get("origin") == Origin.USER and row.get("sender_id")]
    return any(_id_of(str(row["sender_id"])) != _id_of(sender_id) for row in people)


def _id_of(sender_id: str) -> str:
    """Strip the display names that a channel may append to an id."""
    return sender_id.partition("|")[0]


def _describe_model(model: Model) -> str:
    return f"{model.name} ({model.provider_name})"
