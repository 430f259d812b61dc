"""Old shapes of config.json, told in today's words. Pure: the file itself is rewritten only when somebody saves."""

from collections.abc import Mapping
from typing import Any

from nanobot.config.spelling import camel

# `agents.defaults.memoryWindow` needs no row: it is a key of today.
MOVED: dict[tuple[str, ...], tuple[str, ...]] = {
    ("tools", "exec", "restrictToWorkspace"): ("tools", "restrictToWorkspace"),
    ("agents", "defaults", "sessionTtlMinutes"): ("agents", "defaults", "idleCompactAfterMinutes"),
}


def migrate(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with what moved in its new place; where both places are filled, the new one holds."""
    result: dict[str, Any] = _copy(tree)
    for old, new in MOVED.items():
        holder, key = _find(result, old)
        if holder is None or key is None:
            continue
        value = holder.pop(key)
        target = _make(result, new[:-1])
        if target is None:
            holder[key] = value  # what stands in the way is wrong by itself, and will be said
        elif _spelling(target, new[-1]) is None:
            target[new[-1]] = value
    return result


def _find(tree: dict[str, Any], path: tuple[str, ...]) -> tuple[dict[str, Any] | None, str | None]:
    holder: Any = tree
    for name in path[:-1]:
        key = _spelling(holder, name)
        holder = holder[key] if key is not None else None
        if not isinstance(holder, dict):
            return None, None
    return holder, _spelling(holder, path[-1])


def _make(tree: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any] | None:
    holder = tree
    for name in path:
        holder = holder.setdefault(_spelling(holder, name) or name, {})
        if not isinstance(holder, dict):
            return None
    return holder


def _spelling(holder: Mapping[str, Any], name: str) -> str | None:
    """The key as it stands there, in either style."""
    return next((key for key in holder if key == name or camel(key) == name), None)


def _copy(value: Any) -> Any:
    return {key: _copy(entry) for key, entry in value.items()} if isinstance(value, dict) else value
