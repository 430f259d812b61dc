"""What is wrong with a config: keys of earlier releases, unknown keys, and values that are not allowed.

The texts quote no secret. Of the keys of earlier releases of the public design, moved ones are migrated, and those
without effect are preserved. Names in the tables are camelCase; `*` matches any one name. A key includes everything
below it.
"""

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from nanobot.config.keypath import MISSING, InvalidKeyError, KeyPath, camel, drop, get, is_secret, nearest, put
from nanobot.config.section import HTTP_URL, WEBSOCKET_URL, Shape

_SECTION_KEYS: dict[str, str] = {
    "": "transcription",
    "agents.defaults": (
        "maxMessages consolidationRatio contextBlockLimit toolHintMaxLength failOnToolError"
        " idleCompactCheckIntervalSeconds sessionTtlMinutes"
    ),
    "modelPresets.*": "label",
    "channels": "extractDocumentText mattermost napcat signal",
    "channels.telegram": (
        "connectionPoolSize poolTimeout streamEditInterval inlineKeyboards richMessages doneEmoji groupAllowFrom"
    ),
    "channels.discord": "proxyUsername proxyPassword readReceiptEmoji workingEmoji workingEmojiDelay",
    "channels.slack": "webhookPath doneEmoji includeThreadContext",
    "channels.feishu": "toolHintPrefix encryptKey verificationToken instanceId name identityKey instances",
    "channels.qq": "mediaDir downloadChunkSize downloadMaxBytes",
    "channels.weixin": "streaming blockStreaming blockStreamingMinChars blockStreamingMaxMessages",
    "channels.email": "verifyDkim verifySpf allowedAttachmentTypes",
    "channels.matrix": "syncStopGraceSeconds maxConcurrentMediaDownloads sasVerification",
    "channels.whatsapp": "databasePath proxy",
    "channels.websocket": "path tokenIssuePath tokenIssueSecret tokenTtlS websocketRequiresToken",
    "providers.*": "extraQuery thinkingStyle",
    "gateway": "restartMode",
    "gateway.heartbeat": "keepRecentMessages",
    "tools": "my imageGeneration cliApps webuiAllowRemotePackageInstall",
    "tools.web": "userAgent",
    "tools.web.search": "timeout",
    "tools.web.fetch": "useJinaReader",
    "tools.exec": "sandboxRoBinds sandboxRwBinds restrictToWorkspace",
}
_LEGACY_KEYS = frozenset(
    f"{section}.{key}".removeprefix(".") for section, keys in _SECTION_KEYS.items() for key in keys.split()
)
_INEFFECTIVE = {
    "channels.whatsapp.databasePath": (
        "is not used: that session cannot be taken over. Link the account once more: nanobot channels login whatsapp."
    ),
    "providers.*.thinkingStyle": (
        "is not used: agents.defaults.reasoningEffort says how much a model thinks, and extraBody of this provider "
        "takes a switch that only its own API has."
    ),
}
"""Keys that have no effect here, and the warning for one that has a value."""
_OPEN_SECTIONS: tuple[KeyPath, ...] = (("channels",), ("providers",), ("plugins",))
"""Sections that may have whole sections of plugins or custom endpoints."""


def _legacy_warning(path: KeyPath, value: object) -> str | None:
    """None unless an earlier release, or another client whose config was copied, may have written this key; else a
    warning that it does not do what its value asks for, empty if there is nothing to warn about.
    """
    *parents, key = [str(part) for part in path]
    spellings = ".".join([*parents, camel(key)]), ".".join([*parents[:-1], "*", camel(key)])
    if _LEGACY_KEYS.isdisjoint(spellings):
        return None
    return next((_INEFFECTIVE[key] for key in spellings if key in _INEFFECTIVE and value not in (None, "")), "")


# `agents.defaults.memoryWindow` needs no entry: it is still in use.
MOVED: dict[KeyPath, KeyPath] = {
    ("tools", "exec", "restrictToWorkspace"): ("tools", "restrictToWorkspace"),
    ("tools", "exec", "restrict_to_workspace"): ("tools", "restrictToWorkspace"),
    ("agents", "defaults", "sessionTtlMinutes"): ("agents", "defaults", "idleCompactAfterMinutes"),
    ("agents", "defaults", "session_ttl_minutes"): ("agents", "defaults", "idleCompactAfterMinutes"),
}


