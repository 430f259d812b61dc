"""Programs that run other programs: what is really run behind `sudo`, `env`, `xargs`, `find -exec`, `sh -c` and kin."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from nanobot.security.shell.words import Command, Line, read_line

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "mksh", "fish", "rbash"})
_DEEPEST = 12
_MOST = 2000

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
"""Programs whose first word that is no option of theirs is what they run; which of their options take a value."""
_FIRST_IS_THEIRS = frozenset({"timeout", "chroot", "taskset", "chrt", "flock"})
"""Their first word that is no option is a time, a folder, a mask or a lock."""


def unwrapped(line: Line) -> Iterator[Command]:
    """Every command of a line, and behind each that runs another one that other one too."""
    left = _MOST
    for command in line.commands:
        for inner in _behind(command, 0):
            left -= 1
            if left < 0:
                return
            yield inner


def _behind(command: Command, depth: int) -> Iterator[Command]:
    yield command
    if depth >= _DEEPEST or not command.argv:
        return
    for inner in _run_by(command):
        yield from _behind(inner, depth + 1)


def _run_by(command: Command) -> Iterator[Command]:
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


def _rest(command: Command) -> list[str]:
    """The words behind a wrapper's own."""
    words, takes = list(command.argv[1:]), _TAKES_VALUE[command.name]
    theirs = command.name in _FIRST_IS_THEIRS
    while words:
        word = words[0]
        if word == "--":
            words.pop(0)
            break
        if word in takes:
            del words[:2]
        elif word.startswith("-") or ("=" in word and command.name in ("env", "sudo", "doas")):
            words.pop(0)
        elif theirs:
            theirs = False
            words.pop(0)
        else:
            break
    return words


def _shell(command: Command) -> Iterator[Command]:
    """`sh -c text`, `sh <<< text`, `echo text | sh`."""
    words = command.argv[1:]
    for at, word in enumerate(words):
        if word.startswith("-") and not word.startswith("--") and word.endswith("c") and at + 1 < len(words):
            yield from _text(words[at + 1])
            return
    for redirect in command.redirects:
        if redirect.operator == "<<<":
            yield from _text(redirect.target)
    yield from _fed(command)


def _fed(command: Command) -> Iterator[Command]:
    """What a shell reads from its pipe, where that is known."""
    feeder = command.fed_by[-1] if command.fed_by else None
    if feeder is None:
        return
    if feeder.name in ("echo", "printf"):
        yield from _text(" ".join(word for word in feeder.argv[1:] if word not in ("-n", "-e")))
    elif feeder.name == "cat":
        for redirect in feeder.redirects:
            if redirect.operator == "<<<":
                yield from _text(redirect.target)


def _text(text: str) -> Iterator[Command]:
    yield from read_line(text).commands


def _eval(command: Command) -> Iterator[Command]:
    yield from _text(" ".join(command.argv[1:]))


def _xargs(command: Command) -> Iterator[Command]:
    """With what is fed to it, where that is known."""
    rest = _rest(command)
    if not rest:
        return
    feeder = command.fed_by[-1] if command.fed_by else None
    fed = feeder.argv[1:] if feeder is not None and feeder.name in ("echo", "printf") else ("$(input)",)
    if feeder is not None and feeder.name == "find":
        fed = tuple(word for word in _find_places(feeder)) or (".",)
    yield replace(command, argv=(*rest, *fed), fed_by=())


def _find_places(command: Command) -> Iterator[str]:
    for word in command.argv[1:]:
        if word.startswith(("-", "(", "!")):
            return
        yield word


_NARROWS = (
    "-name", "-iname", "-path", "-regex", "-empty", "-newer", "-mtime", "-mmin", "-size", "-user", "-perm", "-mindepth",
)  # fmt: skip


def _find(command: Command) -> Iterator[Command]:
    """`-exec` runs a program with what was found, `-delete` removes it. Found is at least what stands first."""
    words = command.argv
    places = tuple(_find_places(command)) or (".",)
    narrowed = any(word.startswith(_NARROWS) for word in words)
    found = ("$(found)",) if narrowed else places
    for at, word in enumerate(words):
        if word in ("-exec", "-execdir", "-ok", "-okdir"):
            run = []
            for inner in words[at + 1 :]:
                if inner in (";", "+"):
                    break
                run.append(inner)
            yield replace(command, argv=tuple(w for part in run for w in (found if part == "{}" else (part,))))
        elif word == "-delete":
            yield replace(command, argv=("rm", "-rf", *found))


def _su(command: Command) -> Iterator[Command]:
    words = command.argv
    for at, word in enumerate(words):
        if word in ("-c", "--command") and at + 1 < len(words):
            yield from _text(words[at + 1])


def _env(command: Command) -> Iterator[Command]:
    words = command.argv
    for at, word in enumerate(words[:-1]):
        if word in ("-S", "--split-string"):
            yield from _text(" ".join(words[at + 1 :]))
            return
    rest = _rest(command)
    if rest:
        yield replace(command, argv=tuple(rest))


def _watch(command: Command) -> Iterator[Command]:
    yield from _text(" ".join(_rest(command)))


def _trap(command: Command) -> Iterator[Command]:
    if len(command.argv) > 2:
        yield from _text(command.argv[1])


_SPECIAL: dict[str, Callable[[Command], Iterator[Command]]] = {
    "eval": _eval,
    "xargs": _xargs,
    "find": _find,
    "su": _su,
    "env": _env,
    "watch": _watch,
    "script": _su,
    "trap": _trap,
}
