"""The command table of `nanobot` and the top-level error handler.

A command's module is imported only when the command runs or shows its help, so that `nanobot --help` starts fast.
"""

import os
import re
import stat
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from nanobot import __version__
from nanobot.cli.output import Paint, is_terminal, print_error, strip_control
from nanobot.errors import NanobotError
from nanobot.plugins import load

COMMANDS = {
    "onboard": ("nanobot.cli.setup.onboard:onboard", "Set up a model, the workspace and chat channels."),
    "agent": ("nanobot.cli.commands.agent:agent", "Chat with the agent; with a message, print one answer and exit."),
    "gateway run": ("nanobot.cli.commands.gateway:run", "Run the gateway in this terminal (the default)."),
    "gateway status": ("nanobot.cli.commands.gateway:status", "Show whether the gateway is running and healthy."),
    "gateway logs": ("nanobot.cli.commands.gateway:logs", "Show the end of the gateway's log."),
    "gateway install": ("nanobot.cli.commands.gateway:install", "Install it as a user service (systemd, launchd)."),
    "gateway uninstall": ("nanobot.cli.commands.gateway:uninstall", "Remove the service."),
    "gateway start": ("nanobot.cli.commands.gateway:start", "Start the service."),
    "gateway stop": ("nanobot.cli.commands.gateway:stop", "Shut the gateway down cleanly."),
    "gateway restart": ("nanobot.cli.commands.gateway:restart", "Shut the gateway down cleanly and start it again."),
    "channels status": ("nanobot.cli.commands.gateway:channels_status", "Show the connection status of each channel."),
    "channels login": ("nanobot.cli.setup.channels:login", "Set up a channel, or check one that is set up."),
    "channels test": ("nanobot.cli.commands.gateway:channels_test", "Send a test message through a channel."),
    "serve": ("nanobot.cli.commands.gateway:serve", "Run the HTTP API without chat apps and jobs."),
    "api key add": ("nanobot.cli.commands.access:add_key", "Make a key for a program; it is printed once."),
    "api key list": ("nanobot.cli.commands.access:list_keys", "List the keys of programs."),
    "api key revoke": ("nanobot.cli.commands.access:revoke_key", "Revoke a key."),
    "web": ("nanobot.cli.commands.gateway:web", "Open the gateway's page in a browser, by a one-time link."),
    "send": ("nanobot.cli.commands.gateway:send", "Send a message through the running gateway."),
    "config get": ("nanobot.cli.commands.config:get", "Print one value, or the whole file; secrets are masked."),
    "config set": ("nanobot.cli.commands.config:set_", "Set one value; it is checked before it is saved."),
    "config edit": ("nanobot.cli.commands.config:edit", "Open the file in your editor; it is checked before saving."),
    "config path": ("nanobot.cli.commands.config:path", "Print where the file is."),
    "status": ("nanobot.cli.commands.status:status", "Show the configuration and where each value comes from."),
    "doctor": ("nanobot.cli.doctor.command:doctor", "Check the setup and its security; --fix repairs problems."),
    "pairing list": ("nanobot.cli.commands.access:list_people", "List paired people and pending codes."),
    "pairing approve": ("nanobot.cli.commands.access:approve", "Approve the person who was shown this code."),
    "pairing deny": ("nanobot.cli.commands.access:deny", "Reject a pairing code."),
    "pairing revoke": ("nanobot.cli.commands.access:revoke", "Remove a paired person."),
    "approvals list": ("nanobot.cli.commands.access:list_approvals", "List permanent approvals and when they expire."),
    "approvals forget": ("nanobot.cli.commands.access:forget_approval", "Revoke a permanent approval."),
    "sessions list": ("nanobot.cli.commands.sessions:list_", "List all conversations, newest first."),
    "sessions show": ("nanobot.cli.commands.sessions:show", "Print one conversation."),
    "sessions search": ("nanobot.cli.commands.sessions:search", "Search all conversations for a text."),
    "sessions import": ("nanobot.cli.commands.sessions:import_", "Import a conversation from a file."),
    "sessions export": ("nanobot.cli.commands.sessions:export", "Export a conversation as JSON lines or Markdown."),
    "sessions delete": ("nanobot.cli.commands.sessions:delete", "Delete a conversation permanently."),
    "replay": ("nanobot.cli.commands.replay:replay", "Show a turn step by step; replay it with another model."),
    "provider list": ("nanobot.cli.commands.providers:list_", "List model providers: keys, base URLs, default models."),
    "provider login": ("nanobot.cli.commands.providers:login", "Log in to a provider that uses an account, not a key."),
    "provider logout": ("nanobot.cli.commands.providers:logout", "Delete the tokens of an account."),
    "cron list": ("nanobot.cli.commands.cron:list_", "List jobs and reminders, next to run first."),
    "cron add": ("nanobot.cli.commands.cron:add", "Add a job: once, at an interval, or by a cron expression."),
    "cron edit": ("nanobot.cli.commands.cron:edit", "Change what a job does, or when."),
    "cron remove": ("nanobot.cli.commands.cron:remove", "Remove a job."),
    "cron enable": ("nanobot.cli.commands.cron:enable", "Enable a job."),
    "cron disable": ("nanobot.cli.commands.cron:disable", "Disable a job."),
    "cron run": ("nanobot.cli.commands.cron:run", "Run a job now."),
    "cron history": ("nanobot.cli.commands.cron:history", "Show past runs and their results."),
    "cron rehearse": ("nanobot.cli.commands.cron:rehearse", "Simulate the schedule: what will run in the coming days."),
    "memory show": ("nanobot.cli.commands.memory:show", "Print the memory, each fact with its id."),
    "memory search": ("nanobot.cli.commands.memory:search", "Search facts, archive, log and notes."),
    "memory why": ("nanobot.cli.commands.memory:why", "Show where a fact came from."),
    "memory log": ("nanobot.cli.commands.memory:log", "Show the last changes of the memory."),
    "memory forget": ("nanobot.cli.commands.memory:forget", "Delete a fact."),
    "memory pin": ("nanobot.cli.commands.memory:pin", "Keep a fact unchanged when the memory is tidied."),
    "memory unpin": ("nanobot.cli.commands.memory:unpin", "Remove the pin from a fact."),
    "memory undo": ("nanobot.cli.commands.memory:undo", "Undo the last change."),
    "memory dream": ("nanobot.cli.commands.memory:dream", "Tidy the memory now (Dream) and show what changed."),
    "memory dream-log": ("nanobot.cli.commands.memory:dream_log", "Show the last Dream passes."),
    "memory dream-restore": ("nanobot.cli.commands.memory:dream_restore", "Restore the memory to before a Dream pass."),
    "skills list": ("nanobot.cli.commands.skills:list_", "List all skills and whether each can be used."),
    "skills show": ("nanobot.cli.commands.skills:show", "Print the instructions of a skill."),
    "skills install": ("nanobot.cli.commands.skills:install", "Install a skill from a folder or zip."),
    "skills validate": ("nanobot.cli.commands.skills:validate", "Check a skill and report errors by line."),
    "skills remove": ("nanobot.cli.commands.skills:remove", "Remove a skill from the workspace."),
    "usage": ("nanobot.cli.commands.usage:usage", "Show tokens and cost: today, this month, and what is left."),
    "mcp list": ("nanobot.cli.commands.tools:list_servers", "List the configured MCP servers and their tools."),
    "mcp add": ("nanobot.cli.commands.tools:add_server", "Try an MCP server and add it."),
    "mcp remove": ("nanobot.cli.commands.tools:remove_server", "Remove an MCP server."),
    "mcp test": ("nanobot.cli.commands.tools:test_server", "Connect to an MCP server and list its tools."),
    "tools list": ("nanobot.cli.commands.tools:list_tools", "List the tools the agent can call."),
}
GROUPS = {
    "api": "The HTTP API for programs.",
    "api key": "Keys of programs.",
    "gateway": "Run the bot: chat apps, reminders and jobs (Ctrl+C stops).",
    "channels": "Connect chat apps.",
    "config": "Read and change the configuration.",
    "pairing": "Decide who may talk to the bot.",
    "approvals": "Permissions you granted permanently.",
    "sessions": "Read, search, export and delete conversations.",
    "provider": "Model providers and their accounts.",
    "cron": "Jobs and reminders.",
    "memory": "What the agent remembers across conversations.",
    "skills": "Instructions and programs the agent can use.",
    "mcp": "MCP servers that add tools.",
    "tools": "What the agent can call.",
}

