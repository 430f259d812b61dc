"""Programs that run other programs (`sudo`, `env`, `xargs`, `find -exec`, `sh -c`...), and what they run."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

from nanobot.security.shell.parse import MOST_COMMANDS, UNREAD, ParsedCommand, ParsedLine, read_line

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "mksh", "fish", "rbash"})
_MAX_DEPTH = 12
_MAX_WORDS = 20_000
"""Words of all wrapped commands of a line together."""

_TAKES_VALUE: dict[str, frozenset[str]] = {
    name: frozenset(taking.split())
    for name, taking in {
        "sudo": "-u -g -h -p -C -T -r -t -U -D -R --user --group --host --prompt --chdir --chroot",
        "doas": "-u -C",
        "env": "-u -C --unset --chdir",
        "nice": "-n --adjustment",
        "ionice": "-c -n -p --class --classdata",
        "timeout": "-s -k --signal --kill-after",
        "stdbuf": "-i -o -e --input --output --error",
        "xargs": "-a -d -E -I -L -n -P -s --arg-file --delimiter --max-args --max-procs --max-lines",
        "time": "-o -f --output --format",
        "watch": "-n --interval",
        "chrt": "-T -P -D",
        "setpriv": "--reuid --regid --groups --inh-caps --ambient-caps --bounding-set",
        "flock": "-w -E --timeout",
        "unshare": "-S -G --setuid --setgid --root --wd",
        "strace": "-o -e -p -s",
        **dict.fromkeys(
            ("nohup", "setsid", "exec", "command", "builtin", "busybox", "toybox", "caffeinate", "fakeroot", "chronic",
             "unbuffer", "systemd-run", "torsocks", "ltrace", "parallel", "chroot", "taskset"), ""),
    }.items()
}  # fmt: skip
"""Programs that run their first operand, with those of their options that take a value."""
_TAKES_OPERAND = frozenset({"timeout", "chroot", "taskset", "chrt", "flock"})
"""Their first operand is a time, a folder, a mask or a lock; the second is the program."""


def expand_wrappers(line: ParsedLine) -> Iterator[ParsedCommand]:
    """Yield each command of a line, followed by those it runs. At a limit of count or depth the last is UNREAD."""
    commands, words = MOST_COMMANDS, _MAX_WORDS
    for command in line.commands:
        for inner, depth in _expand(command, 0):
            commands -= 1
            words -= len(inner.argv) if depth else 0
            if commands < 0 or words < 0 or inner is UNREAD:
                yield UNREAD
                return
            yield inner


def _expand(command: ParsedCommand, depth: int) -> Iterator[tuple[ParsedCommand, int]]:
    yield command, depth
    for inner in _run_by(command) if command.argv else ():
        if depth >= _MAX_DEPTH:
            yield UNREAD, depth
            return
        yield from _expand(inner, depth + 1)


def _run_by(command: ParsedCommand) -> Iterator[ParsedCommand]:
    name = command.name
    special = _SPECIAL.get(name)
    if special is not None:
        yield from special(command)
    elif name in SHELLS:
        yield from _shell(command)
    elif name in _TAKES_VALUE:
        rest = _rest(command)
        if rest:
            yield replace(command, argv=tuple(rest))


def _rest(command: ParsedCommand) -> list[str]:
    """The words after the wrapper's own."""
    words, takes = list(command.argv[1:]), _TAKES_VALUE[command.name]
    takes_operand = command.name in _TAKES_OPERAND
    while words:
        word = words[0]
        if word == "--":
            words.pop(0)
            break
        if word in takes:
            del words[:2]
        elif word.startswith("-") or ("=" in word and command.name in ("env", "sudo", "doas")):
            words.pop(0)
        elif takes_operand:
            takes_operand = False
            words.pop(0)
        else:
            break
    return words


