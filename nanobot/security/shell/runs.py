"""Which commands run what stands in files, by their words or by custom, and which only show, move or count it.

A command that may do what somebody else's file says is that somebody's word. Reading such a file is not.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from nanobot.security.shell.danger import written
from nanobot.security.shell.words import Command, read_line
from nanobot.security.shell.wrappers import SHELLS, unwrapped

_HANDLES = frozenset({
    "[", "[[", ":", "base64", "basename", "bat", "cat", "cd", "chgrp", "chmod", "chown", "cksum", "cmp", "column",
    "comm", "convert", "cp", "csplit", "cut", "date", "dd", "df", "diff", "dir", "dirname", "du", "echo", "egrep",
    "exa", "expand", "export", "eza", "false", "fgrep", "file", "fmt", "fold", "git", "grep", "gzip", "gunzip", "head",
    "hexdump", "iconv", "identify", "install", "jq", "less", "link", "ln", "locale", "ls", "lsd", "lsof", "md5sum",
    "mkdir", "mktemp", "more", "mv", "nl", "od", "pandoc", "paste", "pdfinfo", "pdfimages", "pdftoppm", "pdftotext",
    "pgrep", "pr", "printf", "ps", "pwd", "readlink", "realpath", "rev", "rg", "rm", "rmdir", "sed", "seq", "sha1sum",
    "sha256sum", "sha512sum", "shuf", "sleep", "sort", "split", "stat", "strings", "sum", "sync", "tac", "tail", "tar",
    "tee", "test", "touch", "tr", "tree", "true", "truncate", "type", "unexpand", "uniq", "unlink", "unzip", "wait",
    "wc", "which", "xxd", "xz", "yq", "zcat", "zip", "zipinfo", "zstd",
    # what these run is looked at by itself
    "command", "env", "find", "ionice", "nice", "nohup", "setsid", "stdbuf", "time", "timeout", "xargs",
})  # fmt: skip
_AS_CODE = {
    "sed": re.compile(
        r"-\w*f|--file|(?!-)(?:(?:.*[\s;{}\d$/,!])?e(?:[\s;}].*)?$|.*\W[gpiImM\d]*e[gpiImM\d]*(?:[\s;}].*)?$)",
        re.DOTALL,
    ),
    "jq": re.compile(r"-\w*f|--from-file|-L"),
    "yq": re.compile(r"--from-file"),
    "tar": re.compile(r"--to-command|--checkpoint-action|--use-compress|-I"),
    "pandoc": re.compile(r"-F|--filter|-L|--lua-filter"),
    "sort": re.compile(r"--compress-prog"),
    "split": re.compile(r"--filter"),
    "rg": re.compile(r"--pre"),
    "zip": re.compile(r"-\w*T|--unzip-command"),
}
"""Options, and words of sed's own language, by which some of these run a file all the same."""
_SETS_A_PROGRAM = re.compile(
    r"\b(?:BASH_ENV|ENV|PATH|PYTHON\w+|NODE_\w+|PERL5\w+|RUBY\w+|LD_\w+|GIT_\w+|\w*EDITOR|VISUAL|\w*PAGER|LESS\w+|PS\d"
    r"|PROMPT_COMMAND)="
)
"""Variables by which others name what is run."""
_GIT_HANDLES = frozenset({
    "add", "blame", "branch", "checkout", "cherry-pick", "clean", "clone", "commit", "describe", "diff", "fetch",
    "grep", "init", "log", "ls-files", "merge", "mv", "pull", "push", "remote", "reset", "restore", "rev-parse", "rm",
    "shortlog", "show", "stash", "status", "switch", "tag",
})  # fmt: skip