SECTIONS = {
    "Start": ("onboard", "provider", "config", "status", "doctor"),
    "Talk": ("agent", "web", "sessions", "replay"),
    "Channels": ("gateway", "channels", "pairing", "send"),
    "Memory and jobs": ("memory", "cron"),
    "Tools": ("skills", "mcp", "tools", "approvals"),
    "Programs": ("serve", "api"),
    "Costs": ("usage",),
}
"""The order of `nanobot --help`. A command in no section is listed at the end."""

EXAMPLES = {
    "": ("nanobot", 'nanobot "What is in my workspace?"'),
    "agent": ('nanobot agent "Summarise notes.md"', 'cat error.log | nanobot "Why does this fail?"'),
    "gateway": ("nanobot gateway", "nanobot gateway install"),
    "channels": ("nanobot channels login telegram", "nanobot channels status"),
    "send": ('nanobot send --channel telegram --to 12345 "Back at six"',),
    "config": ("nanobot config set agents.defaults.model gpt-5-mini", "nanobot config get channels"),
    "doctor": ("nanobot doctor --fix", "nanobot doctor --security"),
    "pairing": ("nanobot pairing list", "nanobot pairing approve K7MPQ2XA --owner"),
    "approvals": ("nanobot approvals list", 'nanobot approvals forget "exec git push"'),
    "sessions": ("nanobot sessions search invoice", "nanobot sessions export cli:direct --format markdown -o chat.md"),
    "replay": ("nanobot replay cli:direct", "nanobot replay cli:direct -2"),
    "provider": ("nanobot provider list", "nanobot provider login github-copilot"),
    "cron": ('nanobot cron add "tomorrow 9am" "Call Ann"', 'nanobot cron add -m "Water the plants" -c "0 18 * * *"'),
    "memory": ("nanobot memory show", "nanobot memory pin aw96f"),
    "skills": ("nanobot skills list", "nanobot skills install ./my-skill"),
    "serve": ("nanobot serve",),
    "api": (
        "nanobot api key add laptop",
        "nanobot api key add kitchen --role guest",
        "nanobot api key add radio --as telegram:123",
    ),
    "usage": ("nanobot usage --by model", "nanobot usage --days 7 --json"),
    "mcp": ("nanobot mcp add time -- uvx mcp-server-time", "nanobot mcp test time"),
}
"""Shown at the end of the help of a command or group."""

