"""Reads the messages that Teams sends. Pure functions; all values are checked.

Source: learn.microsoft.com/azure/bot-service/rest-api/bot-framework-rest-connector-api-reference (Activity), and
learn.microsoft.com/microsoftteams/platform/bots/how-to (conversations, files).
"""

import html
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from lxml import etree
from lxml.html import HtmlElement, fragment_fromstring

from nanobot.channels.incoming import Incoming, Payload, quoted_lines
from nanobot.channels.media import Attachment, MediaKind

GROUP = "19:"
"""How ids of group chats and channels begin."""
THREAD = ";messageid="
"""In the id of a thread: behind that of its channel."""
_FILE = "application/vnd.microsoft.teams.file.download.info"
_REPLY = "schema.skype.com/Reply"
_MENTION = re.compile(r"<at[^>]*>(.*?)</at>", re.DOTALL)


def read_message(data: Mapping[str, object]) -> Incoming | None:
    """Read a message, or a pressed button. None for one that does not say who wrote it where."""
    activity = Payload.of(data)
    conversation, bot = activity.part("conversation"), activity.text("recipient", "id")
    chat_id, message_id = conversation.text("id"), activity.text("id")
    user_id, directory_id = activity.text("from", "id"), activity.text("from", "aadObjectId")
    if not (user_id and chat_id and message_id) or user_id == bot:
        return None
    is_group = chat_id.startswith(GROUP) or bool(conversation.get("isGroup"))
    is_private = not is_group and conversation.get("conversationType") in (None, "personal")
    names = {
        html.unescape(_MENTION.sub(r"\1", mention.text("text"))).strip()
        for mention in activity.parts("entities")
        if mention.get("type") == "mention" and mention.part("mentioned").get("id") == bot
    }  # by which the bot is mentioned
    quote, text, is_of_other = _read_quote(activity, bot, names)
    return Incoming(
        directory_id or user_id,
        chat_id,
        f"{quoted_lines(quote)}\n{text}" if quote else text,
        message_id,
        is_private=is_private,
        is_mentioned=is_private or bool(names) or bool(activity.get("value")),  # the latter is a button
        parent_ids=(chat_id.partition(THREAD)[0],) if THREAD in chat_id else (),
        alternate_ids=(user_id,) if directory_id else (),
        is_verified=activity.get("channelId") == "msteams",  # elsewhere people choose their ids themselves
        sender_name=activity.text("from", "name"),
        attachments=tuple(_read_files(activity)),
        quotes_others=is_of_other,
        sent_at=activity.iso_time("timestamp"),
    )


def _read_quote(activity: Payload, bot: str, names: AbstractSet[str]) -> tuple[str, str, bool]:
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
        quote = next((one for one in tree.iter("blockquote") if _REPLY in str(one.get("itemtype"))), None)
        if quote is None:
            continue
        shown, author, bot_id = quote.find("p"), quote.find("strong"), bot.partition(":")[2]
        quoted = _words(quote if shown is None else shown)
        is_of_bot = bool(bot_id) and author is not None and bot_id in str(author.get("itemid"))
        quote.drop_tree()
        for mention in tree.iter("span"):
            if "Mention" in str(mention.get("itemtype")) and _words(mention) in names:
                mention.text = ""
        return quoted, _without_mentions(_words(tree), names), not is_of_bot
    return "", _without_mentions(html.unescape(bodies[0]).replace("\xa0", " "), names), False


def _words(element: HtmlElement) -> str:
    lines = [" ".join(str(text).split()) for text in element.itertext()]
    return "\n".join(filter(None, lines))


def _without_mentions(text: str, names: AbstractSet[str]) -> str:
    """Take out mentions of the bot; others become a name behind an @."""

    def name(match: "re.Match[str]") -> str:
        mentioned = html.unescape(match[1]).strip()
        return "" if mentioned in names else f"@{mentioned}"

    return _MENTION.sub(name, text).strip()


def _read_files(activity: Payload) -> list[Attachment]:
    files = []
    for one in activity.parts("attachments"):
        kind, name = one.text("contentType"), one.text("name") or None
        url = one.text("content", "downloadUrl") if kind == _FILE else one.text("contentUrl")
        if url and (kind == _FILE or kind.startswith(("image/", "audio/", "video/"))):
            files.append(Attachment(MediaKind.of_type(kind), name=name, source=url))
    return files
