"""What stands open: the questions of `nanobot doctor --security`. A fresh install has no answer to any of them."""

import os
import re
import stat
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel

from nanobot.cli.checks.findings import Finding, Patient, error, note, warning
from nanobot.config.environment import is_pointer, secret_files, texts_in
from nanobot.config.keys import dotted
from nanobot.plugins import EVERY
from nanobot.security.grants import Grants
from nanobot.security.references import References
from nanobot.security.secrets import is_telling, is_worth_hiding
from nanobot.utils.clock import SystemClock
from nanobot.utils.http import is_loopback
from nanobot.utils.text import counted
from nanobot.wiring.walls import command_walls, path_policy

_METADATA = ip_address("169.254.169.254")
_LONG_AGO = timedelta(days=14)
_MOST_NAMED = 5
_WIDE_V4, _WIDE_V6 = 16, 48
_RUNNERS = frozenset({"npx", "bunx", "pnpx", "uvx", "pipx", "dlx"})
_PINNED = re.compile(r".@\d|==\d")


def secret_files_are_private(patient: Patient) -> Iterator[Finding]:
    """Files that `file:` values lead to."""
    if os.name != "posix":
        return
    beside = References(patient.config_path.parent)
    for path, reference in secret_files(patient.config.loaded_from.written, patient.environ):
        try:
            file = beside.file_of(reference)
        except RuntimeError:  # this host knows no such home: `doctor` without --security says so
            continue
        if file.is_file() and stat.S_IMODE(file.stat().st_mode) & 0o077:
            yield error(f"{dotted(path)} is kept in {file}, which others can read.", f"chmod 600 {file}")


def keys_are_kept_elsewhere(patient: Patient) -> Iterator[Finding]:
    """Keys that stand in the config itself: no fault, since the file is private; there are better places."""
    found = [
        dotted(path)
        for path, value in texts_in(patient.config.loaded_from.written)
        if path and is_telling(str(path[-1])) and _is_key(value) and not is_pointer(path, value)
    ]
    if found:
        yield note(
            f"In the config as plain text: {', '.join(found)}.",
            "A password store (cmd:), a file (file:) or a variable (${NAME}) keeps them out of backups.",
        )


def strangers_stay_out(patient: Patient) -> Iterator[Finding]:
    """Who may speak."""
    for name in patient.config.channels.enabled:
        section = _plain(patient.config.channels.section(name))
        lists = {"allowFrom": section, "dm.allowFrom": section.get("dm") or {}, "groupAllowFrom": section}
        for key, holder in lists.items():
            if "*" in (holder.get(key.rpartition(".")[2]) or []):
                yield error(
                    f"channels.{name}.{key} holds *: everybody on the platform may give orders here.",
                    'Take "*" out; who writes then gets a code, and `nanobot pairing approve` lets them in.',
                )


def owners_are_asked(patient: Patient) -> Iterator[Finding]:
    """What outside words may cause."""
    if patient.config.tools.approval == "off":
        yield error(
            "tools.approval is off: what a web page, a mail or a stranger says can make the agent act, unasked.",
            'Set tools.approval to "ask".',
        )


def commands_stay_inside(patient: Patient) -> Iterator[Finding]:
    """What commands may touch and know."""
    settings = patient.config.tools.exec
    if not settings.enable:
        return
    if settings.sandbox == "none":
        yield error(
            "tools.exec.sandbox is none: commands reach all that you can reach.", 'Set tools.exec.sandbox to "auto".'
        )
    else:
        report = command_walls(patient.config, patient.places.data, patient.workspace).report()
        but = ("What does not hold:", *report.lacks) if report.lacks else ()
        yield note(" ".join((f"{report.summary.removesuffix('.')}.", *report.holds, *but)))
    told = [name for name in settings.allowed_env_keys if is_telling(name)]
    if told:
        yield warning(
            f"tools.exec.allowedEnvKeys hands every command {', '.join(told)}.",
            "Take them out, or give the command a key that can do little.",
        )


def little_is_allowed_for_always(patient: Patient) -> Iterator[Finding]:
    """What nobody is asked about any more."""
    clock = SystemClock()
    grants = Grants(patient.places.grants, clock).all()
    if grants:
        yield note(f"{counted(len(grants), 'rule')} of yours, as `nanobot approvals list` shows")
    old = [one for one in grants if clock.now() - datetime.fromisoformat(one.made) > _LONG_AGO]
    for one in old[:_MOST_NAMED]:
        yield warning(
            f'You said "always" to {one.rule} more than {_LONG_AGO.days} days ago.',
            "`nanobot approvals forget RULE` has you asked again.",
        )