SYNONYMS = {
    "ask chat": ("agent",),
    "run": ("agent", "run"),
    "resume": ("agent --continue", "enable"),
    "configure init setup": ("onboard",),
    "login": ("provider login",),
    "log logs": ("gateway logs", "logs", "log"),
    "start": ("gateway start", "enable"),
    "stop": ("gateway stop", "disable"),
    "pause": ("disable", "stop"),
    "restart": ("gateway restart",),
    "job jobs reminder reminders schedule": ("cron",),
    "remind": ("cron add",),
    "cost costs": ("usage",),
    "history": ("sessions list", "log"),
    "model models": ("provider list",),
    "check": ("doctor", "test", "validate"),
    "plugins": ("tools list",),
    "add create new": ("add", "install", "approve", "login"),
    "allow": ("pairing approve", "approve"),
    "list ls": ("list", "show", "status", "get"),
    "cat info show view": ("show", "get", "list"),
    "delete del forget remove rm": ("remove", "delete", "forget", "revoke"),
    "reject": ("deny",),
    "uninstall": ("remove",),
    "revert restore": ("undo",),
    "find grep": ("search",),
    "edit": ("set",),
    "explain": ("why",),
}
"""What other programs call a command: the first that the group has is suggested. At the root also a path."""
DEFAULT_COMMANDS = {"gateway": "run"}
"""Runs when a group is called without a command."""

WORKSPACE_COMMANDS = frozenset((
    "onboard", "agent", "gateway run", "serve", "status", "doctor", "sessions", "replay", "cron", "memory", "skills",
    "mcp", "tools",
))  # fmt: skip
"""Commands and groups that take `--workspace`."""

NEGATIVE_ARGUMENTS = frozenset({"replay", "set"})
"""Commands that take an argument such as -1, which would be parsed as an option otherwise."""

ALIASES = {"help": "--help", "version": "--version"}
"""Options that other programs have as a command: `nanobot help cron` is `nanobot cron --help`."""

_SENTENCE = re.compile(r"[\s?!,]|[^\x00-\x7f]")
"""What no command contains."""

TYPER_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""The base of Typer's command line errors, which has no public name."""


_METAVARS = {"text": "TEXT", "str": "TEXT", "integer": "N", "integer range": "N", "int range": "N"}
_HEADING = re.compile(r"^\S[^:\n]*:", re.MULTILINE)

DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def _shared_options(
    _config: Annotated[
        Path | None,
        typer.Option(
            "-c",
            "--config",
            metavar="FILE",
            help="Use this config file; its folder is the data folder. It does not move the workspace.",
        ),
    ] = None,
    _workspace: Annotated[
        Path | None,
        typer.Option("-w", "--workspace", metavar="FOLDER", help="Use this workspace instead of the config's."),
    ] = None,
    _debug: DebugOption = False,
) -> None:
    """Options of every command; `--workspace` of those in WORKSPACE_COMMANDS. RootGroup.main looks for `--debug`."""


class Help:
    """Help with coloured headings, and with examples: the lines of the epilog."""

    epilog: str | None

    def get_help(self, ctx: Any) -> str:
        paint = Paint.on(sys.stdout)
        return _HEADING.sub(lambda heading: paint.bold(heading[0]), super().get_help(ctx))  # type: ignore[misc]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if self.epilog:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in self.epilog.splitlines()))


class Command(Help, TyperCommand):
    """A command that was imported."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Without Typer's braces around required arguments."""
        return [piece.removeprefix("{").removesuffix("}") for piece in super().collect_usage_pieces(ctx)]

    def invoke(self, ctx: Any) -> Any:
        """Select config and workspace for `read_setup`, then run the command."""
        from nanobot.cli.common import select_setup

        config, workspace, _ = (ctx.params.pop(name, None) for name in ("_config", "_workspace", "_debug"))
        select_setup(config, workspace)
        return super().invoke(ctx)


def _build_command(function: Callable[..., Any], name: str, **attributes: Any) -> TyperCommand:
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name, cls=Command, **attributes)(function)
    return typer.main.get_command(single)  # type: ignore[return-value]


class LazyCommand(TyperCommand):
    """A table entry that imports the command itself only when it is called or shows its help."""

    def __init__(self, path: str, target: str, help: str, epilog: str) -> None:  # noqa: A002 the parent's word
        super().__init__(path.split()[-1], help=help, epilog=epilog, rich_markup_mode=None)
        self._target = target
        self._has_workspace = not {path, path.split()[0]}.isdisjoint(WORKSPACE_COMMANDS)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        # Typer's type of a context is private, hence Any
        return self.load().make_context(info_name, args, parent, **extra)

    def load(self) -> TyperCommand:
        function, name = load(self._target), str(self.name)
        settings = {"ignore_unknown_options": True} if name in NEGATIVE_ARGUMENTS else None
        command = _build_command(function, name, epilog=self.epilog, context_settings=settings)
        command.help = command.help or self.help
        taken = {word for param in command.params for word in param.opts}
        for option in _build_command(_shared_options, "shared").params:
            option.opts = [word for word in option.opts if word not in taken]  # `cron add -c` is a cron expression
            if option.name != "_workspace" or self._has_workspace:
                command.params.append(option)
        for param in command.params:
            is_argument = param.param_type_name == "argument"
            param.metavar = param.metavar or (
                (param.name or "").upper() if is_argument else _METAVARS.get(param.type.name)
            )
        return command


