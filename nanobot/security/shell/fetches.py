"""Which commands bring words from outside: what they print is then somebody else's, and trusted as little."""

import re

from nanobot.security.shell.words import Command

_ALWAYS = frozenset({
    "curl", "wget", "aria2c", "http", "https", "xh", "lynx", "w3m", "links", "elinks", "nc", "ncat", "netcat", "socat",
    "telnet", "ftp", "lftp", "sftp", "tftp", "scp", "ssh", "mosh", "rsync", "yt-dlp", "youtube-dl", "gallery-dl", "dig",
    "nslookup", "host", "whois", "finger", "gh", "glab", "hub", "aws", "gcloud", "az", "kubectl", "heroku", "rclone",
    "s3cmd", "gsutil", "mutt", "fetchmail", "getmail", "newsboat", "lwp-request", "GET", "grpcurl", "websocat",
})  # fmt: skip
_WITH: dict[str, frozenset[str]] = {
    "git": frozenset({"clone", "fetch", "pull", "ls-remote", "submodule", "remote", "archive"}),
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


def brings_files(command: Command) -> bool:
    """Whether what it writes may be words from outside. A folder that is under git stays the owner's as git updates
    it: what others add there, the owner works on with them.
    """
    updates = command.name == "git" and _UPDATES & set(command.argv[1:]) and "clone" not in command.argv
    return fetches(command) and not updates


_UPDATES = frozenset({"fetch", "pull", "ls-remote", "submodule", "remote"})


def fetches(command: Command) -> bool:
    """Whether what comes back may be words from outside."""
    name = command.name.removesuffix(".exe")
    words = command.argv[1:]
    if any(_DEV_NET.search(text) for text in (*command.argv, *(redirect.target for redirect in command.redirects))):
        return True
    if name in _ALWAYS:
        return True
    name = name.rstrip("0123456789.")
    if name in _WITH:
        return bool(_WITH[name] & set(words))
    if name in _CODE:
        code = (*words, *(redirect.target for redirect in command.redirects if redirect.operator == "<<<"))
        return any(_NETWORK.search(text) for text in code)
    return False
