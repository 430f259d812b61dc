"""The checks of `nanobot doctor --security`. A fresh install has no finding."""

import os
import re
import stat
from collections.abc import Iterator
from datetime import datetime, timedelta
from ipaddress import ip_address, ip_network
from pathlib import Path
from urllib.parse import urlsplit

from nanobot.cli.doctor.checks import CheckContext, Finding, error, note, security_check, warning
from nanobot.config.environment import is_pointer, secret_files, strings_in
from nanobot.config.keypath import dotted
from nanobot.net.http import is_loopback
from nanobot.plugins import EVERY
from nanobot.runtime.sandbox import command_sandbox, path_policy
from nanobot.security.files.paths import PathDeniedError
from nanobot.security.grants import Grants
from nanobot.security.references import References
from nanobot.security.secrets import is_secret_name, is_worth_hiding
from nanobot.utils.clock import SystemClock
from nanobot.utils.text import count_noun

_METADATA = ip_address("169.254.169.254")
_OLD_APPROVAL = timedelta(days=14)
_MAX_LISTED = 5
_MIN_PREFIX_V4, _MIN_PREFIX_V6 = 16, 48
_PACKAGE_RUNNERS = frozenset({"npx", "bunx", "pnpx", "uvx", "pipx", "dlx"})
_SCRIPT_SUFFIXES = frozenset({".py", ".js", ".mjs", ".cjs", ".ts", ".sh", ".rb", ".pl"})
_PINNED_VERSION = re.compile(r".@\d|==\d")


@security_check("secrets.kept", "Key files are readable only by you")
def check_key_files(context: CheckContext) -> Iterator[Finding]:
    if os.name != "posix":
        return
    references = References(context.config_path.parent)
    for path, reference in secret_files(context.config.loaded_from.written, context.environ):
        try:
            file = references.file_of(reference)
        except RuntimeError:  # unknown home folder: reported by `doctor` without --security
            continue
        if file.is_file() and stat.S_IMODE(file.stat().st_mode) & 0o077:
            yield error(f"{dotted(path)} is stored in {file}, which others can read.", f"chmod 600 {file}")


@security_check("secrets.plain", "No API key is stored as plain text")
def check_plain_keys(context: CheckContext) -> Iterator[Finding]:
    """API keys in the config itself. Only a note, since the file is private."""
    keys = [
        dotted(path)
        for path, value in strings_in(context.config.loaded_from.written)
        if path and is_secret_name(str(path[-1])) and _is_key(value) and not is_pointer(path, value)
    ]
    if keys:
        yield note(
            f"In the config as plain text: {', '.join(keys)}.",
            "To keep them out of backups, use a password store (cmd:), a file (file:) or a variable (${NAME}).",
        )


@security_check("access.everybody", "Only known people can talk to the bot")
def check_senders(context: CheckContext) -> Iterator[Finding]:
    for name in context.config.channels.enabled:
        section = context.config.channels.section(name).model_dump(by_alias=True)
        lists = {"allowFrom": section, "dm.allowFrom": section.get("dm") or {}, "groupAllowFrom": section}
        for key, holder in lists.items():
            if "*" in (holder.get(key.rpartition(".")[2]) or []):
                yield error(
                    f"channels.{name}.{key} contains *: anyone on the platform can command the bot.",
                    'Remove "*". New senders then get a code for you to approve with `nanobot pairing approve`.',
                )


@security_check("approval.off", "Untrusted content cannot act without approval")
def check_approval(context: CheckContext) -> Iterator[Finding]:
    if context.config.tools.approval == "off":
        yield error(
            "tools.approval is off: text in a web page, a mail or a stranger's message can make the agent act (prompt "
            "injection) without your approval.",
            'Set tools.approval to "ask".',
        )


@security_check("exec.walls", "Commands are confined to the sandbox")
def check_confinement(context: CheckContext) -> Iterator[Finding]:
    settings = context.config.tools.exec
    if not settings.enable:
        return
    if settings.sandbox == "none":
        yield error(
            "tools.exec.sandbox is none: commands can access everything you can.", 'Set tools.exec.sandbox to "auto".'
        )
    else:
        report = command_sandbox(context.config, context.data_dir, context.workspace).report()
        gaps = ("Not enforced:", *report.lacks) if report.lacks else ()
        yield note(" ".join((f"{report.summary.removesuffix('.')}.", *report.holds, *gaps)))
    secret_names = [name for name in settings.allowed_env_keys if is_secret_name(name)]
    if secret_names:
        yield warning(
            f"tools.exec.allowedEnvKeys passes secrets to every command: {', '.join(secret_names)}.",
            "Remove them, or use a key with few permissions.",
        )


@security_check("approval.always", "Few permanent approvals")
def check_permanent_approvals(context: CheckContext) -> Iterator[Finding]:
    clock = SystemClock()
    grants = Grants(context.paths.database, clock).all()
    if grants:
        yield note(f"{count_noun(len(grants), 'permanent approval')}, see `nanobot approvals list`")
    old_grants = [grant for grant in grants if clock.now() - datetime.fromisoformat(grant.made) > _OLD_APPROVAL]
    for grant in old_grants[:_MAX_LISTED]:
        yield warning(
            f"You approved {grant.rule} permanently more than {_OLD_APPROVAL.days} days ago.",
            "To be asked again: nanobot approvals forget RULE",
        )


