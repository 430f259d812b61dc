"""Slash commands: words to us, not to the model. Chat and channels share this one table.

A command is the whole message, in any case, `/cmd@botname` too. It is never stored as conversation. `/stop`, `/status`
and `/restart` act at once, even while a turn runs; the others wait their turn in the lane.
"""

import asyncio
import math
import re
from dataclasses import dataclass
from functools import partial

from nanobot.agent.context_report import ContextReport
from nanobot.agent.desk import Asked, CommandEntry, Desk
from nanobot.agent.handover import FORGOTTEN, handover_of
from nanobot.agent.run.spec import Model
from nanobot.agent.scope import OWNERS, Scope
from nanobot.agent.session_window import open_window
from nanobot.bus.events import InboundMessage, MenuEntry
from nanobot.errors import NanobotError
from nanobot.messages.shown import seen_text
from nanobot.messages.types import Origin, Provenance
from nanobot.session.manager import Session
from nanobot.usage.sums import said
from nanobot.usage.types import dollars
from nanobot.utils.aio import finish
from nanobot.utils.text import clip_line, counted, nearest

_COMMAND = re.compile(r"^/([a-z][a-z_-]*)(?:@\w+)?(?:\s+(.*))?$", re.IGNORECASE | re.DOTALL)

_NOT_SET_UP = {"mcp": "No MCP server is set up. The config's tools.mcpServers names them."}
"""What is said of a command that guides speak of, where there is nothing for it and so no such command."""

TYPED = (Origin.USER, Origin.CLI, Origin.API)
"""Why a message exists that somebody wrote."""


@dataclass(frozen=True, slots=True)
class Command:
    """A message that is a word to us."""

    name: str
    argument: str = ""


def parse_command(text: str) -> Command | None:
    """The command a message is, or None where it is for the model. `/etc/hosts is odd` is for the model. A menu that
    spells no hyphen (Telegram's) says `/dream_log`.
    """
    match = _COMMAND.match(text.strip())
    return Command(match[1].lower().replace("_", "-"), (match[2] or "").strip()) if match else None


