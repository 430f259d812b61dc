"""What known programs do with files and the network: which run the content of files, named or by convention, which only
show, move or count it, which write, and which bring untrusted content.

Running a file with untrusted content makes the command untrusted. Reading such a file does not.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from nanobot.security.shell.commands import SHELLS, Command, read_line

_NETWORK_PROGRAMS = frozenset({
    "curl", "wget", "aria2c", "http", "https", "xh", "lynx", "w3m", "links", "elinks", "nc", "ncat", "netcat", "socat",
    "telnet", "ftp", "lftp", "sftp", "tftp", "scp", "ssh", "mosh", "rsync", "yt-dlp", "youtube-dl", "gallery-dl", "dig",
    "nslookup", "host", "whois", "finger", "gh", "glab", "hub", "aws", "gcloud", "az", "kubectl", "heroku", "rclone",
    "s3cmd", "gsutil", "newsboat", "lwp-request", "GET", "grpcurl", "websocat",
    # mail
    "mutt", "neomutt", "alpine", "mail", "mailx", "s-nail", "himalaya", "notmuch", "mu", "aerc", "fetchmail", "getmail",
    "mbsync", "offlineimap", "mpop",
    # logs, which contain what others have sent to this machine
    "journalctl", "dmesg", "lnav", "coredumpctl",
    # calendars, contacts, tickets, which others write to
    "gcalcli", "khal", "khard", "vdirsyncer", "calcurse", "jira", "acli", "tea",
    # database servers, which others write to
    "psql", "pg_dump", "mysql", "mysqldump", "mariadb", "redis-cli", "valkey-cli", "mongosh", "mongo", "mongoexport",
    "cqlsh", "sqlcmd", "clickhouse-client", "influx",
    # the clipboard
    "wl-paste", "pbpaste", "termux-clipboard-get",
})  # fmt: skip
_GIT_UPDATES = frozenset({"fetch", "pull", "submodule", "archive"})
"""Git commands on the remote of a folder: trusted, since the owner works with the people who push to it."""
_ELSEWHERE = re.compile(r"--remote|[\w+.-]+://|[\w.-]+@[\w.-]+:")
_NETWORK_SUBCOMMANDS = {
    name: frozenset(words.split())
    for name, words in {
        "git": "clone ls-remote",
        "hg": "clone pull incoming",
        "svn": "checkout co update up cat log export",
        "npm": "view info search show pack audit",
        "pip": "download search index",
        "docker": "pull run search logs",
        "podman": "pull run search logs",
        "go": "get",
        "snap": "info find",
        "openssl": "s_client",
        "xclip": "-o -out",
        "xsel": "-o --output",
    }.items()
}
_UNPACKS = frozenset({"tar", "bsdtar", "unzip", "7z", "7za", "7zr", "unrar", "unar", "cpio", "jar"})
_LANGUAGES = frozenset({"python", "node", "perl", "ruby", "php", "deno", "bun", "lua"})
_CODE_FETCHES = re.compile(
    r"[a-z]{2,6}://(?!localhost|127\.)|\burllib|\brequests\b|\bhttpx?\b|\baiohttp|\bsocket\b|\bfetch\(|Net::HTTP|LWP::|"
    r"open-uri|file_get_contents|XMLHttpRequest"
)
_SCRIPT_FETCHES = re.compile(
    r"\burllib[\w.]*request|\burllib3\b|\b(?:import|from)\s+requests\b|\bhttpx\b|\baiohttp\b|\bhttp\.client\b"
    r"|\bsocket\.(?:socket|create_connection)\b|\bfetch\(|\baxios\b|node-fetch|require\(['\"](?:node:)?https?['\"]\)"
    r"|Net::HTTP|LWP::|open-uri|curl_init|XMLHttpRequest"
)
_DEV_NET = re.compile(r"/dev/(?:tcp|udp)/")

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
_RUNS_A_FILE = {
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

_BY_CONVENTION = {
    name: frozenset(patterns.split())
    for names, patterns in {
        "python pypy pytest py.test pip pipx uv poetry tox nox ruff mypy pdm hatch ipython jupyter":
            "*.py *.pth *.pyw pyproject.toml setup.cfg tox.ini pytest.ini",
        "make gmake bmake": "Makefile makefile GNUmakefile *.mk",
        "cmake ctest": "CMakeLists.txt *.cmake",
        "ninja": "build.ninja",
        "meson": "meson.build",
        "npm npx yarn pnpm node nodejs bun deno tsc vite jest": "package.json *.js *.mjs *.cjs *.ts *.mts *.cts",
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
}  # fmt: skip
"""Programs that run files by convention, and the names of these files."""
_NAMES_CODE = re.compile(r"-(?:[a-zA-Z]*[cm])?")
"""Options of Python that say where its program comes from: the line, a module, or the standard input."""
_IMPORTS = re.compile(r"\b(?:import|from|__import__|import_module|run_path|run_module|exec|open)\b([^\n;]*)")
_NAME = re.compile(r"[A-Za-z_]\w*")
_MAX_MODULES, _MAX_SCRIPT = 500, 1_000_000

_COUNTS = frozenset({
    ":", "[", "cd", "chmod", "cksum", "cp", "df", "du", "find", "ls", "md5sum", "mkdir", "mv", "pwd", "rm", "rmdir",
    "sha1sum", "sha256sum", "sha512sum", "stat", "test", "touch", "true", "wc",
})  # fmt: skip
_READS_NAMES = re.compile(r"-\w*c\w*$|--check|--files0-from")
"""Options that read names from a file; names of missing files are repeated in errors."""
_GIT_COUNTS = frozenset({"add", "commit", "init", "mv", "push", "rm", "rev-parse", "status"})
_GIT_SUMS = frozenset({"--stat", "--shortstat", "--name-only", "--name-status", "--numstat"})
_GIT_VERBOSE = frozenset({"-v", "-vv", "--verbose", "-p", "-u", "--patch", "-L", "-c", "--cc", "--patch-with-stat"})
_STREAMS = re.compile(r"/dev/|/proc/")
_RECURSIVE = re.compile(r"-[a-zA-Z]*[rR]|--(?:dereference-)?recursive|--directories")
_WITHOUT_NAMES = re.compile(
    r"-[a-zA-Z]*[hIfz]|--(?:no-filename|file|pre|null|format|replace|no-heading|path-sep|label)"
)

_WRITES_LAST = frozenset({"cp", "mv", "install", "ln", "rsync", "scp", "link"})
_WRITES_ALL = frozenset(
    {"tee", "truncate", "rm", "rmdir", "unlink", "shred", "touch", "chmod", "chown", "mkdir", "patch"}
)
_OUTPUT_OPTIONS = ("-o", "-O", "--output", "--output-document")
_IN_PLACE = re.compile(r"-\w*i|--in-place")
_WRITES_IN_PLACE = frozenset({"sed", "perl", "ruby", "gawk", "awk", "yq"})


def fetches(command: Command) -> bool:
    """Whether its output may be untrusted content."""
    name, words = command.plain_name, command.argv[1:]
    if any(_DEV_NET.search(text) for text in (*command.argv, *(redirect.target for redirect in command.redirects))):
        return True
    if name == "git" and _GIT_UPDATES & set(words) and "clone" not in words:
        return any(map(_ELSEWHERE.match, words))
    if name in _LANGUAGES:
        code = (*words, *(redirect.target for redirect in command.redirects if redirect.operator == "<<<"))
        return any(map(_CODE_FETCHES.search, code))
    return (
        command.name.removesuffix(".exe") in _NETWORK_PROGRAMS
        or not _NETWORK_SUBCOMMANDS.get(name, frozenset()).isdisjoint(words)
    )  # fmt: skip


def script_fetches(command: Command, folder: Path) -> bool:
    """Whether it runs a script that uses the network, judging by the script's text. Blocks."""
    name = command.plain_name
    script = next(iter(command.operands), "") if name in _LANGUAGES | SHELLS else "".join(command.argv[:1])
    if not script or (name not in _LANGUAGES | SHELLS and "/" not in script):
        return False
    text = _text_of(folder / script)
    if "\0" in text:
        return False
    if name in SHELLS or re.match(r"#!.*sh\b", text):
        return any(map(fetches, read_line(text).programs))
    return _SCRIPT_FETCHES.search(text) is not None