class Group(Help, TyperGroup):
    """Commands under one name. Without a command it runs its default command or prints its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        default = DEFAULT_COMMANDS.get(self.name or "")
        if default and (not args or args[0] not in ("-h", "--help")) and (not args or args[0].startswith("-")):
            args = [default, *args]
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; the error for an unknown one suggests what other programs call it, or how it is spelled."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}.{self._suggest(ctx.command_path, args[0])}")
        return super().resolve_command(ctx, args)

    def _suggest(self, path: str, word: str) -> str:
        meant = next((meant for words, meant in SYNONYMS.items() if word.lower() in words.split()), ())
        for name in meant:
            if name.split()[0] in self.commands:
                return f" Did you mean `{path} {name}`?"
        from nanobot.utils.text import nearest  # slow to import

        if similar := nearest(word, self.commands, 2, cutoff=0.7):
            return f" Did you mean {' or '.join(f'`{path} {name}`' for name in similar)}?"
        return f" To send it as a message: `{path} agent {word}`" if "agent" in self.commands else ""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """List the options of the default command, if the group has one, before the commands."""
        default = self.commands.get(DEFAULT_COMMANDS.get(self.name or "", ""))
        if isinstance(default, LazyCommand):
            default.load().format_options(ctx, formatter)
            self.format_commands(ctx, formatter)
        else:
            super().format_options(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands with their whole help, where click cuts it at the width."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help or "") for name, command in self.commands.items()])


def _is_stdin_piped() -> bool:
    """Whether text may come from a pipe or a file."""
    with suppress(AttributeError, OSError, ValueError):  # without stdin, or one in memory
        mode = os.fstat(sys.stdin.fileno()).st_mode
        return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
    return False


class RootGroup(Group):
    """The root command: all commands of the table. Turns errors into a message and an exit code."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        for path, (target, help_line) in COMMANDS.items():
            group = path.split()[:-1]
            examples = (line for line in EXAMPLES.get(path.split()[0], ()) if not group or f"nanobot {path} " in line)
            self._get_group(*group).add_command(LazyCommand(path, target, help_line, "\n".join(examples)))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """A sentence and the options of `agent` are for the agent; so is nothing in a terminal, and piped text."""
        if args and args[0] in ALIASES:
            args = [*args[1:], ALIASES[args[0]]]
        if not args:
            is_message = _is_stdin_piped() or (is_terminal(sys.stdin) and is_terminal(sys.stdout))
        elif args[0].startswith("-"):
            is_message = self._is_agent_option(ctx, args[0]) and not self.commands.keys() & set(args)
        else:
            is_message = not args[0] or bool(_SENTENCE.search(args[0]))
        return super().parse_args(ctx, ["agent", *args] if is_message else args)

    def _is_agent_option(self, ctx: Any, word: str) -> bool:
        """Whether only `agent` has this option."""
        if any(word in param.opts for param in self.get_params(ctx)):
            return False
        agent = self.commands["agent"]
        return isinstance(agent, LazyCommand) and any(word.split("=")[0] in param.opts for param in agent.load().params)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands by section."""
        listed = {name for names in SECTIONS.values() for name in names}
        others = [name for name in self.commands if name not in listed]
        for section, names in {**SECTIONS, "More": others}.items():
            rows = [(f"{name:<9}", self.commands[name].help or "") for name in names if name in self.commands]
            if rows:
                with formatter.section(section):
                    formatter.write_dl(rows)

    def _get_group(self, *names: str) -> TyperGroup:
        group: TyperGroup = self
        for count, name in enumerate(names, 1):
            if name not in group.commands:
                epilog, text = "\n".join(EXAMPLES.get(names[0], ())), GROUPS[" ".join(names[:count])]
                group.add_command(Group(name=name, help=text, epilog=epilog, rich_markup_mode=None))
            group = group.commands[name]  # type: ignore[assignment]
        return group

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, *other: Any, **extra: Any) -> Any:
        """Run a command and exit. Known errors are printed in two lines at most; others propagate as a traceback."""
        arguments = sys.argv[1:] if args is None else args
        try:
            code = super().main(args, prog_name, *other, **{**extra, "standalone_mode": False})
        except (NanobotError, TYPER_USAGE_ERROR, OSError) as error:
            if "--debug" in arguments and not isinstance(error, TYPER_USAGE_ERROR):
                raise
            code = _print_error(error)
        except typer.Abort:
            typer.echo("Aborted.", err=True)
            code = 1
        sys.exit(code)


def _print_error(error: Exception) -> int:
    """Print the error and the next step on stderr; return the exit code."""
    from nanobot.security.secrets import redact_all  # slow to import; not needed for --help
    from nanobot.utils.storage_error import error_text

    text = error.format_message() if isinstance(error, TYPER_USAGE_ERROR) else error_text(error)  # type: ignore[attr-defined]
    with suppress(OSError):  # stderr may be unwritable; the exit code still tells
        print_error(strip_control(redact_all(text)))
        context = getattr(error, "ctx", None)  # only usage errors have one
        if context is not None:
            typer.echo(f"See {context.command_path} --help", err=True)
    return getattr(error, "exit_code", 1)


app = typer.Typer(
    name="nanobot",
    cls=RootGroup,
    help="A personal AI agent that one person owns. Alone it opens a chat; with a sentence it prints one answer. Both "
    "take the options of `nanobot agent`.",
    epilog="\n".join(EXAMPLES[""]),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"nanobot {__version__}")
        raise typer.Exit


@app.callback()
def _nanobot(
    _version: Annotated[
        bool, typer.Option("--version", "-v", help="Show the version.", callback=_print_version, is_eager=True)
    ] = False,
    _debug: DebugOption = False,
) -> None:
    """Options of the root command."""
