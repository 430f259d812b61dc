"""Lines typed in the terminal: messages with the files they mention, and `!commands`. They are always the owner's."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.bus.events import InboundMessage
from nanobot.cli.terminal import strip_control
from nanobot.messages.types import Origin

if TYPE_CHECKING:
    from nanobot.config.schema import Config

CHANNEL = "cli"
DEFAULT_SESSION = "cli:direct"
EXIT_WORDS = frozenset({"exit", "quit", "/exit", "/quit", ":q"})
"""Lines that end a chat."""
SHELL_PREFIX = "!"


def terminal_message(text: str, session_key: str, media: Sequence[str] = ()) -> InboundMessage:
    """An owner's message for this session; the reply goes back to the terminal."""
    chat_id = session_key.removeprefix(f"{CHANNEL}:") or "direct"
    return InboundMessage.from_owner(
        CHANNEL, chat_id, text, session_key=session_key, origin=Origin.CLI, media=media, folder=current_folder()
    )


def current_folder() -> str:
    """The folder the user is in; empty if it was deleted."""
    try:
        return str(Path.cwd())
    except OSError:
        return ""


async def transcribe_attachments(config: "Config", text: str, media: Sequence[str]) -> str:
    """Add transcriptions of attached recordings to the text, or why they could not be transcribed."""
    if not media:
        return text
    from nanobot.providers.transcription import transcribe_media  # brings httpx

    return await transcribe_media(text, media, config, os.environ)


_MENTION = re.compile(r"(?:^|(?<=\s))@(\S+)")


def find_mentioned_files(line: str, workspace: Path) -> list[str]:
    """Absolute paths of the files that `@name` in the line refers to, each once, in order: of the current folder, else
    of the workspace.
    """
    paths: dict[str, None] = {}
    for name in _MENTION.findall(line):
        for spelling in (name, name.rstrip(".,;:!?)")):
            path = _file(spelling, Path(current_folder())) or _file(spelling, workspace)
            if path is not None:
                paths[path] = None
                break
    return [*paths]


def _file(name: str, workspace: Path) -> str | None:
    try:
        path = workspace / Path(name).expanduser()
        return str(path) if path.is_file() else None
    except (OSError, RuntimeError, ValueError):  # not a valid path: too long, unknown home, NUL
        return None


_NEED_TERMINAL = frozenset({
    "vi", "vim", "nvim", "view", "nano", "emacs", "pico", "micro", "hx", "kak", "less", "more", "most", "man", "info",
    "top", "htop", "btop", "watch", "tmux", "screen", "mc", "ranger", "tig", "lazygit",
})  # fmt: skip


def terminal_command(line: str) -> str:
    """The command of a shell line that runs on the terminal itself: after `!!`, or one of the editors, pagers and
    monitors that are known to need it. Empty for others.
    """
    command = line.strip().removeprefix(SHELL_PREFIX)
    if command.startswith(SHELL_PREFIX):
        return command.removeprefix(SHELL_PREFIX).strip()
    program = command.split(maxsplit=1)[0] if command.strip() else ""
    return command.strip() if program.rpartition("/")[2] in _NEED_TERMINAL else ""


def parse_shell_command(line: str, *, is_on: bool) -> tuple[str, str]:
    """The command, and an error text if it cannot be run."""
    command = line.strip().lstrip(SHELL_PREFIX).strip()
    if not command:
        return "", "Write a shell command after the !, for example: !ls"
    if not is_on:
        return "", "Shell commands are disabled. Set tools.exec.enable to true in the config."
    return command, ""


_FRAME = frozenset({"STDERR:", "Exit code: 0", "(no output)"})
"""Lines that the exec tool adds for the model."""


def output_lines(text: str) -> list[str]:
    """What a command printed as lines for the screen, and its exit code if it failed."""
    lines = [line.rstrip() for line in strip_control(text).expandtabs(8).splitlines() if line not in _FRAME]
    return "\n".join(lines).strip("\n").split("\n") if any(lines) else []