def places_are_narrow(patient: Patient) -> Iterator[Finding]:
    """What tools may write beside the workspace."""
    home, data = (Path(os.path.realpath(place)) for place in (Path.home(), patient.places.data))
    for name in patient.config.tools.allowed_paths:
        place = Path(os.path.realpath(Path(name).expanduser()))
        if place in (home, *home.parents):
            yield error(
                f"tools.allowedPaths holds {name}: tools may write {_extent(place)}.", "Name the folders that it needs."
            )
        elif place == data or data in place.parents:
            yield error(f"tools.allowedPaths holds {name}, which is nanobot's own.", "Take it out.")
    missing = [name for name in patient.config.tools.protected_paths if not Path(name).expanduser().exists()]
    if missing:
        yield warning(
            f"tools.protectedPaths names what is not there: {', '.join(missing)}.", "Correct the path, or take it out."
        )
    workspace = Path(os.path.realpath(patient.workspace))
    if workspace in (home, *home.parents):
        yield error(f"The workspace is {workspace}: {_extent(workspace)}.", "Give the agent a folder of its own.")
    elif workspace == data:
        yield error(f"The workspace is {workspace}, which is nanobot's own.", "Give the agent a folder of its own.")
    elif not path_policy(patient.config, data, workspace).admits(workspace):
        yield error(
            f"The workspace {workspace} lies where keys or nanobot's own state are kept, and no tool may look there.",
            "Give the agent a folder of its own.",
        )
    elif os.name == "posix" and workspace.is_dir() and workspace.stat().st_mode & stat.S_IWOTH:
        closing = partial(_close_to_others, workspace)
        yield error(f"Everybody on this machine can write in {workspace}.", f"chmod o-w {workspace}", closing)


def _extent(place: Path) -> str:
    return "the whole disk" if place == place.parent else "all of your home"


def _close_to_others(folder: Path) -> str:
    folder.chmod(stat.S_IMODE(folder.stat().st_mode) & ~stat.S_IWOTH)
    return f"nobody else can write in {folder} now"


def requests_stay_outside(patient: Patient) -> Iterator[Finding]:
    """What the web tools may reach at home."""
    for text in patient.config.tools.ssrf_whitelist:
        network = ip_network(text, strict=False)
        wide = network.prefixlen < (_WIDE_V4 if network.version == 4 else _WIDE_V6)
        if network.version == 4 and _METADATA in network:
            yield error(
                f"tools.ssrfWhitelist holds {text}: a web page can ask this host's cloud for its keys.",
                "Name the addresses that the agent needs, such as 192.168.1.20/32.",
            )
        elif wide:
            yield warning(f"tools.ssrfWhitelist holds {text}, which is wide.", "Name the addresses that it needs.")


def doors_are_closed(patient: Patient) -> Iterator[Finding]:
    """What listens on this machine."""
    config = patient.config
    if not is_loopback(config.gateway.host):
        yield warning(
            f"gateway.host is {config.gateway.host}: others can read how the bot is.",
            "Set it to 127.0.0.1; in a container, publish the port to 127.0.0.1 only.",
        )
    doors = [("api", config.api.host, config.api.token)] if not is_loopback(config.api.host) else []
    socket = config.channels.websocket
    if socket.enabled and not is_loopback(socket.host):
        doors.append(("channels.websocket", socket.host, socket.token))
    for key, host, token in doors:
        if not token:
            yield error(
                f"{key}.host is {host}, and no token is asked for.", f"Set {key}.token, or the host to 127.0.0.1."
            )


def own_code_is_wanted(patient: Patient) -> Iterator[Finding]:
    """Code that runs with our own rights."""
    if patient.config.tools.custom_tools:
        yield warning(
            "tools.customTools is on: files in the workspace's tools/ run with all your rights, in no sandbox.",
            "Switch it off where you use none; the check of their text is a courtesy, not a wall.",
        )
    if EVERY in patient.config.plugins.enabled:
        yield warning(
            "plugins.enabled holds *: whatever package an installer brings along runs with all your rights.",
            "Name the packages you want; `nanobot doctor plugins` has their names.",
        )
    for name, server in patient.config.tools.mcp_servers.items():
        words = [Path(server.command).name, *server.args]
        packages = [word for word in words[1:] if not word.startswith("-")]
        if words[0] in _RUNNERS and packages and not _PINNED.search(packages[0]):
            yield warning(
                f"The MCP server {name} runs whatever version of {packages[0]} is the newest.",
                f"Name one: {packages[0].removesuffix('@latest')}@1.2.3",
            )


def keys_travel_hidden(patient: Patient) -> Iterator[Finding]:
    """Keys that go over the network in plain text."""
    config = patient.config
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
            yield warning(f"{key} is plain http: its key can be read on the way.", "Use https, or a tunnel.")


def _is_key(value: str) -> bool:
    """Whether the text is itself a key; local servers take any, and people write `not-needed`."""
    return is_worth_hiding(value) and "${" not in value


def _plain(section: object) -> dict[str, Any]:
    if isinstance(section, BaseModel):
        return section.model_dump(by_alias=True)
    return dict(section) if isinstance(section, dict) else {}
