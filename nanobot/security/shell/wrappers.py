"""Programs that run other programs (`sudo`, `env`, `xargs`, `find -exec`, `sh -c`...), and what they run."""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise, takewhile

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
    """The commands that this one runs itself."""
    name, words = command.name, command.argv[1:]
    feeder = command.fed_by[-1] if command.fed_by else None
    echoed = feeder.argv[1:] if feeder is not None and feeder.name in ("echo", "printf") else None
    if name == "find":
        yield from _run_by_find(command)
    elif name == "eval":
        yield from read_line(" ".join(words)).commands
    elif name == "trap":
        yield from read_line(words[0]).commands if len(words) > 1 else ()
    elif name in ("su", "script"):
        for option, text in pairwise(words):
            if option in ("-c", "--command"):
                yield from read_line(text).commands
    elif name in SHELLS:
        texts = [text for option, text in pairwise(words) if re.fullmatch(r"-(?!-).*c", option, re.DOTALL)][:1]
        if not texts:
            fed_by_cat = feeder.redirects if feeder is not None and feeder.name == "cat" else ()
            texts = [redirect.target for redirect in (*command.redirects, *fed_by_cat) if redirect.operator == "<<<"]
            texts += [] if echoed is None else [" ".join(word for word in echoed if word not in ("-n", "-e"))]
        for text in texts:
            yield from read_line(text).commands
    elif name == "env" and (split := [at for at, word in enumerate(words[:-1]) if word in ("-S", "--split-string")]):
        yield from read_line(" ".join(words[split[0] + 1 :])).commands
    elif name == "watch":
        yield from read_line(" ".join(_words_after_options(command))).commands
    elif name in _TAKES_VALUE and (rest := _words_after_options(command)):
        if name == "xargs":
            fed = echoed if echoed is not None else ("$(input)",)
            if feeder is not None and feeder.name == "find":
                fed = _searched_folders(feeder)
            yield replace(command, argv=(*rest, *fed), fed_by=())
        else:
            yield replace(command, argv=rest)


def _words_after_options(command: ParsedCommand) -> tuple[str, ...]:
    """The words after the wrapper's own."""
    words, takes_operand = list(command.argv[1:]), command.name in _TAKES_OPERAND
    while words:
        word = words[0]
        if word == "--":
            words.pop(0)
            break
        if word in _TAKES_VALUE[command.name]:
            del words[:2]
        elif word.startswith("-") or ("=" in word and command.name in ("env", "sudo", "doas")):
            words.pop(0)
        elif takes_operand:
            takes_operand = False
            words.pop(0)
        else:
            break
    return tuple(words)


def _searched_folders(find: ParsedCommand) -> tuple[str, ...]:
    return tuple(takewhile(lambda word: not word.startswith(("-", "(", "!")), find.argv[1:])) or (".",)


_FILTERS = (
    "-name", "-iname", "-path", "-regex", "-empty", "-newer", "-mtime", "-mmin", "-size", "-user", "-perm", "-mindepth",
)  # fmt: skip


def _run_by_find(command: ParsedCommand) -> Iterator[ParsedCommand]:
    """`-exec` runs a program with the files found, `-delete` removes them. Unfiltered, its folders stand for them."""
    words = command.argv
    found = ("$(found)",) if any(word.startswith(_FILTERS) for word in words) else _searched_folders(command)
    for index, word in enumerate(words):
        if word in ("-exec", "-execdir", "-ok", "-okdir"):
            run = takewhile(lambda word: word not in (";", "+"), words[index + 1 :])
            argv = (word for part in run for word in (found if part == "{}" else (part,)))
            yield replace(command, argv=tuple(islice(argv, _MAX_WORDS + 1)))
        elif word == "-delete":
            yield replace(command, argv=("rm", "-rf", *found))
