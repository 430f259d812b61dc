"""Lines typed in the terminal: messages with the files they mention, and `!commands`. They are always the owner's."""

import re
from pathlib import Path

from nanobot.cli.terminal import strip_control
from nanobot.gateway.control.backend import current_folder

EXIT_WORDS = frozenset({"exit", "quit", "/exit", "/quit", ":q"})
"""Lines that end a chat."""
SHELL_PREFIX = "!"


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


_FRAME = frozenset({"STDERR:", "Exit code: 0", "(no output)"})
"""Lines that the exec tool adds for the model."""


def output_lines(text: str) -> list[str]:
    """What a command printed as lines for the screen, and its exit code if it failed."""
    lines = [line.rstrip() for line in strip_control(text).expandtabs(8).splitlines() if line not in _FRAME]
    return "\n".join(lines).strip("\n").split("\n") if any(lines) else []
