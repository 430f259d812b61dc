"""The commands of `nanobot`: a table, one line a command. A new command is its own file and a line here.

A command's file is imported when the command runs or shows its help, so `nanobot --help` imports no engine.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from nanobot import __version__
from nanobot.errors import NanobotError
from nanobot.plugins import load

COMMANDS = {
    "onboard": ("nanobot.cli.onboard:onboard", "Set up a model, the workspace and channels."),
    "agent": ("nanobot.cli.agent:agent", "Talk with the agent; with -m, one answer and out."),
    "gateway run": ("nanobot.cli.gateway:run", "Run the gateway here; `nanobot gateway` alone does this."),
    "gateway status": ("nanobot.cli.service:status", "Whether the gateway runs and is well."),
    "gateway logs": ("nanobot.cli.service:logs", "The last lines of its log."),
    "gateway install": ("nanobot.cli.service:install", "Make it a service of yours (systemd, launchd)."),
    "gateway uninstall": ("nanobot.cli.service:uninstall", "Take the service away."),
    "gateway start": ("nanobot.cli.service:start", "Start the service."),
    "gateway stop": ("nanobot.cli.service:stop", "Stop the gateway in good order."),
    "gateway restart": ("nanobot.cli.service:restart", "Stop it in good order and start it again."),
    "channels status": ("nanobot.cli.channels:status", "How each channel is, by what came and went."),
    "channels login": ("nanobot.cli.channels:login", "Set a channel up by questions, or try what is set up."),
    "channels test": ("nanobot.cli.channels:test", "Send a message by a channel, to try it."),
    "send": ("nanobot.cli.send:send", "Send a message through the running gateway."),
    "status": ("nanobot.cli.status:status", "What is configured, and where each value comes from."),
    "doctor": ("nanobot.cli.doctor:doctor", "Find what is wrong or stands open; with --fix, repair it."),
    "pairing list": ("nanobot.cli.pairing:list_", "Who may speak, and who waits with a code."),
    "pairing approve": ("nanobot.cli.pairing:approve", "Let in who has this code."),
    "pairing deny": ("nanobot.cli.pairing:deny", "Do not let in who has this code."),
    "pairing revoke": ("nanobot.cli.pairing:revoke", "Forget somebody who paired."),
    "approvals list": ("nanobot.cli.approvals:list_", "What you said always to, and until when."),
    "approvals forget": ("nanobot.cli.approvals:forget", "Ask about one of these again."),
    "sessions list": ("nanobot.cli.sessions:list_", "All conversations, the newest first."),
    "sessions show": ("nanobot.cli.sessions:show", "One conversation, to read."),
    "sessions search": ("nanobot.cli.sessions:search", "Where a text occurs in all conversations."),
    "sessions import": ("nanobot.cli.session_import:import_", "Take in a conversation from a file."),
    "sessions export": ("nanobot.cli.sessions:export", "One conversation as JSON lines or Markdown."),
    "sessions delete": ("nanobot.cli.sessions:delete", "Delete one conversation for good."),
    "replay": ("nanobot.cli.replay:replay", "What happened in a turn, step by step; again with another model."),
    "provider list": ("nanobot.cli.providers:list_", "Providers of models: keys, addresses, default models."),
    "provider login": ("nanobot.cli.login:login", "Log in to a provider that is reached by an account."),
    "provider logout": ("nanobot.cli.login:logout", "Forget the tokens of an account."),
    "cron list": ("nanobot.cli.cron:list_", "Jobs and reminders, those first that run first."),
    "cron add": ("nanobot.cli.cron:add", "Make a job: once, every so often, or by a cron expression."),
    "cron remove": ("nanobot.cli.cron:remove", "Remove a job."),
    "cron enable": ("nanobot.cli.cron:enable", "Switch a job on."),
    "cron disable": ("nanobot.cli.cron:disable", "Switch a job off."),
    "cron run": ("nanobot.cli.cron:run", "Run a job now."),
    "cron test": ("nanobot.cli.cron:test", "Where a job would post; with --send, a word there."),
    "cron history": ("nanobot.cli.cron:history", "What became of each due instant."),
    "cron rehearse": ("nanobot.cli.cron:rehearse", "What would fire in the days to come."),
    "memory show": ("nanobot.cli.memory:show", "What is remembered, each fact with its id."),
    "memory search": ("nanobot.cli.memory:search", "Where words stand in facts, archive, log and notes."),
    "memory why": ("nanobot.cli.memory:why", "Where a fact came from."),
    "memory log": ("nanobot.cli.memory:log", "Every change of the memory."),
    "memory forget": ("nanobot.cli.memory:forget", "Take a fact out."),
    "memory undo": ("nanobot.cli.memory:undo", "Take the last change back."),
    "memory dream": ("nanobot.cli.dream:dream", "Tidy it from what is new, and show what changed."),
    "memory dream-log": ("nanobot.cli.dream:log", "The last times it was tidied."),
    "memory dream-restore": ("nanobot.cli.dream:restore", "Take it back to before such a pass."),
    "skills list": ("nanobot.cli.skills:list_", "All skills, and whether each can be used here."),
    "skills show": ("nanobot.cli.skills:show", "What a skill tells the agent."),
    "skills install": ("nanobot.cli.skills:install", "Take a skill in from a folder or zip; shows what it asks for."),
    "skills validate": ("nanobot.cli.skills:validate", "What is wrong with a skill, line by line."),
    "skills remove": ("nanobot.cli.skills:remove", "Take a skill out of the workspace."),
    "skills approve": ("nanobot.cli.skills:approve", "Say yes to changed programs of an installed skill."),
    "usage": ("nanobot.cli.usage:usage", "Tokens and money: today, this month, and what is left."),
    "mcp list": ("nanobot.cli.mcp:list_", "The MCP servers of the config, and what they offer."),
    "mcp test": ("nanobot.cli.mcp:test", "Reach an MCP server, and see what it offers."),
    "tools list": ("nanobot.cli.tools:list_", "What the agent can call."),
}
GROUPS = {
    "gateway": "Channels, agent and jobs, until told to stop.",
    "channels": "Ways people reach the bot.",
    "pairing": "Who may speak on your channels.",
    "approvals": "What you said always to.",
    "sessions": "Stored conversations.",
    "provider": "Providers of models.",
    "cron": "Jobs and reminders.",
    "memory": "What is kept beyond a conversation.",
    "skills": "What the agent has learnt to do.",
    "mcp": "Servers that bring tools of their own.",
    "tools": "What the agent can call.",
}

USUAL = {"gateway": "run"}
"""What a group does where no command of it is named."""

COUNTING_BACK = frozenset({"replay"})
"""Commands with an argument such as -1, which else would be taken for an option."""

WRONG_USAGE: type[Exception] = typer.BadParameter.__mro__[1]
"""Typer's UsageError: the parent of all that is wrong with the words of a command. It has no public name."""