def unpacks(command: Command) -> bool:
    """Whether it may create a tree of foreign files (an archive)."""
    return command.name.removesuffix(".exe") in _UNPACKS


def never_runs_files(text: str) -> bool:
    """Whether no program of this line runs a file that it is given. False if the line cannot be read."""
    line = read_line(text)
    return line.whole and _SETS_A_PROGRAM.search(text) is None and all(map(_only_handles_data, line.programs))


def _only_handles_data(command: Command) -> bool:
    name = command.name
    if name in SHELLS:
        return "-c" in command.argv  # what that runs is a program of the line too
    if name == "git":
        return not command.argv[1:] or command.argv[1] in _GIT_DATA_COMMANDS
    runs = _RUNS_A_FILE.get(name)
    return (not name or name in _DATA_COMMANDS) and not (runs and any(map(runs.match, command.argv[1:])))


def files_run_by_convention(text: str, folder: Path) -> frozenset[str]:
    """Patterns of the files that this line, run in this folder, runs by convention."""
    patterns = set[str]()
    for command in read_line(text).programs:
        name = command.plain_name
        modules = _imported_modules(command, folder) if name in ("python", "pypy") else None
        if modules is None:
            patterns |= _BY_CONVENTION.get(name, frozenset())
        else:
            patterns |= {pattern for module in modules for pattern in (f"{module}.py", f"*/{module}/*.py")}
    return frozenset(patterns)