class SlashCommands:
    """The table, and the answer to each."""

    AT_ONCE = frozenset({"stop", "status", "restart", "tasks", "goal", "dream"})

    ALONE = frozenset({"new", "model"})
    """For an owner, and for one who has a conversation alone: of a shared one they change what is everybody's."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        owners = partial(CommandEntry, for_owners=True)
        self._table = {
            "new": CommandEntry(
                self._new, "start a fresh session; the old one is kept (/reset --all: memory too)", "[--stop]"
            ),
            "stop": CommandEntry(self._stop, "stop the running turn"),
            "status": CommandEntry(self._status, "model, tokens, window, what is running"),
            "model": CommandEntry(self._model, "show or change this session's model", "NAME"),
            "history": CommandEntry(self._history, "the last messages", "N"),
            "context": CommandEntry(self._context, "tokens by part of the prompt"),
            "usage": CommandEntry(self._usage, "tokens and money: this session, today, this month, what is left"),
            "raise": owners(self._raise, "let what a limit stopped go on: /raise, or /raise DOLLARS (owner only)"),
            "restart": owners(self._restart, "end the gateway and begin it anew (owner only)"),
            "help": CommandEntry(self._help, "this list"),
        }
        if desk.pairing is not None:
            words = "who may speak: /pairing list, approve CODE, deny CODE, revoke CHANNEL ID (owner only)"
            self._table["pairing"] = owners(self._pairing, words)
        if desk.servers is not None:
            words = "the MCP servers: which are connected, and what is wrong with others"
            self._table["mcp"] = CommandEntry(self._mcp, words)
        if desk.approvals is not None:
            self._table["approve"] = owners(self._no_question, "say yes to what waits for your answer", "ID [always]")
            self._table["deny"] = owners(self._no_question, "say no to it", "ID")
            words = "what you said always to: /approvals list, /approvals forget RULE (owner only)"
            self._table["approvals"] = owners(self._approvals, words)
        self._table |= desk.more
        self._aliases = {"clear": "new", "reset": "new"}

    def names(self) -> dict[str, str]:
        """Each command and what it does, aliases included."""
        shown = {
            name: f"{entry.text}: /{name} {entry.words}" if entry.words else entry.text
            for name, entry in self._table.items()
        }
        return shown | {alias: f"the same as /{name}" for alias, name in self._aliases.items()}

    def menu(self) -> tuple[MenuEntry, ...]:
        """What menus of platforms offer. Not what only an owner may say: everybody sees them, and typing works too."""
        entries = {name: entry for name, entry in self._table.items() if not entry.for_owners}
        return tuple(MenuEntry(name, entry.text, entry.words) for name, entry in entries.items())

    def canonical(self, command: Command) -> str:
        """The command's own name where it was called by another."""
        return self._aliases.get(command.name, command.name)

    async def answer(
        self, command: Command, session: Session, message: InboundMessage, *, attended: bool = False
    ) -> str:
        """Do what this message commands; what a person is told. Raises NanobotError only where storage does."""
        name = self.canonical(command)
        if name not in self._table and name in _NOT_SET_UP:
            return _NOT_SET_UP[name]
        if name not in self._table:
            near = nearest(command.name, self.names())
            hint = f"Did you mean {' or '.join('/' + one for one in near)}?" if near else "Type /help for the list."
            return f"There is no command /{clip_line(command.name, 60)}. {hint}"
        entry = self._table[name]
        if entry.for_owners and not is_from_owner(message):
            return await self._refused(name, message)
        if name in self.ALONE and not is_from_owner(message) and others_wrote(session, message.sender_id):
            return f"Others have written here too: only an owner may say /{name}."
        return await entry.answer(Asked(session, command.argument, message, self._desk.scope_of(message), attended))

    async def _refused(self, name: str, message: InboundMessage) -> str:
        if message.origin not in TYPED:
            return f"/{name} has to be typed by an owner."
        if self._desk.pairing is not None:
            return await self._desk.pairing.refuse(message.channel, message.sender_id)
        return f"Only an owner may say /{name}."

    async def _new(self, asked: Asked) -> str:
        if "--all" in asked.argument.split():
            return await finish(self._reset_all(asked))
        stopped = await self._stopped_with(asked) if asked.argument == "--stop" else ""
        archived = await finish(asyncio.to_thread(self._desk.sessions.archive, asked.session.key))
        self._desk.vitals.forget(asked.session.key)
        if archived is None:
            return f"This session is fresh already.{stopped}"
        if self._desk.memory is not None:
            await self._desk.memory.archived(asked.session.key, archived)
        return f"A fresh session begins. The old one is kept: nanobot sessions show {archived.stem}{stopped}"

    async def _stopped_with(self, asked: Asked) -> str:
        """Stop what works for the session in the background."""
        desk = self._desk
        labels = [*await desk.stop_children(asked.message)] if desk.stop_children is not None else []
        if desk.goals is not None and (goal := await desk.goals.stop_of(asked.message)):
            labels.append(f"the goal ({goal})")
        return f" Stopped: {', '.join(labels)}." if labels else ""

    async def _reset_all(self, asked: Asked) -> str:
        """Everything that a prompt of this chat would say of the past: all of it, or nothing where the disk refuses."""
        desk, key, count = self._desk, asked.session.key, asked.session.message_count
        if desk.goals is not None and (elsewhere := await desk.goals.elsewhere(key)):
            return elsewhere
        note = handover_of(asked.session.metadata)
        cleared, restore = await desk.memory.clear(asked) if desk.memory is not None else ([], None)
        try:
            archived = await asyncio.to_thread(desk.sessions.archive, key)
        except NanobotError:
            if restore is not None:
                await restore()
            raise
        desk.vitals.forget(key)
        if archived is not None:
            kept = f"this conversation ({counted(count, 'message')}; kept: nanobot sessions show {archived.stem})"
            cleared = [kept, *(["its note on where it stands"] if note else []), *cleared]
        if desk.goals is not None and (goal := await desk.goals.forget_of(key)):
            cleared.append(f"its goal ({goal})")
        cleared += await self._forget_children(asked.session)
        if not cleared:
            return "There was nothing to clear."
        back = " /memory undo brings the memory back." if restore is not None else ""
        what = "\n".join(f"- {one}" for one in cleared)
        return f"Cleared:\n{what}\nThe files that you write yourself (AGENTS.md, SOUL.md, USER.md) stay.{back}"

    async def _forget_children(self, session: Session) -> list[str]:
        """Stop what works for it; a report that is on its way already is known when it comes."""
        if self._desk.forget_children is None:
            return []
        labels, reports = await self._desk.forget_children(session.key)
        if reports:
            session.metadata[FORGOTTEN] = list(reports)
            await self._desk.sessions.append(session)
        return [f"what worked in the background: {', '.join(labels)}"] if labels else []

    async def _stop(self, asked: Asked) -> str:
        return "Nothing is running."  # the loop answers it while something is

    async def _status(self, asked: Asked) -> str:
        return await self.status_of(asked.session, asked.scope)

    async def status_of(self, session: Session, scope: Scope = OWNERS) -> str:
        """The answer to /status; it reads only, so that it may be given while a turn runs."""
        desk, vitals = self._desk, self._desk.vitals
        try:
            model = await desk.models.get(session.metadata.get("model"))
            asked = _described(model)
            window = f"{self._window_used(session, scope, model)} of {model.limits.window_tokens:,} tokens"
            notes = model.provider.notes()
        except NanobotError as error:
            asked, window, notes = f"none: {error}", "unknown", []
        usage = vitals.usage_of(session.key)
        sent, cached = usage.get("prompt_tokens", 0), usage.get("cached_tokens", 0)
        share = f" ({cached / sent:.0%} cached)" if sent and cached else ""
        cost = vitals.cost_of(session.key)
        price = f", {dollars(cost)}" if cost else ""
        running = vitals.running if scope.is_owners else vitals.running & {session.key}
        waiting = desk.approvals.waiting(session.key) if desk.approvals is not None else []
        lines = [
            f"nanobot {desk.version}, up {_span(vitals.uptime())}",
            f"Model: {asked}",
            *(f"  {note}" for note in notes),
            f"Tokens: {sent:,} in{share}, {usage.get('completion_tokens', 0):,} out{price}",
            f"Window: {window}",
            f"Messages: {session.message_count}",
            f"Running turns: {', '.join(sorted(running)) or 'none'}",
        ]
        lines += waiting
        if desk.goals is not None:
            lines += desk.goals.lines(session.key)
        if desk.memory is not None:
            lines += desk.memory.state(session.key, scope)
        if scope.is_owners:  # these may quote what another chat said
            lines += [f"Memory: {vitals.memory_note}"] if vitals.memory_note else []
            lines += [f"Plugins: {trouble}" for trouble in desk.troubles()]
            lines += [f"Last error: {vitals.last_error}"] if vitals.last_error else []
        return "\n".join(lines)

    def _window_used(self, session: Session, scope: Scope, model: Model) -> str:
        """What the last request weighed; about what the next one does, where no model has counted yet."""
        used = self._desk.vitals.window_used(session.key)
        if used or not session.message_count:
            return f"{used:,}"
        return f"about {self._report_of(session, scope, model).tokens:,}"

    async def _model(self, asked: Asked) -> str:
        desk = self._desk
        if not asked.argument:
            model = await desk.models.get(asked.session.metadata.get("model"))
            choices = "\n".join(f"  {name}" for name in desk.models.names())
            return f"This session asks {_described(model)}.\n/model NAME changes it:\n{choices}"
        wanted = None if asked.argument.lower() == "default" else asked.argument
        try:
            model = await desk.models.get(wanted)
        except NanobotError as error:
            return str(error)
        if wanted is None:
            asked.session.metadata.pop("model", None)
        else:
            asked.session.metadata["model"] = wanted
        await desk.sessions.append(asked.session)
        return f"From now on this session asks {_described(model)}."

    async def _history(self, asked: Asked) -> str:
        if asked.argument and not asked.argument.isdigit():
            return "How many messages? For example: /history 20"
        messages = await asyncio.to_thread(lambda: asked.session.messages)
        shown = [row for row in messages if row.get("role") in ("user", "assistant") and seen_text(row)]
        lines = [f"{'you' if row['role'] == 'user' else 'bot'}: {seen_text(row)}" for row in shown]
        return "\n".join(lines[-int(asked.argument or 10) :]) or "Nothing was said in this session yet."

    async def _context(self, asked: Asked) -> str:
        model = await self._desk.models.get(asked.session.metadata.get("model"))
        return self._report_of(asked.session, asked.scope, model).text()

    def _report_of(self, session: Session, scope: Scope, model: Model) -> ContextReport:
        desk = self._desk
        system = desk.prompt.build_system_prompt(
            handover_of(session.metadata), scope=scope, began=session.created_at.date()
        )
        return ContextReport(model, system, desk.tools, *open_window(session), desk.vitals.last_usage(session.key))

    async def _usage(self, asked: Asked) -> str:
        spending = self._desk.spending
        try:
            summary = await spending.summary(asked.session.key)
        except OSError as error:
            return f"What was used cannot be read: {error.strerror or error}: {error.filename}"
        if not summary.month.calls:
            return "No model was asked this month."
        sums = {"This session": summary.session, "Today": summary.today, "This month": summary.month}
        lines = [f"{name}: {said(used)}" for name, used in sums.items()]
        limits = await spending.limits_now()
        return "\n".join([*lines, *limits.left(summary.today.spent, summary.month.spent)])

    async def _raise(self, asked: Asked) -> str:
        try:
            usd = float(asked.argument.lstrip("$")) if asked.argument else None
        except ValueError:
            usd = math.nan
        if usd is not None and not 0 < usd < math.inf:
            return f"How many dollars more? For example /raise 2; {asked.argument!r} is no sum."
        try:
            lines = await self._desk.spending.raise_limits(usd)
        except OSError as error:
            return f"That cannot be written down: {error.strerror or error}: {error.filename}"
        return "\n".join(lines) or "No limit in dollars is near; nothing was raised. /usage shows what is left."

    async def _pairing(self, asked: Asked) -> str:
        assert self._desk.pairing is not None  # noqa: S101 else it is not in the table
        return await self._desk.pairing.answer(asked.argument)

    async def _mcp(self, asked: Asked) -> str:
        assert self._desk.servers is not None  # noqa: S101 else it is not in the table
        return self._desk.servers()

    async def _approvals(self, asked: Asked) -> str:
        assert self._desk.approvals is not None  # noqa: S101 else it is not in the table
        return await self._desk.approvals.answer(asked.argument)

    async def _no_question(self, asked: Asked) -> str:
        return "No question waits for an answer here."  # the loop answers it while one does

    async def _restart(self, asked: Asked) -> str:
        if self._desk.restart is None:
            return "No gateway runs here. Leave, and start nanobot again; this conversation goes on where it is."
        self._desk.restart()
        return "Restarting. What is being worked on goes on after that."

    async def _help(self, asked: Asked) -> str:
        rows = "\n".join(f"/{name:<9} {text}" for name, text in self.names().items())
        return f"Write anything; these words are for nanobot itself:\n{rows}"


def is_from_owner(message: InboundMessage) -> bool:
    """Whether an owner typed it. A job speaks in the owner's name too, with words a model may have chosen."""
    return message.provenance is Provenance.OWNER and message.origin in TYPED


def others_wrote(session: Session, sender_id: str) -> bool:
    """Whether somebody else has written in what a model may still see of this session."""
    people = [row for row in session.get_history() if row.get("origin") == Origin.USER and row.get("sender_id")]
    return any(_id_of(str(row["sender_id"])) != _id_of(sender_id) for row in people)


def _id_of(sender_id: str) -> str:
    """Without the names that a channel may say behind it."""
    return sender_id.partition("|")[0]


def _described(model: Model) -> str:
    return f"{model.name} ({model.provider_name}: {model.reason})"


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
