"""The table of slash commands and their handlers. Terminal and channels share it.

A command is the whole message, in any case, `/cmd@botname` too. It is never stored as conversation. The commands in
`AT_ONCE` run even during a turn; the others wait in the session's lane.
"""

import asyncio
import math
from dataclasses import replace
from functools import partial

from nanobot.agent.command import TYPED, Command, CommandCall, CommandEntry, is_from_owner, parse_command
from nanobot.agent.commands.context import CommandContext
from nanobot.agent.commands.context_report import ContextReport
from nanobot.agent.commands.help import TERMINAL_ONLY, UNLISTED, help_text, suggest
from nanobot.agent.commands.sessions import SessionCommands, format_messages
from nanobot.agent.engine.spec import Model
from nanobot.agent.scope import OWNERS, Scope
from nanobot.agent.session_summary import FORGOTTEN_KEY, session_summary
from nanobot.agent.window.storage import open_window
from nanobot.bus.events import Button, InboundMessage, MenuEntry
from nanobot.errors import NanobotError, StorageError
from nanobot.messages.types import Origin, least_trusted, text_of
from nanobot.session.manager import Session
from nanobot.usage.sums import format_sum
from nanobot.usage.types import format_dollars
from nanobot.utils.aio import finish
from nanobot.utils.text import clip_line, count_noun, duration

_MODELS_SHOWN = 30
_NOT_SET_UP = {"mcp": "No MCP server is set up. To add one, run in a terminal: nanobot mcp add NAME -- COMMAND"}
"""Replies for documented commands that are not offered in this setup."""

_START = """\
Hello, I am a personal assistant. Write to me as you would to a person: I answer questions, look things up, \
keep notes and remind you. I remember what you tell me here until you ask me to forget it."""
_START_BUTTONS = (
    Button("What can you do?", "What can you do for me?"),
    Button("Set a reminder", "I would like to set a reminder."),
    Button("Commands", "/help"),
)