def _imported_modules(command: Command, folder: Path) -> set[str] | None:
    """The modules that a Python call imports, following those beside its script; None if unknown."""
    words = iter(command.argv[1:])
    first = next((word for word in words if not word.startswith("-") or _NAMES_CODE.fullmatch(word)), "-")
    if first == "-" or (first.startswith("-") and first.endswith("m")):
        return None
    is_code, script = first.startswith("-"), folder / first
    texts = [next(words, "") if is_code else _text_of(script)]
    modules = {"sitecustomize", "usercustomize"}
    while texts and len(modules) < _MAX_MODULES:
        names = {name for line in _IMPORTS.findall(texts.pop()) for name in _NAME.findall(line)} - modules
        modules |= names
        texts += [_text_of((folder if is_code else script.parent) / f"{name}.py") for name in names]
    return modules


def _text_of(file: Path) -> str:
    try:
        with file.open(encoding="utf-8", errors="replace") as text:
            return text.read(_MAX_SCRIPT)
    except (OSError, ValueError):
        return ""


def prints_no_content(text: str) -> bool:
    """Whether a line prints no file content: names, sizes and counts at most."""
    line = read_line(text)
    return line.whole and not _STREAMS.search(text) and all(map(_prints_no_content, line.programs))


def _prints_no_content(command: Command) -> bool:
    words = command.argv[1:]
    if command.name == "xargs":  # an error, or the echo that it runs by default, would repeat its input
        return bool(command.fed_by) and command.fed_by[-1].name in ("find", "ls") and not _COUNTS.isdisjoint(words)
    if command.name != "git":
        return command.name in _COUNTS and not any(map(_READS_NAMES.match, words))
    sums = words[:1] == ("diff",) and not _GIT_SUMS.isdisjoint(words)  # `log` and `show` print what authors wrote
    return (sums or not _GIT_COUNTS.isdisjoint(words[:1])) and _GIT_VERBOSE.isdisjoint(words)


def names_its_sources(text: str) -> bool:
    """Whether each printed line of an unnamed file follows the name of that file: a search through folders, cut by
    other programs at most.
    """
    line = read_line(text)
    first, *others = line.commands or [Command(())]
    is_one_pipe = line.whole and not line.sets and len(line.programs) == 1 + len(others)
    return is_one_pipe and _searches(first) and all(map(_shows_a_part, others))


def _searches(command: Command) -> bool:
    words = command.argv[1:]
    recursive = command.name == "rg" or (command.name == "grep" and any(map(_RECURSIVE.match, words)))
    quiet = all(redirect.target in ("/dev/null", "1", "2") for redirect in command.redirects)
    return recursive and not command.fed_by and not any(map(_WITHOUT_NAMES.match, words)) and quiet


def _shows_a_part(command: Command) -> bool:
    words = [word for word in command.argv[1:] if not re.fullmatch(r"-[a-z]?\d*|\d+", word)]
    return command.name in ("head", "tail", "sort", "uniq", "wc") and bool(command.fed_by) and not words


def unquoted_words(text: str) -> Iterator[str]:
    """Every unquoted word of a line that may name a file."""
    for command in read_line(text).programs:
        yield from command.argv
        yield from (redirect.target for redirect in command.redirects if redirect.operator not in ("<<", "<<-"))


def output_words(text: str) -> Iterator[str]:
    """The words that name files which a line writes, as far as its words show."""
    for command in read_line(text).programs:
        yield from written_words(command)
        yield from command.values(*_OUTPUT_OPTIONS)


def files_written(text: str, folder: Path) -> Iterator[Path]:
    """Files that a line, run in this folder, writes as far as its words show; existing folders excluded. Blocks."""
    for name in dict.fromkeys([*_OUTPUT.findall(text), *output_words(text)]):
        with suppress(RuntimeError):  # unknown `~user`
            file = folder / Path(name).expanduser()
            if name and "\0" not in name and not file.is_dir():
                yield file


_OUTPUT = re.compile(r"(?:>>?|\btee(?:\s+-a)?)[\s=]*([^\s;|&<>()'\"]+)")
"""A file in a text that may be a program in another language, such as that of awk."""


def written_words(command: Command) -> list[str]:
    """The words that name files which this command writes, as far as its words show."""
    name, words = command.name, command.operands
    targets = [redirect.target for redirect in command.redirects if redirect.writes]
    if name in _WRITES_LAST:
        folders = [*words[-1:], *command.values("-t", "--target-directory")]
        targets += folders + (words[:-1] if name == "mv" else [])
        targets += [f"{folder}/{Path(source).name}" for folder in folders for source in words if source != folder]
    elif name in _WRITES_ALL or (name in _WRITES_IN_PLACE and any(map(_IN_PLACE.match, command.argv[1:]))):
        targets += words
    elif name in ("dd", "dcfldd"):
        targets += [word[3:] for word in command.argv if word.startswith("of=")]
    elif name in ("curl", "wget", "sort", "gcc", "cc"):
        targets += command.values(*_OUTPUT_OPTIONS)
        if name == "wget" or (name == "curl" and "-O" in command.argv):  # under its name there
            targets += [word.rpartition("/")[2] for word in words]
    return targets
