"""Slack's text as people read it: names and addresses instead of marks in angle brackets.

https://docs.slack.dev/messaging/formatting-message-text
"""

import re

_MARK = re.compile(r"<([@#!]?)([^<>|]*)(?:\|([^<>]*))?>")
_ADDRESS = re.compile(r"\A(?:mailto:|tel:)?(?:https?://)?(.*?)/?\Z")


def names(text: str, user: str) -> bool:
    """Whether the text calls this user."""
    return re.search(rf"<@{re.escape(user)}(?:\|[^<>]*)?>", text) is not None


def people(text: str) -> list[str]:
    """The ids of those the text calls without saying their names."""
    return [found[2] for found in _MARK.finditer(text) if found[1] == "@" and found[2] and not found[3]]


def as_read(text: str, me: str, my_name: str) -> str:
    """The words, without the call to the bot that they begin with."""
    call = re.compile(rf"\A(?:\s*<@{re.escape(me)}(?:\|[^<>]*)?>[ \t]*[,:]?)+\s*")
    said = _MARK.sub(lambda found: _read(found, me, my_name), call.sub("", text))
    return said.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").strip()


def _read(found: "re.Match[str]", me: str, my_name: str) -> str:
    sign, what, label = found[1], found[2], found[3]
    if sign == "@":
        return f"@{my_name if what == me else label or what}"
    if sign == "#":
        return f"#{label or what}"
    if sign == "!":  # <!here>, <!subteam^S1|@team>, <!date^1^{date}|1 May>
        return label or f"@{what.partition('^')[0]}"
    if not label or _bare(label) == _bare(what):
        return what.removeprefix("mailto:").removeprefix("tel:")
    return f"{label} ({what})"


def _bare(address: str) -> str:
    """What people see of an address: Slack makes a link of each that they write."""
    found = _ADDRESS.match(address)
    return found[1].lower() if found else address
