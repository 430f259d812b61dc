"""Applies config changes while the gateway runs; the log names settings that need a restart.

Channels, models, provider keys, tools, limits, MCP servers, the heartbeat and what the API permits change without a
restart. A running turn keeps its models and tools; limits apply from the next model call on. An invalid file is
reported once and changes nothing.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from nanobot.config import keypath
from nanobot.config.loader import load_config
from nanobot.config.schema import ApiConfig, Config
from nanobot.config.section import Shape
from nanobot.errors import ConfigError
from nanobot.gateway.channels import GatewayChannels
from nanobot.security.secrets import learn_secrets, named_secrets
from nanobot.utils.files import file_stamp

log = logging.getLogger(__name__)

POLL_S = 2.0
_ACCESS_KEYS = frozenset({"allowFrom", "groupPolicy", "groupAllowFrom", "allowChannels", "dm"})
"""Access keys of a channel; they apply from the next message on."""
_READ_EACH_TIME = frozenset({"sendProgress", "sendToolHints", "showReasoning", "transcriptionProvider"})
_READ_EACH_TIME |= {"transcriptionLanguage", "sendMaxRetries"}
"""Keys of a channel, and of `channels` itself, that are read at each use."""
_DEFAULTS = (
    "model provider modelPreset fallbackModels backgroundModel maxTokens contextWindowTokens temperature "
    "reasoningEffort providerRetryMode maxToolIterations maxToolResultChars"
)
_HEARTBEAT = ("gateway", "heartbeat")
_MAILBOX = ("channels", "email")
"""Decides whether the mailbox tool exists."""
_Path = tuple[str, ...]


def _live_keys() -> set[_Path]:
    """The keys, beside the channels', that apply without a restart, with everything below them."""
    api = Shape(ApiConfig).keys.keys() - {"enabled", "host", "port"}
    return {
        ("modelPresets",), ("providers",), ("tools",), ("limits",), _HEARTBEAT,
        *(("agents", "defaults", name) for name in _DEFAULTS.split()), *(("api", name) for name in api),
    }  # fmt: skip


class LiveConfig:
    """Watches the config file and applies changes."""

    def __init__(
        self,
        file: Path,
        config: Config,
        channels: GatewayChannels,
        *,
        renew: Callable[[], Awaitable[None]],
        renew_heartbeat: Callable[[], Awaitable[bool]],
        poll_s: float = POLL_S,
    ) -> None:
        """`config` is shared by the whole gateway and updated in place.

        `renew` rebuilds models and tools from it. `renew_heartbeat` rebuilds the heartbeat; it returns False while the
        heartbeat is working.
        """
        self._file = file
        self._config = config
        self._channels = channels
        self._renew = renew
        self._renew_heartbeat = renew_heartbeat
        self._heartbeat_pending = False
        self._poll_s = poll_s
        self._stamp = file_stamp(file)
        self._tree = _tree(config)
        self._live = _live_keys()
        self._reloading = asyncio.Lock()
        self.problem: str | None = None

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            if self._heartbeat_pending:
                self._heartbeat_pending = not await self._renew_heartbeat()
            stamp = file_stamp(self._file)
            if stamp != self._stamp:
                self._stamp = stamp
                await self.reload()

    @asynccontextmanager
    async def channel_paused(self, name: str) -> AsyncIterator[None]:
        """Disconnect a channel while something else logs in as it. Then start it with what the file has by then."""
        manager = self._channels.manager
        paused = manager.get(name)
        try:
            await manager.pause(name)
            yield
        finally:
            await self.reload()
            if manager.get(name) is paused and name in self._channels.enabled:
                await self._channels.open(name)

    async def reload(self) -> None:
        """Read the file and apply its changes."""
        async with self._reloading:
            try:
                if not self._file.exists():  # deleting the file must not switch off every channel
                    raise ConfigError(f"{self._file} is gone. Put it back.")
                new = await asyncio.to_thread(load_config, self._file)
            except ConfigError as error:
                self.problem = f"the config was changed and is invalid; the previous settings stay in use: {error}"
                log.error("%s", self.problem)  # noqa: TRY400 the owner needs no traceback
                return
            self.problem = None
            learn_secrets(named_secrets(new.model_dump(), {}))
            before, self._tree = self._tree, _tree(new)
            changed = [*keypath.changed(before, self._tree)]
            if changed:
                await self._apply(new, changed)

    async def _apply(self, new: Config, changed: list[_Path]) -> None:
        await self._apply_channels(new, [path for path in changed if path[0] == "channels"])
        keys = {
            path: next((path[:length] for length in (1, 2, 3) if path[:length] in self._live), ()) for path in changed
        }
        for key in {*keys.values()} - {()}:
            _copy(key, new, self._config)
        live = [path for path, key in keys.items() if key]
        if live or any(path[:2] == _MAILBOX for path in changed):
            await self._renew()
        self._heartbeat_pending |= _HEARTBEAT in keys.values()
        _log_changed(live)
        rest = [path for path, key in keys.items() if not key and path[0] != "channels"]
        text = "the config was changed; for %s restart with `nanobot gateway restart`"
        _log_changed(rest, logging.WARNING, text)

    async def _apply_channels(self, new: Config, changed: list[_Path]) -> None:
        was_on, channels = self._config.channels.enabled, self._channels
        self._config.channels = new.channels
        common = [path for path in changed if len(path) == 2 and path[1] in _READ_EACH_TIME]
        by_channel: dict[str, set[str]] = {}
        for path in changed:
            if path not in common:
                by_channel.setdefault(path[1], set()).add(path[2] if len(path) > 2 else "")
        for name, keys in by_channel.items():
            is_live = keys <= _ACCESS_KEYS | _READ_EACH_TIME and name not in channels.broken
            if name not in channels.enabled:
                if name in was_on:
                    await channels.close(name)
                    log.info("%s: switched off", name)
            elif name in was_on and is_live:
                try:
                    channels.renew_access(name)
                except ConfigError as error:
                    log.error("%s; the previous access settings stay in use", error)  # noqa: TRY400 as above
                log.info("%s: changed: %s", name, ", ".join(sorted(keys)))
            elif await channels.open(name):
                log.info("%s: %s", name, "restarted with its new settings" if name in was_on else "switched on")
        channels.renew_retries()
        _log_changed(common)


def _copy(key: _Path, source: Any, target: Any) -> None:
    """Copy the value of this key between two configs."""
    shape = Shape(Config)
    for part in key[:-1]:
        shape = shape.keys[part]
        source, target = getattr(source, shape.name), getattr(target, shape.name)
    name = shape.keys[key[-1]].name
    setattr(target, name, getattr(source, name))


def _log_changed(paths: Iterable[_Path], level: int = logging.INFO, text: str = "the config was changed: %s") -> None:
    if names := sorted({".".join(path) for path in paths}):
        log.log(level, text, ", ".join(names))


def _tree(config: Config) -> dict[str, Any]:
    tree = config.model_dump(mode="json", by_alias=True)
    if "enabled" not in config.gateway.heartbeat.model_fields_set:  # a default is not an explicit false
        tree["gateway"]["heartbeat"]["enabled"] = None
    return tree
