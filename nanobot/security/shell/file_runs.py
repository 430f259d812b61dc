"""Which commands run the content of files, named or by convention, which only show, move or count it, and which write.

Running a file with untrusted content makes the command untrusted. Reading such a file does not.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from nanobot.security.shell.parse import ParsedCommand, read_line
from nanobot.security.shell.wrappers import SHELLS, expand_wrappers

_DATA_COMMANDS = frozenset({
    "[", "[[", ":", "base64", "basename", "bat", "cat", "cd", "chgrp", "chmod", "chown", "cksum", "cmp", "column",
    "comm", "convert", "cp", "csplit", "cut", "date", "dd", "df", "diff", "dir", "dirname", "du", "echo", "egrep",
    "exa", "expand", "export", "eza", "false", "fgrep", "file", "fmt", "fold", "git", "grep", "gzip", "gunzip", "head",
    "hexdump", "iconv", "identify", "install", "jq", "less", "link", "ln", "locale", "ls", "lsd", "lsof", "md5sum",
    "mkdir", "mktemp", "more", "mv", "nl", "od", "pandoc", "paste", "pdfinfo", "pdfimages", "pdftoppm", "pdftotext",
    "pgrep", "pr", "printf", "ps", "pwd", "readlink", "realpath", "rev", "rg", "rm", "rmdir", "sed", "seq", "sha1sum",
    "sha256sum", "sha512sum", "shuf", "sleep", "sort", "split", "stat", "strings", "sum", "sync", "tac", "tail", "tar",
    "tee", "test", "touch", "tr", "tree", "true", "truncate", "type", "unexpand", "uniq", "unlink", "unzip", "wait",
    "wc", "which", "xxd", "xz", "yq", "zcat", "zip", "zipinfo", "zstd",
    # what these run is checked separately
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
"""Options, and sed commands, with which some of these do run a file."""
_SETS_A_PROGRAM = re.compile(
    r"\b(?:BASH_ENV|ENV|PATH|PYTHON\w+|NODE_\w+|PERL5\w+|RUBY\w+|LD_\w+|GIT_\w+|\w*EDITOR|VISUAL|\w*PAGER|LESS\w+|PS\d"
    r"|PROMPT_COMMAND)="
)
"""Variables that decide what is run."""
_GIT_DATA_COMMANDS = frozenset({
    "add", "blame", "branch", "checkout", "cherry-pick", "clean", "clone", "commit", "describe", "diff", "fetch",
    "grep", "init", "log", "ls-files", "merge", "mv", "pull", "push", "remote", "reset", "restore", "rev-parse", "rm",
    "shortlog", "show", "stash", "status", "switch", "tag",
})  # fmt: skip

_PYTHON = "*.py *.pth *.pyw pyproject.toml setup.cfg tox.ini pytest.ini"
_NODE = "package.json *.js *.mjs *.cjs *.ts *.mts *.cts"
_BY_CONVENTION = {
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
"""Programs that run files by convention, and the names of these files."""


def never_runs_files(text: str) -> bool:
    """Whether no program of this line runs a file that it is given. False if the line cannot be parsed."""
    line = read_line(text)
    return line.whole and _SETS_A_PROGRAM.search(text) is None and all(map(_only_handles_data, expand_wrappers(line)))


def files_run_by_convention(text: str, folder: Path) -> frozenset[str]:
    """Patterns of the files that this line, run in this folder, runs by convention."""
    return frozenset().union(*(_by_convention(command, folder) for command in expand_wrappers(read_line(text))))


def _by_convention(command: ParsedCommand, folder: Path) -> frozenset[str]:
    name = _plain_name(command)
    modules = _imported_modules(command, folder) if name in ("python", "pypy") else None
    if modules is None:
        return _BY_CONVENTION.get(name, frozenset())
    return frozenset(pattern for module in modules for pattern in (f"{module}.py", f"*/{module}/*.py"))


def _imported_modules(command: ParsedCommand, folder: Path) -> frozenset[str] | None:
    """The modules that a Python call imports, following those beside its script; None if unknown."""
    words = iter(command.argv[1:])
    first = next((word for word in words if word == "-" or not word.startswith("-") or _CODE.fullmatch(word)), None)
    if first is None or first == "-" or (first.startswith("-") and first.endswith("m")):
        return None
    script = folder / first
    texts = [next(words, "")] if _CODE.fullmatch(first) else [_text_of(script)]
    base = folder if _CODE.fullmatch(first) else script.parent
    modules: set[str] = {"sitecustomize", "usercustomize"}
    while texts and len(modules) < _MAX_MODULES:
        names = {name for line in _IMPORTS.findall(texts.pop()) for name in _NAME.findall(line)} - modules
        modules |= names
        texts += [_text_of(base / f"{name}.py") for name in names]
    return frozenset(modules)


def _text_of(file: Path) -> str:
    try:
        with file.open(encoding="utf-8", errors="replace") as text:
            return text.read(_MAX_SCRIPT)
    except (OSError, ValueError):
        return ""


_CODE = re.compile(r"-[a-zA-Z]*[cm]")
_IMPORTS = re.compile(r"\b(?:import|from|__import__|import_module|run_path|run_module|exec|open)\b([^\n;]*)")
_NAME = re.compile(r"[A-Za-z_]\w*")
_MAX_MODULES = 500
_MAX_SCRIPT = 1_000_000


def unquoted_words(text: str) -> Iterator[str]:
    """Every unquoted word of a line that may name a file."""
    for command in expand_wrappers(read_line(text)):
        yield from command.argv
        yield from (redirect.target for redirect in command.redirects if redirect.operator not in ("<<", "<<-"))


def output_words(text: str) -> Iterator[str]:
    """The words that name files which a line writes, as far as its words show."""
    for command in expand_wrappers(read_line(text)):
        yield from written_words(command)


def files_written(text: str, folder: Path) -> Iterator[Path]:
    """Files that a line, run in this folder, writes as far as its words show; existing folders excluded. Blocks."""
    names = [*_OUTPUT.findall(text), *(_FETCHED.findall(text) if "wget" in text else ())]
    for command in expand_wrappers(read_line(text)):
        names += written_words(command)
        names += [f"{name}/{Path(source).name}" for name in copied_into(command) for source in operands(command)]
    for name in dict.fromkeys(names):
        with suppress(RuntimeError):  # unknown `~user`
            file = folder / Path(name).expanduser()
            if name and "\0" not in name and not file.is_dir():
                yield file


_OUTPUT = re.compile(r"(?:>>?|(?<=\s)-[oO]|--output(?:-document)?|\btee(?:\s+-a)?)[\s=]*([^\s;|&<>()'\"]+)")
_FETCHED = re.compile(r"https?://[^\s'\"]+/([\w.-]+)")


def prints_no_content(text: str) -> bool:
    """Whether a line prints no file content: names, sizes and counts at most."""
    line = read_line(text)
    return line.whole and not _STREAMS.search(text) and all(map(_prints_no_content, expand_wrappers(line)))


def _prints_no_content(command: ParsedCommand) -> bool:
    words = command.argv[1:]
    if command.name == "xargs":  # an error, or the echo that it runs by default, would repeat its input
        return bool(command.fed_by) and command.fed_by[-1].name in ("find", "ls") and not _COUNTS.isdisjoint(words)
    if command.name != "git":
        return command.name in _COUNTS and not any(map(_READS_NAMES.match, words))
    if words[:1] and words[0] in _GIT_COUNTS:
        return _VERBOSE.isdisjoint(words)
    sums = words[:1] == ("diff",) and not _SUMS.isdisjoint(words)  # `log` and `show` print what authors wrote
    return sums and _VERBOSE.isdisjoint(words)


_STREAMS = re.compile(r"/dev/|/proc/")
_COUNTS = frozenset({
    ":", "[", "cd", "chmod", "cksum", "cp", "df", "du", "find", "ls", "md5sum", "mkdir", "mv", "pwd", "rm", "rmdir",
    "sha1sum", "sha256sum", "sha512sum", "stat", "test", "touch", "true", "wc",
})  # fmt: skip
_READS_NAMES = re.compile(r"-\w*c\w*$|--check|--files0-from")
"""Options that read names from a file; names of missing files are repeated in errors."""
_GIT_COUNTS = frozenset({"add", "commit", "init", "mv", "push", "rm", "rev-parse", "status"})
_SUMS = frozenset({"--stat", "--shortstat", "--name-only", "--name-status", "--numstat"})
_VERBOSE = frozenset({"-v", "-vv", "--verbose", "-p", "-u", "--patch", "-L", "-c", "--cc", "--patch-with-stat"})


def names_its_sources(text: str) -> bool:
    """Whether each printed line of an unnamed file follows the name of that file: a search through folders, cut by
    other programs at most.
    """
    line = read_line(text)
    first, *others = line.commands or (ParsedCommand(()),)
    is_one_pipe = line.whole and not line.sets and len(list(expand_wrappers(line))) == 1 + len(others)
    return is_one_pipe and _searches(first) and all(map(_shows_a_part, others))


def _searches(command: ParsedCommand) -> bool:
    words = command.argv[1:]
    recursive = command.name == "rg" or (command.name == "grep" and any(map(_RECURSIVE.match, words)))
    return recursive and not command.fed_by and not any(map(_WITHOUT_NAMES.match, words)) and _is_quiet(command)


def _shows_a_part(command: ParsedCommand) -> bool:
    words = [word for word in command.argv[1:] if not re.fullmatch(r"-[a-z]?\d*|\d+", word)]
    return command.name in ("head", "tail", "sort", "uniq", "wc") and bool(command.fed_by) and not words


def _is_quiet(command: ParsedCommand) -> bool:
    """Whether it prints without writing files."""
    return all(redirect.target in ("/dev/null", "1", "2") for redirect in command.redirects)


_WITHOUT_NAMES = re.compile(
    r"-[a-zA-Z]*[hIfz]|--(?:no-filename|file|pre|null|format|replace|no-heading|path-sep|label)"
)


_RECURSIVE = re.compile(r"-[a-zA-Z]*[rR]|--(?:dereference-)?recursive|--directories")


def _only_handles_data(command: ParsedCommand) -> bool:
    name = command.name
    if name in SHELLS:
        return "-c" in command.argv  # expand_wrappers yields what that runs
    if name and name not in _DATA_COMMANDS:
        return False
    if name == "git":
        return command.argv[1:2] == () or command.argv[1] in _GIT_DATA_COMMANDS
    runs = _AS_CODE.get(name)
    return runs is None or not any(map(runs.match, command.argv[1:]))


def _plain_name(command: ParsedCommand) -> str:
    """`python` for `python3.11`."""
    return command.name.removesuffix(".exe").rstrip("0123456789.") or command.name


def operands(command: ParsedCommand) -> list[str]:
    """The words that are not options."""
    words, after_options = [], False
    for word in command.argv[1:]:
        if word == "--" and not after_options:
            after_options = True
        elif after_options or not word.startswith("-") or word == "-":
            words.append(word)
    return words


WRITES_LAST = frozenset({"cp", "mv", "install", "ln", "rsync", "scp", "link"})
_WRITES_ALL = frozenset(
    {"tee", "truncate", "rm", "rmdir", "unlink", "shred", "touch", "chmod", "chown", "mkdir", "patch"}
)
_IN_PLACE = re.compile(r"-\w*i|--in-place")
_WRITES_IN_PLACE = frozenset({"sed", "perl", "ruby", "gawk", "awk", "yq"})


def written_words(command: ParsedCommand) -> list[str]:
    """The words that name files which this command writes, as far as its words show."""
    name, words = command.name, operands(command)
    targets = [redirect.target for redirect in command.redirects if redirect.writes]
    if name in WRITES_LAST:
        targets += [*copied_into(command), *(words[:-1] if name == "mv" else [])]
    elif name in _WRITES_ALL or (name in _WRITES_IN_PLACE and any(map(_IN_PLACE.match, command.argv[1:]))):
        targets += words
    elif name in ("dd", "dcfldd"):
        targets += [word[3:] for word in command.argv if word.startswith("of=")]
    elif name in ("curl", "wget", "sort", "gcc", "cc"):
        targets += _values(command, ("-o", "-O", "--output", "--output-document"))
    return targets


def copied_into(command: ParsedCommand) -> list[str]:
    """The words that may name the folder into which this command copies its other operands."""
    if command.name not in WRITES_LAST:
        return []
    return [*operands(command)[-1:], *_values(command, ("-t", "--target-directory"))]


def _values(command: ParsedCommand, names: tuple[str, ...]) -> list[str]:
    """The values of these options, after a space or an equals sign."""
    separate = [value for name, value in pairwise(command.argv) if name in names]
    joined = [word.partition("=") for word in command.argv if word.startswith("--")]
    return separate + [value for name, equals, value in joined if equals and name in names]
