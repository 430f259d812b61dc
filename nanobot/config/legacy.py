"""Keys of earlier releases of the public design: moved ones are migrated, those without effect are preserved.

Names are camelCase; `*` matches any one name. A key includes everything below it.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from nanobot.config.keypath import MISSING, KeyPath, camel, drop, get, put

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


def is_legacy(path: KeyPath) -> bool:
    """Whether an earlier release, or another client whose config was copied, may have written this key."""
    return not _LEGACY_KEYS.isdisjoint(_spellings(path))


def why_unused(path: KeyPath, value: object) -> str:
    """A warning that such a key does not do what its value asks for; empty if there is nothing to warn about."""
    texts = (_INEFFECTIVE.get(key, "") for key in _spellings(path) if value not in (None, ""))
    return next(filter(None, texts), "")


def _spellings(path: KeyPath) -> tuple[str, str]:
    """The key as it is, and with `*` for the section it is in."""
    *parents, key = [str(part) for part in path]
    return ".".join([*parents, camel(key)]), ".".join([*parents[:-1], "*", camel(key)])


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