def _shell(command: ParsedCommand) -> Iterator[ParsedCommand]:
    """`sh -c text`, `sh <<< text`, `echo text | sh`."""
    words = command.argv[1:]
    for index, word in enumerate(words):
        if word.startswith("-") and not word.startswith("--") and word.endswith("c") and index + 1 < len(words):
            yield from _parse(words[index + 1])
            return
    for redirect in command.redirects:
        if redirect.operator == "<<<":
            yield from _parse(redirect.target)
    yield from _commands_from_pipe(command)


def _commands_from_pipe(command: ParsedCommand) -> Iterator[ParsedCommand]:
    """What a shell reads from its pipe, if it is known."""
    feeder = command.fed_by[-1] if command.fed_by else None
    if feeder is None:
        return
    if feeder.name in ("echo", "printf"):
        yield from _parse(" ".join(word for word in feeder.argv[1:] if word not in ("-n", "-e")))
    elif feeder.name == "cat":
        for redirect in feeder.redirects:
            if redirect.operator == "<<<":
                yield from _parse(redirect.target)


def _parse(text: str) -> Iterator[ParsedCommand]:
    yield from read_line(text).commands


def _eval(command: ParsedCommand) -> Iterator[ParsedCommand]:
    yield from _parse(" ".join(command.argv[1:]))


def _xargs(command: ParsedCommand) -> Iterator[ParsedCommand]:
    """The command with its piped input, if that is known."""
    rest = _rest(command)
    if not rest:
        return
    feeder = command.fed_by[-1] if command.fed_by else None
    fed = feeder.argv[1:] if feeder is not None and feeder.name in ("echo", "printf") else ("$(input)",)
    if feeder is not None and feeder.name == "find":
        fed = tuple(word for word in _find_folders(feeder)) or (".",)
    yield replace(command, argv=(*rest, *fed), fed_by=())


def _find_folders(command: ParsedCommand) -> Iterator[str]:
    for word in command.argv[1:]:
        if word.startswith(("-", "(", "!")):
            return
        yield word


_FILTERS = (
    "-name", "-iname", "-path", "-regex", "-empty", "-newer", "-mtime", "-mmin", "-size", "-user", "-perm", "-mindepth",
)  # fmt: skip


def _find(command: ParsedCommand) -> Iterator[ParsedCommand]:
    """`-exec` runs a program with the files found, `-delete` removes them. Unfiltered, its folders stand for them."""
    words = command.argv
    folders = tuple(_find_folders(command)) or (".",)
    is_filtered = any(word.startswith(_FILTERS) for word in words)
    found = ("$(found)",) if is_filtered else folders
    for index, word in enumerate(words):
        if word in ("-exec", "-execdir", "-ok", "-okdir"):
            run = []
            for inner in words[index + 1 :]:
                if inner in (";", "+"):
                    break
                run.append(inner)
            argv = (word for part in run for word in (found if part == "{}" else (part,)))
            yield replace(command, argv=tuple(islice(argv, _MAX_WORDS + 1)))
        elif word == "-delete":
            yield replace(command, argv=("rm", "-rf", *found))


def _su(command: ParsedCommand) -> Iterator[ParsedCommand]:
    words = command.argv
    for index, word in enumerate(words):
        if word in ("-c", "--command") and index + 1 < len(words):
            yield from _parse(words[index + 1])


def _env(command: ParsedCommand) -> Iterator[ParsedCommand]:
    words = command.argv
    for index, word in enumerate(words[:-1]):
        if word in ("-S", "--split-string"):
            yield from _parse(" ".join(words[index + 1 :]))
            return
    rest = _rest(command)
    if rest:
        yield replace(command, argv=tuple(rest))


def _watch(command: ParsedCommand) -> Iterator[ParsedCommand]:
    yield from _parse(" ".join(_rest(command)))


def _trap(command: ParsedCommand) -> Iterator[ParsedCommand]:
    if len(command.argv) > 2:
        yield from _parse(command.argv[1])


_SPECIAL: dict[str, Callable[[ParsedCommand], Iterator[ParsedCommand]]] = {
    "eval": _eval,
    "xargs": _xargs,
    "find": _find,
    "su": _su,
    "env": _env,
    "watch": _watch,
    "script": _su,
    "trap": _trap,
}