_PYTHON = "*.py *.pth *.pyw pyproject.toml setup.cfg tox.ini pytest.ini"
_NODE = "package.json *.js *.mjs *.cjs *.ts *.mts *.cts"
_BY_CUSTOM = {
    name: frozenset(patterns.split())
    for names, patterns in {
        "python pypy pytest py.test pip pipx uv poetry tox nox ruff mypy pdm hatch ipython jupyter": _PYTHON,
        "make gmake bmake": "Makefile makefile GNUmakefile *.mk",
        "cmake ctest": "CMakeLists.txt *.cmake",
        "ninja": "build.ninja",
        "meson": "meson.build",
        "npm npx yarn pnpm node nodejs bun deno tsc vite jest": _NODE,
        "git": "*/.git/hooks/* */.git/config .gitattributes .gitmodules .pre-commit-config.yaml",
        "pre-commit": ".pre-commit-config.yaml",
        "docker docker-compose podman": "Dockerfile* *.Dockerfile compose.y*ml docker-compose*",
        "cargo rustc": "Cargo.toml *.rs",
        "go": "*.go go.mod",
        "ruby rake bundle gem": "*.rb Rakefile Gemfile *.gemspec",
        "perl prove": "*.pl *.pm *.t",
        "php composer": "*.php composer.json",
        "gradle gradlew": "*.gradle *.kts",
        "mvn mvnw": "pom.xml",
        "just": "justfile .justfile",
        "task": "Taskfile*",
        "direnv": ".envrc",
        " ".join(sorted(SHELLS)) + " source .": "*.sh *.bash .bashrc .profile .bash_profile .env .envrc",
    }.items()
    for name in names.split()
}
"""Programs that run files which nobody names, and how those are called."""


def only_handles(text: str) -> bool:
    """Whether none of the programs of this line runs a file that it is given. Of what cannot be read: no."""
    line = read_line(text)
    return line.whole and _SETS_A_PROGRAM.search(text) is None and all(map(_only_handles, unwrapped(line)))


def run_by_custom(text: str, folder: Path) -> frozenset[str]:
    """Patterns of the files that the programs of this line run unnamed, as it runs in this folder."""
    return frozenset().union(*(_by_custom(one, folder) for one in unwrapped(read_line(text))))


def _by_custom(command: Command, folder: Path) -> frozenset[str]:
    name = _plain_name(command)
    modules = _imported(command, folder) if name in ("python", "pypy") else None
    if modules is None:
        return _BY_CUSTOM.get(name, frozenset())
    return frozenset(pattern for one in modules for pattern in (f"{one}.py", f"*/{one}/*.py"))


def _imported(command: Command, folder: Path) -> frozenset[str] | None:
    """The modules that a call of Python imports, by those that lie beside what it runs; None where that is not told."""
    words = iter(command.argv[1:])
    first = next((word for word in words if word == "-" or not word.startswith("-") or _CODE.fullmatch(word)), None)
    if first is None or first == "-" or (first.startswith("-") and first.endswith("m")):
        return None
    script = folder / first
    texts = [next(words, "")] if _CODE.fullmatch(first) else [_text_of(script)]
    base = folder if _CODE.fullmatch(first) else script.parent
    found: set[str] = {"sitecustomize", "usercustomize"}
    while texts and len(found) < _MOST_MODULES:
        names = {name for line in _IMPORTS.findall(texts.pop()) for name in _NAME.findall(line)} - found
        found |= names
        texts += [_text_of(base / f"{name}.py") for name in names]
    return frozenset(found)


def _text_of(file: Path) -> str:
    try:
        with file.open(encoding="utf-8", errors="replace") as text:
            return text.read(_LONGEST_SCRIPT)
    except (OSError, ValueError):
        return ""


_CODE = re.compile(r"-[a-zA-Z]*[cm]")
_IMPORTS = re.compile(r"\b(?:import|from|__import__|import_module|run_path|run_module|exec|open)\b([^\n;]*)")
_NAME = re.compile(r"[A-Za-z_]\w*")
_MOST_MODULES = 500
_LONGEST_SCRIPT = 1_000_000


def words_of(text: str) -> Iterator[str]:
    """Every word of a line, without its quotes, in which files may be named."""
    for command in unwrapped(read_line(text)):
        yield from command.argv
        yield from (redirect.target for redirect in command.redirects if redirect.operator not in ("<<", "<<-"))


def written_by(text: str) -> Iterator[str]:
    """The words of a line that name what it writes, as far as words tell."""
    for command in unwrapped(read_line(text)):
        yield from written(command)


def read_below(text: str) -> Iterator[str]:
    """Folders of which a command of this line may read all: those it names, or where it stands if it names none, and
    whose programs are not known to read what they are given alone.
    """
    line = read_line(text)
    if not line.whole:
        yield "."
    for command in unwrapped(line):
        words = [word for word in command.argv[1:] if not word.startswith("-")]
        yield from words
        if not _reads_only_named(command):
            yield "."


def tells_no_words(text: str) -> bool:
    """Whether a line prints nothing of what stands in files: names, sizes and counts at most."""
    line = read_line(text)
    return line.whole and not _STREAMS.search(text) and all(map(_tells_no_words, unwrapped(line)))


