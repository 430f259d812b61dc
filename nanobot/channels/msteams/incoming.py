"""Reads the activities that Teams sends. Pure functions; all values are checked.

Source: learn.microsoft.com/azure/bot-service/rest-api/bot-framework-rest-connector-api-reference (Activity), and
learn.microsoft.com/microsoftteams/platform/bots/how-to (conversations, files).
"""

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lxml import etree
from lxml.html import HtmlElement, fragment_fromstring

from nanobot.channels.incoming import Incoming
from nanobot.channels.media import Attachment
from nanobot.channels.media_kinds import MediaKind

_FILE = "application/vnd.microsoft.teams.file.download.info"
_REPLY = "schema.skype.com/Reply"
_MENTION = re.compile(r"<at[^>]*>(.*?)</at>", re.DOTALL)
_THREAD = ";messageid="
_LONGEST_QUOTE = 600


@dataclass(frozen=True, slots=True)
class Upload:
    """The answer to the question whether a file may be stored in the person's OneDrive."""

    file_id: str
    is_accepted: bool
    url: str = ""
    """Where to store it."""
    info: Mapping[str, Any] | None = None
    """What the message that shows the file needs."""


def read_message(activity: Mapping[str, Any]) -> Incoming | None:
    """Read a message, or a pressed button. None for one that does not say who wrote it where."""
    sender, chat_id, message_id = dict_of(activity.get("from")), conversation_of(activity), text_of(activity.get("id"))
    user_id, directory_id = text_of(sender.get("id")), text_of(sender.get("aadObjectId"))
    if not (user_id and chat_id and message_id) or user_id == _bot_of(activity):
        return None
    is_private = is_personal(activity)
    quote, text, is_of_other = _read_quote(activity)
    if quote:
        text = "\n".join(["[in reply to a message]", *(f"> {line}" for line in quote.splitlines()), text])
    return Incoming(
        directory_id or user_id,
        chat_id,
        text,
        message_id,
        is_private=is_private,
        is_mentioned=is_private
        or bool(_names_of_bot(activity))
        or bool(activity.get("value")),  # the latter is a button
        parent_ids=(without_thread(chat_id),) if _THREAD in chat_id else (),
        alternate_ids=(user_id,) if directory_id else (),
        is_verified=activity.get("channelId") == "msteams",  # elsewhere people choose their ids themselves
        sender_name=text_of(sender.get("name")),
        attachments=tuple(_files(activity, message_id)),
        quotes_others=is_of_other,
        sent_at=_time(activity.get("timestamp")),
    )


def read_upload(activity: Mapping[str, Any]) -> Upload | None:
    """Read the answer to a FileConsentCard. None for any other activity."""
    value = dict_of(activity.get("value"))
    file_id = text_of(dict_of(value.get("context")).get("file"))
    if activity.get("name") != "fileConsent/invoke" or not file_id:
        return None
    info = dict_of(value.get("uploadInfo"))
    return Upload(file_id, value.get("action") == "accept", text_of(info.get("uploadUrl")), info)


def conversation_of(activity: Mapping[str, Any]) -> str:
    """The id of its conversation; in a channel it names the thread, too."""
    return text_of(dict_of(activity.get("conversation")).get("id"))


def is_personal(activity: Mapping[str, Any]) -> bool:
    """Whether only one person and the bot read the conversation."""
    conversation, is_group = dict_of(activity.get("conversation")), is_group_id(conversation_of(activity))
    return not (is_group or conversation.get("isGroup")) and conversation.get("conversationType") in (None, "personal")


def is_group_id(chat_id: str) -> bool:
    """Whether this is the id of a group chat or a channel."""
    return chat_id.startswith("19:")


def without_thread(chat_id: str) -> str:
    """The conversation that contains this thread."""
    return chat_id.partition(_THREAD)[0]


def _read_quote(activity: Mapping[str, Any]) -> tuple[str, str, bool]:
    """The text that the message replies to, its own text, and whether the former is somebody else's."""
    bodies = [text_of(activity.get("text"))]
    bodies += [text_of(one.get("content")) for one in _attachments(activity) if one.get("contentType") == "text/html"]
    for body in bodies:
        if _REPLY not in body:
            continue
        try:
            tree = fragment_fromstring(body, create_parent="div")
        except (etree.LxmlError, ValueError):
            continue
        for quote in tree.iter("blockquote"):
            if _REPLY not in str(quote.get("itemtype")):
                continue
            shown = quote.find("p")
            quoted = _words(quote if shown is None else shown)
            author = quote.find("strong")
            bot = _bot_of(activity).partition(":")[2]
            is_of_bot = bool(bot) and author is not None and bot in str(author.get("itemid"))
            quote.drop_tree()
            for mention in tree.iter("span"):
                if "Mention" in str(mention.get("itemtype")) and _words(mention) in _names_of_bot(activity):
                    mention.text = ""
            short = quoted if len(quoted) <= _LONGEST_QUOTE else f"{quoted[:_LONGEST_QUOTE]}…"
            return short, _without_mentions(activity, _words(tree)), not is_of_bot
    return "", _without_mentions(activity, html.unescape(bodies[0]).replace("\xa0", " ")), False


def _words(element: HtmlElement) -> str:
    lines = [" ".join(str(text).split()) for text in element.itertext()]
    return "\n".join(filter(None, lines))


def _without_mentions(activity: Mapping[str, Any], text: str) -> str:
    """Take out mentions of the bot; others become a name behind an @."""
    names = _names_of_bot(activity)

    def name(match: "re.Match[str]") -> str:
        mentioned = html.unescape(match[1]).strip()
        return "" if mentioned in names else f"@{mentioned}"

    return _MENTION.sub(name, text).strip()


def _names_of_bot(activity: Mapping[str, Any]) -> set[str]:
    """By which names the message mentions the bot."""
    entities = activity.get("entities")
    mentions = [dict_of(one) for one in entities] if isinstance(entities, list) else []
    return {
        html.unescape(_MENTION.sub(r"\1", text_of(mention.get("text")))).strip()
        for mention in mentions
        if mention.get("type") == "mention" and dict_of(mention.get("mentioned")).get("id") == _bot_of(activity)
    }


def _files(activity: Mapping[str, Any], message_id: str) -> list[Attachment]:
    files = []
    for number, one in enumerate(_attachments(activity)):
        kind, name, content = text_of(one.get("contentType")), text_of(one.get("name")) or None, one.get("content")
        url = text_of(dict_of(content).get("downloadUrl")) if kind == _FILE else text_of(one.get("contentUrl"))
        if url and (kind == _FILE or kind.startswith(("image/", "audio/", "video/"))):
            files.append(Attachment(MediaKind.of_type(kind), f"{message_id}-{number}", name, source=url))
    return files


def _attachments(activity: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    listed = activity.get("attachments")
    return [dict_of(one) for one in listed] if isinstance(listed, list) else []


def _bot_of(activity: Mapping[str, Any]) -> str:
    return text_of(dict_of(activity.get("recipient")).get("id"))


def _time(value: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(text_of(value))
    except ValueError:
        return None
    return time if time.tzinfo is not None else None


def text_of(value: object) -> str:
    return value if isinstance(value, str) else ""


def dict_of(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