def _debug_option() -> TyperOption:
    """Every command takes `--debug`. Nobody reads its value: the errors' last stop looks for the word."""
    return TyperOption(
        param_decls=["--debug"], is_flag=True, default=False, expose_value=False, help="Show the traceback of an error."
    )


class LazyCommand(TyperCommand):
    """A line of the table: enough for help and completion; the command itself is imported when it is called."""

    def __init__(self, name: str, target: str, help: str) -> None:  # noqa: A002 the parent's word
        super().__init__(name, help=help, rich_markup_mode=None)
        self._target = target

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the real command. (Typer's type for it is private, hence Any.)"""
        return self.load().make_context(info_name, args, parent, **extra)

    def load(self) -> TyperCommand:
        """The command itself."""
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        settings = {"ignore_unknown_options": True} if self.name in COUNTING_BACK else None
        single.command(self.name, context_settings=settings)(load(self._target))
        command = typer.main.get_command(single)
        command.params.append(_debug_option())
        return command  # type: ignore[return-value]


class Group(TyperGroup):
    """Commands under one name. Called without a command, it prints its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The words that are left for the command."""
        usual = USUAL.get(self.name or "")
        if usual and (not args or args[0] not in ("-h", "--help")) and (not args or args[0].startswith("-")):
            args = [usual, *args]
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The options; where the group alone does something, those of that. (Typer's types are private, hence Any.)"""
        usual = self.commands.get(USUAL.get(self.name or "", ""))
        if isinstance(usual, LazyCommand):
            usual.load().format_options(ctx, formatter)
            self.format_commands(ctx, formatter)
        else:
            super().format_options(ctx, formatter)


class Nanobot(Group):
    """The whole table; and the one place where an error becomes words and an exit code."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        self.params.append(_debug_option())
        for words, (target, help_line) in COMMANDS.items():
            *group, name = words.split()
            self._group(*group).add_command(LazyCommand(name, target, help_line))

    def _group(self, name: str = "") -> TyperGroup:
        """The group of that name, made at its first command; without a name, the table itself."""
        if not name:
            return self
        if name not in self.commands:
            self.add_command(Group(name=name, help=GROUPS[name], rich_markup_mode=None))
        return self.commands[name]  # type: ignore[return-value]

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, *other: Any, **extra: Any) -> Any:
        """Run one command and exit. Our errors and wrong usage end in two lines at most; others go through."""
        words = sys.argv[1:] if args is None else args
        try:
            code = super().main(args, prog_name, *other, **{**extra, "standalone_mode": False})
        except (NanobotError, WRONG_USAGE, OSError) as error:
            if "--debug" in words and not isinstance(error, WRONG_USAGE):
                raise
            code = _explain(error)
        except typer.Abort:
            typer.echo("Aborted.", err=True)
            code = 1
        sys.exit(code)


def _explain(error: Exception) -> int:
    """Say it on stderr with the next step; the exit code."""
    text = str(error)
    if isinstance(error, WRONG_USAGE):
        text = error.format_message()  # type: ignore[attr-defined]
    elif isinstance(error, OSError) and error.strerror:  # what the system refuses is no bug of ours
        text = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    from nanobot.cli.terminal import visible  # an error may hold what a server said
    from nanobot.security.vault import cleaned

    with suppress(OSError):  # where stderr cannot be written either, the exit code says it
        typer.echo(f"Error: {visible(cleaned(text))}", err=True)
        context = getattr(error, "ctx", None)  # only wrong usage has one
        if context is not None:
            typer.echo(f"See {context.command_path} --help", err=True)
    return getattr(error, "exit_code", 1)


app = typer.Typer(
    name="nanobot",
    cls=Nanobot,
    help="A personal AI agent that one person owns.",
    epilog='Try it: nanobot agent -m "What is in my workspace?"',
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nanobot {__version__}")
        raise typer.Exit


@app.callback()
def _nanobot(
    _version: Annotated[
        bool, typer.Option("--version", "-v", help="Show the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """What every command has in common."""
