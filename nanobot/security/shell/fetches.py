"""Which commands bring untrusted content: their output and the files they write are marked as such."""

import re
from pathlib import Path

from nanobot.security.shell.parse import ParsedCommand, read_line
from nanobot.security.shell.wrappers import SHELLS, expand_wrappers

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
_UPDATES = frozenset({"fetch", "pull", "submodule", "archive"})
"""Git commands on the remote of a folder: trusted, since the owner works with the people who push to it."""
_ELSEWHERE = re.compile(r"--remote|[\w+.-]+://|[\w.-]+@[\w.-]+:")
_SUBCOMMANDS: dict[str, frozenset[str]] = {
    "git": frozenset({"clone", "ls-remote", *_UPDATES}),
    "hg": frozenset({"clone", "pull", "incoming"}),
    "svn": frozenset({"checkout", "co", "update", "up", "cat", "log", "export"}),
    "npm": frozenset({"view", "info", "search", "show", "pack", "audit"}),
    "pip": frozenset({"download", "search", "index"}),
    "docker": frozenset({"pull", "run", "search", "logs"}),
    "podman": frozenset({"pull", "run", "search", "logs"}),
    "go": frozenset({"get"}),
    "snap": frozenset({"info", "find"}),
    "openssl": frozenset({"s_client"}),
    "xclip": frozenset({"-o", "-out"}),
    "xsel": frozenset({"-o", "--output"}),
}
_UNPACKS = frozenset({"tar", "bsdtar", "unzip", "7z", "7za", "7zr", "unrar", "unar", "cpio", "jar"})
_CODE = frozenset({"python", "node", "perl", "ruby", "php", "deno", "bun", "lua"})
_NETWORK = re.compile(
    r"[a-z]{2,6}://(?!localhost|127\.)|\burllib|\brequests\b|\bhttpx?\b|\baiohttp|\bsocket\b|\bfetch\(|Net::HTTP|LWP::|"
    r"open-uri|file_get_contents|XMLHttpRequest"
)
_DEV_NET = re.compile(r"/dev/(?:tcp|udp)/")


def script_fetches(command: ParsedCommand, folder: Path) -> bool:
    """Whether it runs a script that uses the network, judging by the script's text. Blocks."""
    name = command.name.rstrip("0123456789.")
    operand = next((word for word in command.argv[1:] if not word.startswith("-")), "")
    script = operand if name in _CODE | SHELLS else command.argv[0] if command.argv and "/" in command.argv[0] else ""
    try:
        with (folder / script).open("rb") as file:
            raw = file.read(_MAX_SCRIPT) if script else b""
    except (OSError, ValueError):
        return False
    if b"\0" in raw:
        return False
    text = raw.decode(errors="replace")
    if name in SHELLS or re.match(r"#!.*sh\b", text):
        return any(map(fetches, expand_wrappers(read_line(text))))
    return _BY_LIBRARY.search(text) is not None


_MAX_SCRIPT = 200_000
_BY_LIBRARY = re.compile(
    r"\burllib[\w.]*request|\burllib3\b|\b(?:import|from)\s+requests\b|\bhttpx\b|\baiohttp\b|\bhttp\.client\b"
    r"|\bsocket\.(?:socket|create_connection)\b|\bfetch\(|\baxios\b|node-fetch|require\(['\"](?:node:)?https?['\"]\)"
    r"|Net::HTTP|LWP::|open-uri|curl_init|XMLHttpRequest"
)


def unpacks(command: ParsedCommand) -> bool:
    """Whether it may create a tree of foreign files (an archive)."""
    return command.name.removesuffix(".exe") in _UNPACKS


def fetches(command: ParsedCommand) -> bool:
    """Whether its output may be untrusted content."""
    name = command.name.removesuffix(".exe")
    words = command.argv[1:]
    if any(_DEV_NET.search(text) for text in (*command.argv, *(redirect.target for redirect in command.redirects))):
        return True
    if name in _NETWORK_PROGRAMS:
        return True
    name = name.rstrip("0123456789.")
    if name == "git" and _UPDATES & set(words) and "clone" not in words:
        return any(map(_ELSEWHERE.match, words))
    if name in _SUBCOMMANDS:
        return bool(_SUBCOMMANDS[name] & set(words))
    if name in _CODE:
        code = (*words, *(redirect.target for redirect in command.redirects if redirect.operator == "<<<"))
        return any(_NETWORK.search(text) for text in code)
    return False
