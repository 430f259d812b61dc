"""Converts Slack's text to plain text: names and URLs instead of markup in angle brackets.

https://docs.slack.dev/messaging/formatting-message-text
"""

import re

_MARK = re.compile(r"<([@#!]?)([^<>|]*)(?:\|([^<>]*))?>")
_ADDRESS = re.compile(r"\A(?:mailto:|tel:)?(?:https?://)?(.*?)/?\Z")


def mentions_user(text: str, user: str) -> bool:
    """Whether the text mentions this user."""
    return re.search(rf"<@{re.escape(user)}(?:\|[^<>]*)?>", text) is not None


def mentioned_ids(text: str) -> list[str]:
    """The ids of users that the text mentions without their names."""
    return [match[2] for match in _MARK.finditer(text) if match[1] == "@" and match[2] and not match[3]]


def to_plain_text(text: str, me: str, my_name: str) -> str:
    """The plain text, without a mention of the bot at its start."""
    mention = re.compile(rf"\A(?:\s*<@{re.escape(me)}(?:\|[^<>]*)?>[ \t]*[,:]?)+\s*")
    plain = _MARK.sub(lambda match: _read(match, me, my_name), mention.sub("", text))
    return plain.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").strip()


def _read(match: "re.Match[str]", me: str, my_name: str) -> str:
    sign, target, label = match[1], match[2], match[3]
    if sign == "@":
        return f"@{my_name if target == me else label or target}"
    if sign == "#":
        return f"#{label or target}"
    if sign == "!":  # <!here>, <!subteam^S1|@team>, <!date^1^{date}|1 May>
        return label or f"@{target.partition('^')[0]}"
    if not label or _bare(label) == _bare(target):
        return target.removeprefix("mailto:").removeprefix("tel:")
    return f"{label} ({target})"


def _bare(address: str) -> str:
    """An address as people write it, without scheme: Slack makes every address a link."""
    match = _ADDRESS.match(address)
    return match[1].lower() if match else address