def _tells_no_words(command: Command) -> bool:
    words = command.argv[1:]
    if command.name == "xargs":  # what is no name is repeated in an error, or by the echo that it runs on its own
        return bool(command.fed_by) and command.fed_by[-1].name in ("find", "ls") and not _COUNTS.isdisjoint(words)
    if command.name != "git":
        return command.name in _COUNTS and not any(map(_READS_NAMES.match, words))
    if words[:1] and words[0] in _GIT_COUNTS:
        return _VERBOSE.isdisjoint(words)
    sums = words[:1] in (("diff",), ("show",), ("log",)) and not _SUMS.isdisjoint(words)
    return sums and _VERBOSE.isdisjoint(words)


_STREAMS = re.compile(r"/dev/|/proc/")
_COUNTS = frozenset({
    ":", "[", "cd", "chmod", "cksum", "cp", "df", "du", "find", "ls", "md5sum", "mkdir", "mv", "pwd", "rm", "rmdir",
    "sha1sum", "sha256sum", "sha512sum", "stat", "test", "touch", "true", "wc",
})  # fmt: skip
_READS_NAMES = re.compile(r"-\w*c\w*$|--check|--files0-from")
"""Options by which a file is read for names, which are repeated where there are no such files."""
_GIT_COUNTS = frozenset({"add", "commit", "init", "mv", "push", "rm", "rev-parse", "status"})
_SUMS = frozenset({"--stat", "--shortstat", "--name-only", "--name-status", "--numstat"})
_VERBOSE = frozenset({"-v", "-vv", "--verbose", "-p", "-u", "--patch", "-L", "-c", "--cc", "--patch-with-stat"})


def names_its_sources(text: str) -> bool:
    """Whether each word that a line prints of a file which it does not name stands behind that file's name: a search
    through folders, of which others show a part at most.
    """
    line = read_line(text)
    first, *others = line.commands or (Command(()),)
    is_one_pipe = line.whole and not line.sets and len(list(unwrapped(line))) == 1 + len(others)
    return is_one_pipe and _searches(first) and all(map(_shows_a_part, others))


def _searches(command: Command) -> bool:
    words = command.argv[1:]
    recursive = command.name == "rg" or (command.name == "grep" and any(map(_RECURSIVE.match, words)))
    return recursive and not command.fed_by and not any(map(_WITHOUT_NAMES.match, words)) and _is_quiet(command)


def _shows_a_part(command: Command) -> bool:
    words = [word for word in command.argv[1:] if not re.fullmatch(r"-[a-z]?\d*|\d+", word)]
    return command.name in ("head", "tail", "sort", "uniq", "wc") and bool(command.fed_by) and not words


def _is_quiet(command: Command) -> bool:
    """Whether it prints, and writes nothing."""
    return all(redirect.target in ("/dev/null", "1", "2") for redirect in command.redirects)


_WITHOUT_NAMES = re.compile(
    r"-[a-zA-Z]*[hIfz]|--(?:no-filename|file|pre|null|format|replace|no-heading|path-sep|label)"
)


def _reads_only_named(command: Command) -> bool:
    name = command.name
    if name in ("grep", "egrep", "fgrep"):
        return not any(_RECURSIVE.match(word) for word in command.argv[1:])
    if name == "git":
        return command.argv[1:2] == () or command.argv[1] in _GIT_LOOKS
    return name not in _LOOKS_AROUND and _only_handles(command) and "$(" not in "".join(command.argv)


_RECURSIVE = re.compile(r"-[a-zA-Z]*[rR]|--(?:dereference-)?recursive|--directories")
_LOOKS_AROUND = frozenset({"find", "xargs", "rg", "tree"})
_GIT_LOOKS = frozenset({"branch", "init", "ls-files", "remote", "rev-parse", "status", "tag"})
"""What of git tells no words of files."""


def _only_handles(command: Command) -> bool:
    name = command.name
    if name in SHELLS:
        return "-c" in command.argv  # what that runs is looked at by itself
    if name and name not in _HANDLES:
        return False
    if name == "git":
        return command.argv[1:2] == () or command.argv[1] in _GIT_HANDLES
    runs = _AS_CODE.get(name)
    return runs is None or not any(map(runs.match, command.argv[1:]))


def _plain_name(command: Command) -> str:
    """`python3.11` is python."""
    return command.name.removesuffix(".exe").rstrip("0123456789.") or command.name
