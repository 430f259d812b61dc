"""Reads the activities that Teams sends. Pure functions; all values are checked.

Source: learn.microsoft.com/azure/bot-service/rest-api/bot-framework-rest-connector-api-reference (Activity), and
learn.microsoft.com/microsoftteams/platform/bots/how-to (conversations, files).
"""

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from lxml import etree
from lxml.html import HtmlElement, fragment_fromstring

from nanobot.channels.incoming import Incoming, quoted_lines
from nanobot.channels.media import Attachment
from nanobot.channels.media_kinds import MediaKind
from nanobot.channels.payload import Payload

_FILE = "application/vnd.microsoft.teams.file.download.info"
_REPLY = "schema.skype.com/Reply"
_MENTION = re.compile(r"<at[^>]*>(.*?)</at>", re.DOTALL)
_THREAD = ";messageid="


@dataclass(frozen=True, slots=True)
class Upload:
    """The answer to the question whether a file may be stored in the person's OneDrive."""

    file_id: str
    is_accepted: bool
    url: str = ""
    """Where to store it."""
    info: Payload = field(default_factory=Payload)
    """What the message that shows the file needs."""


def read_message(data: Mapping[str, object]) -> Incoming | None:
    """Read a message, or a pressed button. None for one that does not say who wrote it where."""
    activity = Payload.of(data)
    chat_id, message_id = conversation_of(activity), activity.text("id")
    user_id, directory_id = activity.text("from", "id"), activity.text("from", "aadObjectId")
    if not (user_id and chat_id and message_id) or user_id == _bot_of(activity):
        return None
    is_private = is_personal(activity)
    quote, text, is_of_other = _read_quote(activity)
    if quote:
        text = f"{quoted_lines(quote)}\n{text}"
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
        sender_name=activity.text("from", "name"),
        attachments=tuple(_files(activity, message_id)),
        quotes_others=is_of_other,
        sent_at=activity.iso_time("timestamp"),
    )


def read_upload(data: Mapping[str, object]) -> Upload | None:
    """Read the answer to a FileConsentCard. None for any other activity."""
    activity = Payload.of(data)
    value, file_id = activity.part("value"), activity.text("value", "context", "file")
    if activity.get("name") != "fileConsent/invoke" or not file_id:
        return None
    info = value.part("uploadInfo")
    return Upload(file_id, value.get("action") == "accept", info.text("uploadUrl"), info)


def conversation_of(activity: Payload) -> str:
    """The id of its conversation; in a channel it names the thread, too."""
    return activity.text("conversation", "id")


def is_personal(activity: Payload) -> bool:
    """Whether only one person and the bot read the conversation."""
    conversation, is_group = activity.part("conversation"), is_group_id(conversation_of(activity))
    return not (is_group or conversation.get("isGroup")) and conversation.get("conversationType") in (None, "personal")


def is_group_id(chat_id: str) -> bool:
    """Whether this is the id of a group chat or a channel."""
    return chat_id.startswith("19:")


def without_thread(chat_id: str) -> str:
    """The conversation that contains this thread."""
    return chat_id.partition(_THREAD)[0]


def _read_quote(activity: Payload) -> tuple[str, str, bool]:
    """The text that the message replies to, its own text, and whether the former is somebody else's."""
    bodies = [activity.text("text")]
    bodies += [one.text("content") for one in activity.parts("attachments") if one.get("contentType") == "text/html"]
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
            return quoted, _without_mentions(activity, _words(tree)), not is_of_bot
    return "", _without_mentions(activity, html.unescape(bodies[0]).replace("\xa0", " ")), False


def _words(element: HtmlElement) -> str:
    lines = [" ".join(str(text).split()) for text in element.itertext()]
    return "\n".join(filter(None, lines))


def _without_mentions(activity: Payload, text: str) -> str:
    """Take out mentions of the bot; others become a name behind an @."""
    names = _names_of_bot(activity)

    def name(match: "re.Match[str]") -> str:
        mentioned = html.unescape(match[1]).strip()
        return "" if mentioned in names else f"@{mentioned}"

    return _MENTION.sub(name, text).strip()


def _names_of_bot(activity: Payload) -> set[str]:
    """By which names the message mentions the bot."""
    return {
        html.unescape(_MENTION.sub(r"\1", mention.text("text"))).strip()
        for mention in activity.parts("entities")
        if mention.get("type") == "mention" and mention.part("mentioned").get("id") == _bot_of(activity)
    }


def _files(activity: Payload, message_id: str) -> list[Attachment]:
    files = []
    for number, one in enumerate(activity.parts("attachments")):
        kind, name = one.text("contentType"), one.text("name") or None
        url = one.text("content", "downloadUrl") if kind == _FILE else one.text("contentUrl")
        if url and (kind == _FILE or kind.startswith(("image/", "audio/", "video/"))):
            files.append(Attachment(MediaKind.of_type(kind), f"{message_id}-{number}", name, source=url))
    return files


def _bot_of(activity: Payload) -> str:
    return activity.text("recipient", "id")
