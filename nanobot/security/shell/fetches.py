"""Which commands bring words from outside: what they print and write is then somebody else's, and trusted as little."""

import re
from pathlib import Path

from nanobot.security.shell.words import Command, read_line
from nanobot.security.shell.wrappers import SHELLS, unwrapped

_ALWAYS = frozenset({
    "curl", "wget", "aria2c", "http", "https", "xh", "lynx", "w3m", "links", "elinks", "nc", "ncat", "netcat", "socat",
    "telnet", "ftp", "lftp", "sftp", "tftp", "scp", "ssh", "mosh", "rsync", "yt-dlp", "youtube-dl", "gallery-dl", "dig",
    "nslookup", "host", "whois", "finger", "gh", "glab", "hub", "aws", "gcloud", "az", "kubectl", "heroku", "rclone",
    "s3cmd", "gsutil", "mutt", "fetchmail", "getmail", "newsboat", "lwp-request", "GET", "grpcurl", "websocat",
})  # fmt: skip
_UPDATES = frozenset({"fetch", "pull", "submodule", "archive"})
"""What git does with the repository that a folder came from: what others add there, the owner works on with them."""
_ELSEWHERE = re.compile(r"--remote|[\w+.-]+://|[\w.-]+@[\w.-]+:")
_WITH: dict[str, frozenset[str]] = {
    "git": frozenset({"clone", "ls-remote", *_UPDATES}),
    "hg": frozenset({"clone", "pull", "incoming"}),
    "svn": frozenset({"checkout", "co", "update", "up", "cat", "log", "export"}),
    "npm": frozenset({"view", "info", "search", "show", "pack", "audit"}),
    "pip": frozenset({"download", "search", "index"}),
    "docker": frozenset({"pull", "run", "search"}),
    "podman": frozenset({"pull", "run", "search"}),
    "go": frozenset({"get"}),
    "snap": frozenset({"info", "find"}),
    "openssl": frozenset({"s_client"}),
}
_CODE = frozenset({"python", "node", "perl", "ruby", "php", "deno", "bun", "lua"})
_NETWORK = re.compile(
    r"[a-z]{2,6}://(?!localhost|127\.)|\burllib|\brequests\b|\bhttpx?\b|\baiohttp|\bsocket\b|\bfetch\(|Net::HTTP|LWP::|"
    r"open-uri|file_get_contents|XMLHttpRequest"
)
_DEV_NET = re.compile(r"/dev/(?:tcp|udp)/")


def script_fetches(command: Command, folder: Path) -> bool:
    """Whether it runs a script that asks the network for something, as far as its text tells. Blocks."""
    name = command.name.rstrip("0123456789.")
    named = next((word for word in command.argv[1:] if not word.startswith("-")), "")
    script = named if name in _CODE | SHELLS else command.argv[0] if command.argv and "/" in command.argv[0] else ""
    try:
        with (folder / script).open("rb") as file:
            raw = file.read(_LONGEST_SCRIPT) if script else b""
    except (OSError, ValueError):
        return False
    if b"\0" in raw:
        return False
    text = raw.decode(errors="replace")
    if name in SHELLS or re.match(r"#!.*sh\b", text):
        return any(map(fetches, unwrapped(read_line(text))))
    return _BY_LIBRARY.search(text) is not None


_LONGEST_SCRIPT = 200_000
_BY_LIBRARY = re.compile(
    r"\burllib[\w.]*request|\burllib3\b|\b(?:import|from)\s+requests\b|\bhttpx\b|\baiohttp\b|\bhttp\.client\b"
    r"|\bsocket\.(?:socket|create_connection)\b|\bfetch\(|\baxios\b|node-fetch|require\(['\"](?:node:)?https?['\"]\)"
    r"|Net::HTTP|LWP::|open-uri|curl_init|XMLHttpRequest"
)


def fetches(command: Command) -> bool:
    """Whether what comes back may be words from outside."""
    name = command.name.removesuffix(".exe")
    words = command.argv[1:]
    if any(_DEV_NET.search(text) for text in (*command.argv, *(redirect.target for redirect in command.redirects))):
        return True
    if name in _ALWAYS:
        return True
    name = name.rstrip("0123456789.")
    if name == "git" and _UPDATES & set(words) and "clone" not in words:
        return any(map(_ELSEWHERE.match, words))
    if name in _WITH:
        return bool(_WITH[name] & set(words))
    if name in _CODE:
        code = (*words, *(redirect.target for redirect in command.redirects if redirect.operator == "<<<"))
        return any(_NETWORK.search(text) for text in code)
    return False
