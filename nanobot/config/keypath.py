"""Paths of keys such as `agents.defaults.fallbackModels[0]`: how to spell, follow and show them."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from nanobot.security.references import is_reference
from nanobot.security.secrets import is_secret_name, redact_named
from nanobot.utils import text

KeyPath = tuple[str | int, ...]
MISSING = object()

_SECRET_MAPS = ("env", "headers", "extraHeaders", "extraBody", "extra_headers", "extra_body")
_HIDDEN = "••••"
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def camel(name: str) -> str:
    """The name in camelCase: `e2ee_enabled` becomes `e2eeEnabled`; camelCase stays."""
    head, *rest = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest) if head else name


def dotted(path: KeyPath) -> str:
    """A key path in the notation of the docs: `agents.defaults.fallbackModels[0]`."""
    dots = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
    return dots.encode("utf-8", "replace").decode("utf-8")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant, ignoring the style of both; None if none is similar."""
    candidates = {candidate.lower().replace("_", ""): candidate for candidate in known}
    matches = text.nearest(name.replace("_", ""), candidates, 1, cutoff=0.75)
    return candidates[matches[0]] if matches else None


def nest(path: KeyPath, value: Any) -> Any:
    """The tree that has only this key."""
    for name in reversed(path):
        value = {name: value}
    return value


def get(tree: Any, path: KeyPath) -> Any:
    """The value under a path of objects and lists, else MISSING."""
    for key in path:
        if isinstance(tree, dict):
            tree = tree.get(key, MISSING)
        elif isinstance(tree, list) and isinstance(key, int) and key < len(tree):
            tree = tree[key]
        else:
            return MISSING
    return tree


def put(tree: Any, path: KeyPath, value: Any) -> None:
    """Set a value in place, creating missing objects. Nothing happens where a parent is neither object nor list."""
    *parents, last = path
    for key in parents:
        tree = tree.setdefault(key, {}) if isinstance(tree, dict) else get(tree, (key,))
    if isinstance(tree, dict) or get(tree, (last,)) is not MISSING:
        tree[last] = value


def drop(tree: dict[str, Any], path: KeyPath) -> None:
    """Delete a key, and parents that become empty; below a list, the whole list."""
    key = str(path[0])
    if key not in tree:
        return
    if len(path) > 1 and isinstance(tree[key], dict):
        drop(tree[key], path[1:])
        if tree[key]:
            return
    del tree[key]


def walk(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Every value below a tree of objects and lists with its path, parents first."""
    if isinstance(value, dict | list):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*path, key), entry
            yield from walk(entry, (*path, key))


def leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value of a tree that is no object, or an empty one, with its path. A list is one value."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def changed(before: Any, after: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of the values that differ between two trees of objects. Lists and texts are compared as a whole."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            yield from changed(before.get(key), after.get(key), (*path, key))
    elif before != after:
        yield path


class InvalidKeyError(ValueError):
    """A key that cannot be used, and why."""

    def __init__(self, path: KeyPath, problem: str) -> None:
        super().__init__(f"{dotted(path)} {problem}" if path else problem)
        self.path = path
        self.problem = problem


def is_secret(path: KeyPath) -> bool:
    """Whether the value of a key must not be shown."""
    names = [part for part in path if isinstance(part, str)]
    return bool(names) and (is_secret_name(names[-1]) or any(name in _SECRET_MAPS for name in names))


def mask_value(path: KeyPath, value: Any) -> Any:
    """The value for display: of a long secret its last four characters, of a short one nothing."""
    if isinstance(value, dict):
        return {name: mask_value((*path, name), entry) for name, entry in value.items()}
    if isinstance(value, list):
        entries = [redact_named(entry) if isinstance(entry, str) else entry for entry in value]  # --token=VALUE
        for index in range(1, len(value)):  # --token VALUE
            if str(value[index - 1]).startswith("-") and is_secret_name(str(value[index - 1])):
                entries[index] = _HIDDEN
        return [mask_value((*path, index), entry) for index, entry in enumerate(entries)]
    if value is None or value == "" or isinstance(value, bool):
        return value
    if is_secret(path):
        secret = str(value)
        is_pointer = is_reference(secret) or "${" in secret  # its last characters are those of a path or command
        return _HIDDEN + (secret[-4:] if len(secret) >= 16 and not is_pointer else "")
    return _USERINFO.sub(_HIDDEN, value) if isinstance(value, str) else value