class SlashCommands:
    AT_ONCE = frozenset({"stop", "status", "restart", "tasks", "goal", "dream", "cron"})

    ALONE = frozenset({"new", "model", "compact"})
    """In a shared session only owners may use these: they change it for everybody."""

    def __init__(self, context: CommandContext) -> None:
        self._context = context
        self._mcp_status = context.mcp_status or (lambda: "")
        owner_entry = partial(CommandEntry, for_owners=True)
        self._table = {
            "start": CommandEntry(self._start, "say hello", buttons=_START_BUTTONS),
            "new": CommandEntry(self._new, "start afresh (--all clears memory too)", "[--stop]"),
            "stop": CommandEntry(self._stop, "stop what is running"),
            "retry": CommandEntry(self._retry_nothing, "ask your last message again"),
            "copy": CommandEntry(self._copy_elsewhere, "copy the last answer"),
            "status": CommandEntry(self._status, "model, tokens, window, running turns"),
            "model": CommandEntry(self._model, "show or change the model", "NAME"),
            "history": CommandEntry(self._history, "the last messages", "N"),
            "context": CommandEntry(self._show_context, "what fills the context window"),
            "usage": CommandEntry(self._usage, "tokens, cost, and what limits leave"),
            "raise": owner_entry(self._raise, "raise a limit that is nearly reached", "DOLLARS"),
            "restart": owner_entry(self._restart, "restart the gateway"),
            "help": CommandEntry(self._help, "this list"),
            **SessionCommands(context).commands(),
        }
        if context.memory is not None:
            self._table["compact"] = CommandEntry(self._compact, "move old messages into memory")
        if context.pairing is not None:
            words = "list | approve | deny | revoke"
            self._table["pairing"] = owner_entry(self._pairing, "who may talk to the bot", words)
        if self._mcp_status():
            self._table["mcp"] = CommandEntry(self._mcp, "the state of the MCP servers")
        if context.approvals is not None:
            self._table["approve"] = owner_entry(self._answer_nothing_open, "allow what waits for you", "ID [always]")
            self._table["deny"] = owner_entry(self._answer_nothing_open, "refuse what waits for you", "ID")
            self._table["approvals"] = owner_entry(self._approvals, "permanent approvals", "list | forget RULE")
        self._table |= context.extra_commands
        self._aliases = {"clear": "new", "reset": "new", "cost": "usage"}

    def names(self) -> dict[str, str]:
        """Return each command with its description, aliases included, for the terminal."""
        descriptions = {name: entry.text for name, entry in self._table.items() if name not in UNLISTED}
        return descriptions | {alias: f"the same as /{name}" for alias, name in self._aliases.items()}

    def menu(self) -> tuple[MenuEntry, ...]:
        """Return the entries for platform menus. Owner commands are left out because everybody sees the menu."""
        hidden = UNLISTED | TERMINAL_ONLY
        entries = {n: entry for n, entry in self._table.items() if not entry.for_owners and n not in hidden}
        return tuple(MenuEntry(name, entry.text, entry.arguments) for name, entry in entries.items())

    def canonical(self, command: Command) -> str:
        """Resolve an alias to the command's own name."""
        return self._aliases.get(command.name, command.name)

    def buttons(self, text: str) -> tuple[Button, ...]:
        """Return the buttons below the reply to this message."""
        command = parse_command(text)
        entry = self._table.get(command.name) if command is not None else None
        return entry.buttons if entry is not None else ()

    async def answer(
        self, command: Command, session: Session, message: InboundMessage, *, attended: bool = False
    ) -> str:
        """Run a command and return the reply. Raises NanobotError only for storage failures."""
        name = self.canonical(command)
        if name not in self._table and name in _NOT_SET_UP:
            return self._mcp_status() or _NOT_SET_UP[name]
        if name not in self._table:
            return f"There is no command /{clip_line(command.name, 60)}. {suggest(command.name, self.names())}"
        entry = self._table[name]
        if entry.for_owners and not is_from_owner(message):
            return await self._refuse(name, message)
        if name in self.ALONE and not is_from_owner(message) and has_other_authors(session, message.sender_id):
            return f"Other people have written in this chat, so only an owner may use /{name}."
        return await entry.answer(
            CommandCall(session, command.argument, message, await self._context.scope_of(message), attended)
        )

    async def _refuse(self, name: str, message: InboundMessage) -> str:
        if message.origin not in TYPED:
            return f"/{name} must be typed by an owner."
        if self._context.pairing is not None:
            return await self._context.pairing.refuse(message.channel, message.sender_id, name)
        return f"Only an owner may use /{name}."

    async def _new(self, call: CommandCall) -> str:
        if "--all" in call.argument.split():
            return await finish(self._reset_all(call))
        stopped = await self._stop_background_work(call) if call.argument == "--stop" else ""
        archived = await finish(asyncio.to_thread(self._context.sessions.archive, call.session.key))
        self._context.status.forget(call.session.key)
        if archived is None:
            return f"This session is already new.{stopped}"
        if self._context.memory is not None:
            await self._context.memory.on_session_archived(call.session.key, archived)
        return f"Started a new session. The old one is archived: nanobot sessions show {archived.stem}{stopped}"

    async def _stop_background_work(self, call: CommandCall) -> str:
        context = self._context
        labels = [*await context.stop_subagents(call.message)] if context.stop_subagents is not None else []
        if context.goals is not None and (goal := await context.goals.stop_for(call.message)):
            labels.append(f"the goal ({goal})")
        return f" Stopped: {', '.join(labels)}." if labels else ""

    async def _reset_all(self, call: CommandCall) -> str:
        """Clear everything that a prompt of this chat would include from the past: all of it, or nothing on a storage
        failure.
        """
        context, key, count = self._context, call.session.key, call.session.message_count
        if context.goals is not None and (note := await context.goals.other_process_note(key)):
            return note
        summary = session_summary(call.session.metadata)
        cleared, restore = await context.memory.clear(call) if context.memory is not None else ([], None)
        try:
            archived = await asyncio.to_thread(context.sessions.archive, key)
        except NanobotError:
            if restore is not None:
                await restore()
            raise
        context.status.forget(key)
        if archived is not None:
            archive_note = (
                f"this conversation ({count_noun(count, 'message')}; archived: nanobot sessions show {archived.stem})"
            )
            cleared = [archive_note, *(["its session summary"] if summary else []), *cleared]
        if context.goals is not None and (goal := await context.goals.forget_session(key)):
            cleared.append(f"its goal ({goal})")
        cleared += await self._forget_subagents(call.session)
        if not cleared:
            return "There was nothing to clear."
        hint = " /memory undo restores the memory." if restore is not None else ""
        items = "\n".join(f"- {item}" for item in cleared)
        return f"Cleared:\n{items}\nYour own files (AGENTS.md, SOUL.md, USER.md) are unchanged.{hint}"

    async def _forget_subagents(self, session: Session) -> list[str]:
        """Stop the session's subagents, and record the reports under way so that they are dropped on arrival."""
        if self._context.forget_subagents is None:
            return []
        labels, reports = await self._context.forget_subagents(session.key)
        if reports:
            session.metadata[FORGOTTEN_KEY] = list(reports)
            await self._context.sessions.append(session)
        return [f"background tasks: {', '.join(labels)}"] if labels else []

    async def _stop(self, call: CommandCall) -> str:
        return "Nothing is running."  # the loop answers it while something is

    async def _status(self, call: CommandCall) -> str:
        return await self.status_of(call.session, call.scope)

    async def status_of(self, session: Session, scope: Scope = OWNERS) -> str:
        """Return the reply to `/status`. Reads only, so it is safe during a turn."""
        context, status = self._context, self._context.status
        try:
            model = await context.models.of_session(session)
            model_text, window = _describe_model(model), str(self.report(session, model, scope).use)
            notes = model.provider.notes()
        except NanobotError as error:
            model_text, window, notes = f"none: {error}", "unknown", []
        usage = status.usage_of(session.key)
        sent, cached = usage.get("prompt_tokens", 0), usage.get("cached_tokens", 0)
        share = f" ({cached / sent:.0%} cached)" if sent and cached else ""
        cost = status.cost_of(session.key)
        price = f", {format_dollars(cost)}" if cost else ""
        running = status.running if scope.is_owners else status.running & {session.key}
        waiting = context.approvals.waiting(session.key) if context.approvals is not None else []
        lines = [
            f"nanobot {context.version}, up {duration(status.uptime())}",
            f"Model: {model_text}",
            *(f"  {note}" for note in notes),
            f"Window: {window}",
            f"Tokens since the start: {sent:,} in{share}, {usage.get('completion_tokens', 0):,} out{price}",
            f"Messages: {session.message_count}",
            f"Running turns: {', '.join(sorted(running)) or 'none'}",
        ]
        lines += waiting
        if context.goals is not None:
            lines += context.goals.lines(session.key)
        if context.memory is not None:
            lines += context.memory.state(session.key, scope)
        if scope.is_owners:  # these may quote what another chat said
            lines += [f"Memory: {status.memory_note}"] if status.memory_note else []
            lines += [f"Plugins: {problem}" for problem in context.problems()]
            lines += [f"Last error: {status.last_error}"] if status.last_error else []
        return "\n".join(lines)

    async def _model(self, call: CommandCall) -> str:
        context = self._context
        if not call.argument:
            model, names = await context.models.of_session(call.session), await context.models.choices(call.session)
            shown = names[:_MODELS_SHOWN]
            rest = [f"and {len(names) - len(shown)} more"] if len(names) > len(shown) else []
            choices = "\n".join(f"  {name}" for name in [*shown, *rest])
            return f"Model for this session: {_describe_model(model)}.\nTo change it, type /model NAME:\n{choices}"
        try:
            model = await context.models.choose(
                call.session, None if call.argument.lower() == "default" else call.argument
            )
        except NanobotError as error:
            return str(error)
        await context.sessions.append(call.session)
        return f"Model for this session: {_describe_model(model)}."

    async def _history(self, call: CommandCall) -> str:
        count = int(call.argument[:9]) if call.argument.isdecimal() else 0 if call.argument else 10
        if not count:
            return "How many messages? For example: /history 20"
        text = await asyncio.to_thread(format_messages, call.session, count)
        return text or "This session has no messages yet."

    async def _show_context(self, call: CommandCall) -> str:
        model = await self._context.models.of_session(call.session)
        return self.report(call.session, model, call.scope).text()

    def report(self, session: Session, model: Model, scope: Scope = OWNERS) -> ContextReport:
        """Return what fills the context window of a session. May read older messages; raises StorageError."""
        context = self._context
        system = context.prompt.build_system_prompt(
            session_summary(session.metadata), scope=scope, began=session.created_at.date()
        )
        return ContextReport(
            model, system, context.tools, *open_window(session), context.status.last_usage(session.key)
        )

    async def _compact(self, call: CommandCall) -> str:
        """Consolidate now. The caller holds the session."""
        context, session = self._context, call.session
        assert context.memory is not None  # noqa: S101 else it is not in the table
        model = await context.models.of_session(session)
        before, count = self.report(session, model, call.scope).use, session.message_count - session.last_consolidated
        reason = await context.memory.consolidation.compact_now(session)
        moved = count - (session.message_count - session.last_consolidated)
        if not moved:
            return f"Nothing was moved into memory. {reason or 'The last messages of a conversation stay.'}"
        context.status.forget_last_usage(session.key)
        after = self.report(session, model, call.scope).use
        text = (
            f"Moved {count_noun(moved, 'message')} into memory. Window: {before.tokens:,} tokens before, now {after}."
        )
        return f"{text} {reason}".strip()

    async def _start(self, call: CommandCall) -> str:
        return _START

    async def _retry_nothing(self, call: CommandCall) -> str:
        return "There is no message of yours to ask again."  # else the pipeline asks it

    async def _copy_elsewhere(self, call: CommandCall) -> str:
        return "/copy works in the terminal chat only."  # which runs it itself

    async def _usage(self, call: CommandCall) -> str:
        spending = self._context.spending
        try:
            summary = await spending.summary(call.session.key)
        except StorageError as error:
            return str(error)
        if not summary.month.calls:
            return "No model calls this month."
        sums = {"This session": summary.session, "Today": summary.today, "This month": summary.month}
        lines = [f"{name}: {format_sum(used)}" for name, used in sums.items()]
        limits = await spending.limits_now()
        return "\n".join([*lines, *limits.left(summary.today.spent, summary.month.spent)])

    async def _raise(self, call: CommandCall) -> str:
        try:
            usd = float(call.argument.lstrip("$")) if call.argument else None
        except ValueError:
            usd = math.nan
        if usd is not None and not 0 < usd < math.inf:
            return f"How many dollars more? For example: /raise 2. {call.argument!r} is not an amount."
        try:
            lines = await self._context.spending.raise_limits(usd)
        except StorageError as error:
            return f"The limit is raised until nanobot restarts. {error}"
        return (
            "\n".join(lines)
            or "No limit in dollars is nearly reached, so nothing was raised. /usage shows what is left."
        )

    async def _pairing(self, call: CommandCall) -> str:
        assert self._context.pairing is not None  # noqa: S101 else it is not in the table
        return await self._context.pairing.answer(call.argument)

    async def _mcp(self, call: CommandCall) -> str:
        return self._mcp_status() or _NOT_SET_UP["mcp"]

    async def _approvals(self, call: CommandCall) -> str:
        assert self._context.approvals is not None  # noqa: S101 else it is not in the table
        return await self._context.approvals.answer(call.argument)

    async def _answer_nothing_open(self, call: CommandCall) -> str:
        return "No question is open in this session."  # the loop answers it while one does

    async def _restart(self, call: CommandCall) -> str:
        if self._context.restart is None:
            return "No gateway is running here. Leave and start nanobot again; the conversation is kept."
        self._context.restart()
        return "Restarting. Running work continues afterwards."

    async def _help(self, call: CommandCall) -> str:
        is_owner = is_from_owner(call.message)
        allowed = {name: entry for name, entry in self._table.items() if is_owner or not entry.for_owners}
        return help_text(allowed, self._aliases, at_terminal=call.message.origin is Origin.CLI)


def last_request(session: Session, message: InboundMessage) -> InboundMessage | None:
    """Return the last message that this sender typed in the session, to be asked again at the address of `message`;
    None if there is none. It is never trusted more than it was.
    """
    for row in reversed(session.get_history() if message.origin in TYPED else ()):
        if row["role"] != "user" or row.get("origin") not in TYPED:
            continue
        if _id_of(str(row.get("sender_id"))) == _id_of(message.sender_id):
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
