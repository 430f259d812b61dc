"""Keys that earlier releases of the public design wrote and that mean nothing to us: kept as they stand, no warning.

Names are camelCase; `*` stands for any one name. A key stands for all below it.
"""

from nanobot.config.spelling import camel

_SECTION_KEYS: dict[str, str] = {
    "": "transcription",
    "agents.defaults": (
        "maxMessages consolidationRatio contextBlockLimit toolHintMaxLength failOnToolError"
        " idleCompactCheckIntervalSeconds sessionTtlMinutes"
    ),
    "modelPresets.*": "label",
    "channels": "extractDocumentText wecom weixin msteams mattermost napcat signal",
    "channels.telegram": (
        "connectionPoolSize poolTimeout streamEditInterval inlineKeyboards richMessages doneEmoji groupAllowFrom"
    ),
    "channels.discord": "proxyUsername proxyPassword readReceiptEmoji workingEmoji workingEmojiDelay",
    "channels.slack": "webhookPath doneEmoji includeThreadContext streaming",
    "channels.feishu": "reactEmoji doneEmoji toolHintPrefix streaming topicIsolation",
    "channels.dingtalk": "robotCode",
    "channels.qq": "msgFormat mediaDir ackMessage downloadChunkSize downloadMaxBytes",
    "channels.email": ("verifyDkim verifySpf allowedAttachmentTypes maxAttachmentSize maxAttachmentsPerEmail"),
    "channels.matrix": "syncStopGraceSeconds maxMediaBytes groupAllowFrom streaming",
    "channels.websocket": "path tokenIssuePath tokenIssueSecret tokenTtlS websocketRequiresToken",
    "providers.*": "apiType extraQuery thinkingStyle",
    "gateway": "restartMode",
    "gateway.heartbeat": "keepRecentMessages",
    "tools": "my imageGeneration cliApps webuiAllowRemotePackageInstall",
    "tools.web": "userAgent",
    "tools.web.search": "timeout",
    "tools.web.fetch": "useJinaReader",
    "tools.exec": "pathPrepend sandboxRoBinds sandboxRwBinds restrictToWorkspace",
    "tools.mcpServers.*": "cwd",
}
_KNOWN = {place: frozenset(names.split()) for place, names in _SECTION_KEYS.items()}


def is_legacy(path: tuple[str | int, ...]) -> bool:
    """Whether an earlier release, or another client whose sections are copied here, may have written the key."""
    names = [str(part) for part in path]
    exact, any_name = ".".join(names[:-1]), ".".join([*names[:-2], "*"])
    key = camel(names[-1])
    return key in _KNOWN.get(exact, ()) or (len(names) > 1 and key in _KNOWN.get(any_name, ()))
