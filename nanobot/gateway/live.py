"""Config changes while the gateway runs: what can be applied is, at once; of the rest the log says what it needs.

The file is looked at every two seconds, which costs one `stat`. A file that does not parse changes nothing: it is told
once, and the gateway goes on with what it has.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nanobot.config.loader import load_config
from nanobot.config.schema import Config
from nanobot.errors import ConfigError
from nanobot.gateway.roster import Roster, section_of
from nanobot.security import vault
from nanobot.security.secrets import named_secrets

log = logging.getLogger(__name__)

LOOK_S = 2.0
_DOOR_KEYS = frozenset({"allowFrom", "groupPolicy", "groupAllowFrom", "allowChannels", "dm"})
"""Keys of a channel that say who may speak; they hold from the next message on."""
_READ_EACH_TIME = frozenset({"sendProgress", "sendToolHints", "showReasoning", "transcriptionProvider"})
_READ_EACH_TIME |= {"transcriptionLanguage", "sendMaxRetries"}
"""Keys of a channel, and of `channels` itself, that are looked up when they are needed."""
_Path = tuple[str, ...]


class LiveConfig:
    """Watches the file and applies what changed; `run` is a member."""

    def __init__(self, file: Path, config: Config, roster: Roster, *, look_s: float = LOOK_S) -> None:
        """`config` is the one everybody in the gateway holds: its channels are replaced in it."""
        self._file = file
        self._config = config
        self._roster = roster
        self._look_s = look_s
        self._seen = _stamp(file)
        self._before = _tree(config)
        self.problem: str | None = None

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(self._look_s)
            stamp = _stamp(self._file)
            if stamp != self._seen:
                self._seen = stamp
                await self.look()

    async def look(self) -> None:
        """Read the file and apply what is new in it."""
        try:
            if _stamp(self._file) is None:  # to be silent everywhere is nothing that a deleted file may ask for
                raise ConfigError(f"{self._file} is gone. Put it back.")
            fresh = await asyncio.to_thread(load_config, self._file)
        except ConfigError as error:
            self.problem = f"the config was changed and cannot be used; what was before still holds: {error}"
            log.error("%s", self.problem)  # noqa: TRY400 the owner needs no traceback
            return
        self.problem = None
        vault.learn(named_secrets(fresh.model_dump(), {}))
        after = _tree(fresh)
        changed = [*_changes(self._before, after)]
        self._before = after
        if changed:
            await self._apply(fresh, changed)

    async def _apply(self, fresh: Config, changed: list[_Path]) -> None:
        was_on = self._config.channels.enabled
        self._config.channels = fresh.channels
        in_channels = [path for path in changed if path[0] == "channels"]
        by_channel: dict[str, set[str]] = {}
        for path in in_channels:
            if len(path) > 2 or not _is_common(path):
                by_channel.setdefault(path[1], set()).add(path[2] if len(path) > 2 else "")
        for name, keys in by_channel.items():
            await self._change(name, keys, was_on=name in was_on)
        self._roster.count_tries()
        common = [_dotted(path) for path in in_channels if _is_common(path)]
        if common:
            log.info("the config was changed: %s", ", ".join(common))
        rest = sorted({_dotted(path) for path in changed if path[0] != "channels"})
        if rest:
            log.warning("the config was changed; for %s restart with `nanobot gateway restart`", ", ".join(rest))

    async def _change(self, name: str, keys: set[str], *, was_on: bool) -> None:
        """One channel's section has changed."""
        is_on = name in self._roster.enabled
        if not is_on:
            if was_on:
                await self._roster.close(name)
                log.info("%s: switched off", name)
        elif was_on and keys <= _DOOR_KEYS | _READ_EACH_TIME and name not in self._roster.broken:
            self._hand_over(name)
            if keys & _DOOR_KEYS:
                self._admit(name)
            log.info("%s: changed: %s", name, ", ".join(sorted(keys)))
        elif await self._roster.open(name):
            log.info("%s: %s", name, "begun anew with its new settings" if was_on else "switched on")

    def _hand_over(self, name: str) -> None:
        """The channel reads its own section too."""
        channel = self._roster.manager.get(name)
        if channel is not None:
            channel.config = section_of(self._config.channels, name)

    def _admit(self, name: str) -> None:
        try:
            self._roster.admit_anew(name)
        except ConfigError as error:
            log.error("%s; who could speak before still can", error)  # noqa: TRY400 the owner needs no traceback


def _is_common(path: _Path) -> bool:
    return len(path) == 2 and path[1] in _READ_EACH_TIME


def _tree(config: Config) -> dict[str, Any]:
    return config.model_dump(mode="json", by_alias=True)


def _changes(before: object, after: object, path: _Path = ()) -> Iterator[_Path]:
    """The keys whose values differ, each with its whole path; of lists and texts the list's or the text's own."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in {**before, **after}:
            yield from _changes(before.get(key), after.get(key), (*path, str(key)))
    elif before != after:
        yield path


def _dotted(path: _Path) -> str:
    return ".".join(path)


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
