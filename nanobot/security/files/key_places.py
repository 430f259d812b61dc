"""Well-known paths of keys and credentials, which no tool reads or writes without the owner's permission.

A path may be a folder or a file, and need not exist.
"""

from functools import lru_cache
from pathlib import Path

_IN_HOME = (
    ".ssh", ".gnupg", ".aws", ".azure", ".config/gcloud", ".kube", ".docker", ".config/containers",
    ".netrc", "_netrc", ".git-credentials", ".config/git/credentials", ".config/gh", ".config/hub", ".config/glab-cli",
    ".npmrc", ".yarnrc.yml", ".pypirc", ".config/pip", ".pip", ".gem/credentials", ".cargo/credentials",
    ".cargo/credentials.toml", ".m2/settings.xml", ".gradle/gradle.properties", ".composer/auth.json",
    ".config/composer/auth.json", ".nuget/NuGet/NuGet.Config", ".terraform.d", ".terraformrc", ".vault-token",
    ".pgpass", ".my.cnf", ".mylogin.cnf", ".s3cfg", ".boto", ".rclone.conf", ".config/rclone", ".config/op",
    ".password-store", ".local/share/keyrings", ".local/share/kwalletd", ".kde/share/apps/kwallet", ".keepass",
    ".config/keepassxc", ".config/Bitwarden", ".config/Bitwarden CLI", ".electrum", ".bitcoin", ".ethereum",
    ".mozilla", ".thunderbird", ".config/google-chrome", ".config/chromium", ".config/BraveSoftware",
    ".config/microsoft-edge", ".config/vivaldi", ".config/opera", ".var/app", "snap/firefox", "snap/chromium",
    ".config/Signal", ".config/Slack", ".config/discord", ".local/share/TelegramDesktop", ".config/teams",
    ".codex", ".claude", ".claude.json", ".gemini", ".config/github-copilot", ".continue", ".openclaw", ".hermes",
    ".huggingface", ".cache/huggingface/token", ".config/openai", ".config/anthropic", ".wrangler", ".config/heroku",
    ".config/doctl", ".oci", ".ibmcloud", ".config/hcloud", ".config/sops", ".age", ".config/age",
    ".bash_history", ".zsh_history", ".python_history", ".psql_history", ".mysql_history", ".node_repl_history",
    ".local/share/fish/fish_history",
    # macOS
    "Library/Keychains", "Library/Application Support/Google/Chrome", "Library/Application Support/Firefox",
    "Library/Application Support/BraveSoftware", "Library/Safari", "Library/Cookies", "Library/Messages",
    # Windows
    "AppData/Roaming/Microsoft/Credentials", "AppData/Local/Microsoft/Credentials", "AppData/Roaming/Microsoft/Protect",
    "AppData/Local/Google/Chrome/User Data", "AppData/Roaming/Mozilla", "AppData/Roaming/gnupg",
)  # fmt: skip
_OF_HOST = (
    "/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers", "/etc/sudoers.d",
    "/etc/ssl/private", "/etc/ssh", "/etc/kubernetes", "/etc/NetworkManager/system-connections", "/etc/wireguard",
    "/etc/openvpn", "/etc/letsencrypt", "/etc/krb5.keytab", "/etc/ppp", "/run/secrets", "/var/run/secrets",
    "/var/lib/docker",
)  # fmt: skip


@lru_cache(maxsize=16)
def key_places(home: Path) -> tuple[Path, ...]:
    """Credential paths of the user with this home, and of the host."""
    return (*(home / name for name in _IN_HOME), *map(Path, _OF_HOST))