@security_check("paths.wide", "Tools can write only where needed")
def check_write_access(context: CheckContext) -> Iterator[Finding]:
    home, data, workspace = (_resolve(path) for path in (Path.home(), context.data_dir, context.workspace))

    def too_wide(path: Path) -> str:
        if path in (home, *home.parents):
            return "the whole disk" if path == path.parent else "your whole home folder"
        return "nanobot's own data folder" if path == data else ""

    for name in context.config.tools.allowed_paths:
        path = _resolve(Path(name).expanduser())
        if extent := too_wide(data if data in path.parents else path):
            yield error(f"tools.allowedPaths contains {name}: tools can write to {extent}.", "List only what it needs.")
    if missing := [name for name in context.config.tools.protected_paths if not Path(name).expanduser().exists()]:
        yield warning(f"tools.protectedPaths lists missing paths: {', '.join(missing)}.", "Correct or remove them.")
    extent = too_wide(workspace)
    if not extent and not path_policy(context.config, data, workspace).admits(workspace):
        extent = "inside a folder of keys or nanobot's own state, which no tool can access"
    if extent:
        yield error(f"The workspace is {workspace}: {extent}.", "Give the agent a separate folder.")
    elif os.name == "posix" and workspace.is_dir() and workspace.stat().st_mode & stat.S_IWOTH:

        def protect() -> str:
            workspace.chmod(stat.S_IMODE(workspace.stat().st_mode) & ~stat.S_IWOTH)
            return f"others can no longer write to {workspace}"

        yield error(f"Everybody on this machine can write to {workspace}.", f"chmod o-w {workspace}", protect)


def _resolve(path: Path) -> Path:
    return Path(os.path.realpath(path))


@security_check("network.whitelist", "Web tools cannot reach the local network")
def check_ssrf_whitelist(context: CheckContext) -> Iterator[Finding]:
    advice = "List only the addresses the agent needs, such as 192.168.1.20/32."
    for text in context.config.tools.ssrf_whitelist:
        network = ip_network(text, strict=False)
        is_wide = network.prefixlen < (_MIN_PREFIX_V4 if network.version == 4 else _MIN_PREFIX_V6)
        if network.version == 4 and _METADATA in network:
            reads = "a web page can read this host's cloud credentials"
            yield error(f"tools.ssrfWhitelist contains {text}: {reads}.", advice)
        elif is_wide:
            yield warning(f"tools.ssrfWhitelist contains {text}, a large network.", advice)


@security_check("network.doors", "No port is open to other machines")
def check_open_ports(context: CheckContext) -> Iterator[Finding]:
    doors = {"gateway": "status, page and API cross", "api": "keys and messages cross"}
    for section, what in doors.items():
        if not is_loopback(host := getattr(context.config, section).host):
            yield warning(
                f"{section}.host is {host}: {what} the network unencrypted.",
                "Set it to 127.0.0.1, behind a proxy with TLS; in a container, publish the port only to 127.0.0.1.",
            )


@security_check("code.foreign", "No unreviewed code runs")
def check_foreign_code(context: CheckContext) -> Iterator[Finding]:
    """Code that runs outside the sandbox."""
    if context.config.tools.custom_tools:
        yield warning(
            "tools.customTools is on: files in the workspace's tools/ run with your permissions and no sandbox.",
            "Set tools.customTools to false unless you use your own tools.",
        )
    if EVERY in context.config.plugins.enabled:
        yield warning(
            "plugins.enabled contains *: every installed package with a plugin runs with your permissions.",
            "List the packages you want; `nanobot doctor plugins` shows their names.",
        )
    for name, server in context.config.tools.mcp_servers.items():
        arguments = [Path(server.command).name, *server.args]
        packages = [word for word in arguments[1:] if not word.startswith("-")]
        if arguments[0] in _PACKAGE_RUNNERS and packages and not _PINNED_VERSION.search(packages[0]):
            yield warning(
                f"The MCP server {name} always runs the newest version of {packages[0]}.",
                f"Pin a version: {packages[0].removesuffix('@latest')}@1.2.3",
            )
        words = [("cwd", server.cwd), ("command", server.command), *(("args", word) for word in server.args)]
        for key, word in words:
            path = Path(os.path.expanduser(word))  # noqa: PTH111 - must not raise for an unknown user
            is_code = path.is_absolute() and (key != "args" or path.suffix in _SCRIPT_SUFFIXES)
            if is_code and _is_writable_by_agent(context, path):
                yield error(
                    f"tools.mcpServers.{name}.{key} is {path}, where the agent can write files: the server may load "
                    "them, and it runs with your permissions.",
                    "Move it out of the workspace and tools.allowedPaths; without cwd the server starts in its own "
                    "folder.",
                )


def _is_writable_by_agent(context: CheckContext, path: Path) -> bool:
    try:
        path_policy(context.config, context.data_dir, context.workspace).resolve_writable(path)
    except PathDeniedError:
        return False
    return True


@security_check("network.plain", "No API key is sent over plain http")
def check_plain_http(context: CheckContext) -> Iterator[Finding]:
    config = context.config
    targets = [
        (f"providers.{name}.apiBase", section.api_base, _is_key(section.api_key or "") or bool(section.extra_headers))
        for name, section in config.providers.by_name().items()
    ]
    targets += [
        (f"tools.mcpServers.{name}.url", server.url, bool(server.headers))
        for name, server in config.tools.mcp_servers.items()
    ]
    for key, url, has_key in targets:
        parts = urlsplit(url or "")
        if has_key and parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            yield warning(f"{key} is plain http: its key can be read in transit.", "Use https, or a tunnel.")


def _is_key(value: str) -> bool:
    """Whether the text looks like a real key; local servers accept any, such as `not-needed`."""
    return is_worth_hiding(value) and "${" not in value