def migrate(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree, in camelCase, with moved keys in their new place; if both places are set, the new one wins."""
    result: dict[str, Any] = deepcopy(dict(tree))
    for old, new in MOVED.items():
        if (value := get(result, old)) is not MISSING:
            if get(result, new) is MISSING:
                put(result, new, value)
            drop(result, old)
    return result


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """A key that is not in the schema, and the one that was probably meant."""

    path: KeyPath
    nearest: str | None = None
    unused: str = ""
    """For a key of an earlier release: why it has no effect."""
    lost_restrictions: tuple[tuple[KeyPath, KeyPath], ...] = ()
    """Restrictions that do not apply because of it: the key as written, and the key that was meant."""

    @property
    def hint(self) -> str:
        return f" Did you mean {self.nearest}?" if self.nearest else ""


def unknown_keys(value: Any, root: Shape, shape: Shape | None = None, path: KeyPath = ()) -> Iterator[UnknownKey]:
    """Keys of a value, by default of the root, that are not in the schema. Keys of earlier releases and whole sections
    of plugins count as known.
    """
    shape = shape or root
    for key, entry, inner in shape.entries(value):
        here = (*path, key)
        if not shape.container and key not in shape.keys:
            if (warning := _legacy_warning(here, entry)) is not None:
                if warning:
                    yield UnknownKey(here, unused=warning)
                continue
            guess = nearest(key, shape.keys)
            if guess or path not in _OPEN_SECTIONS or not isinstance(entry, dict):
                lost = _misspelt(entry, shape.keys[guess], here, (*path, guess)) if guess else _misplaced(here, root)
                yield UnknownKey(here, guess, lost_restrictions=tuple(lost))
                continue
        if inner:
            yield from unknown_keys(entry, root, inner, here)


def _misspelt(value: Any, shape: Shape, path: KeyPath, meant: KeyPath) -> Iterator[tuple[KeyPath, KeyPath]]:
    """The restrictions at and below a misspelt key."""
    if shape.restricts:
        yield path, meant
    if path[0] == "channels" and len(path) == 2:  # a channel with a misspelt name does not start
        return
    for key, entry, _ in shape.entries(value):
        name = key if shape.container or key in shape.keys else nearest(key, shape.keys)
        if name is not None and (inner := shape.child(name)):
            yield from _misspelt(entry, inner, (*path, key), (*meant, name))


def _misplaced(path: KeyPath, root: Shape) -> Iterator[tuple[KeyPath, KeyPath]]:
    """The restrictions of the same name elsewhere in the section, or in the config."""
    if path[:2] == ("tools", "mcpServers"):  # such sections are copied from other clients, which have further keys
        return
    name, sections = camel(str(path[-1])), {path[0]} if len(path) > 1 else {*root.keys} - {"channels"}
    for known, shape in root.below():
        if shape.restricts and known[-1] == name and known[0] in sections:
            yield path, known


def problems_in(error: ValidationError, tree: Mapping[str, Any]) -> list[InvalidKeyError]:
    """One problem per wrong key, in the order of the schema."""
    expectations: dict[KeyPath, list[str]] = {}
    values: dict[KeyPath, Any] = {}
    for detail in error.errors(include_url=False):
        kind, context = detail["type"], detail.get("ctx", {})
        cause = context.get("error")
        path, value = _find(detail["loc"], tree, kind)
        if isinstance(cause, InvalidKeyError):
            path, value, expected = cause.path, MISSING, cause.problem
        elif kind == "literal_error":
            names = [name.strip().strip("'") for name in str(context["expected"]).replace(" or ", ", ").split(",")]
            guess = nearest(value, names) if isinstance(value, str) else None
            expected = f"must be one of {', '.join(names)}" + (f" (did you mean {guess}?)" if guess else "")
        elif kind == "value_error":
            expected = detail["msg"].removeprefix("Value error, ")
            value = MISSING if isinstance(value, list) else value  # its message names the entry
        elif kind == "string_pattern_mismatch":
            expected = f"must be {_PATTERNS.get(context['pattern'], 'a text that matches ' + context['pattern'])}"
        else:
            expected = _MESSAGES[kind].format_map(context) if kind in _MESSAGES else f"is wrong: {detail['msg']}"
        values.setdefault(path, value)
        if expected not in expectations.setdefault(path, []):
            expectations[path].append(expected)
    return [
        InvalidKeyError(path, _with_value(path, " or ".join(expected), values[path]))
        for path, expected in expectations.items()
    ]


def _find(loc: tuple[int | str, ...], tree: Any, kind: str) -> tuple[KeyPath, Any]:
    """The key of an error: its loc without the names of pydantic's union members."""
    path: KeyPath = ()
    value = tree
    for index, part in enumerate(loc):
        entry = get(value, (part,))
        if entry is not MISSING or (kind == "missing" and index == len(loc) - 1):
            path, value = (*path, part), entry
    return path, value


def _with_value(path: KeyPath, expected: str, value: Any) -> str:
    """Expectation and actual value. A string in place of a section is not quoted: it may be an API key."""
    if value is MISSING or is_secret(path) or (isinstance(value, str) and "object" in expected):
        return expected
    if isinstance(value, dict | list):  # it may contain a secret anywhere
        return f"{expected}, not {'an object' if isinstance(value, dict) else 'a list'}"
    quoted = json.dumps(value, ensure_ascii=True, default=str)
    return f"{expected}, not {quoted if len(quoted) <= 60 else quoted[:57] + '...'}"


_MESSAGES = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), "must be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    **dict.fromkeys(("string_type", "string_unicode"), "must be a string"),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "must be an object {{...}}"),
    "list_type": "must be a list [...]",
    "missing": "is missing",
    "string_too_short": "must be a string that is not empty",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
}
"""By pydantic's type of error; its context is filled in."""
_PATTERNS = {
    HTTP_URL: "an address that begins with http:// or https://",
    WEBSOCKET_URL: "an address that begins with ws:// or wss://",
}
