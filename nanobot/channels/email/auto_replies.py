"""Mails no program may answer (RFC 3834, and what is in use beside it). Robots have written to each other all night."""

import re
from collections.abc import Collection

from nanobot.channels.email.headers import Headers

LOOP_HEADER = "X-Loop"
_MACHINES = re.compile(
    r"mailer-daemon|postmaster|majordomo|listserv|daemon|(?:do[-_.]?)?not?[-_.]?reply(?:[-_.+].*)?|bounces?(?:[-_.+].*)?|"
    r"owner-.*|.*-(?:request|bounces)"
)
_LISTS = ("List-Id", "List-Post", "List-Unsubscribe", "Mailing-List", "X-Mailman-Version", "X-BeenThere")
_ROBOTS = ("X-Autoreply", "X-Autorespond", "X-Auto-Reply-From", "X-Failed-Recipients", "X-MS-Exchange-Inbox-Rules-Loop")
_BULK = ("bulk", "list", "junk", "auto_reply")


def auto_reply_reason(headers: Headers, content_type: str, sender: str, own: Collection[str]) -> str:
    """Why this mail gets no answer, whatever it says; empty: it may get one. `own`: addresses of this mailbox."""
    if not sender:
        return "it has no sender who could be answered"
    if sender in own:
        return "it comes from this mailbox itself"
    if any(one.strip().lower() in own for one in headers.all(LOOP_HEADER)):
        return "it is one of ours that came back"
    said = headers.text("Auto-Submitted").partition(";")[0].strip().lower()
    if said not in ("", "no"):
        return f"a program sent it (Auto-Submitted: {said[:40]})"
    if (said := headers.text("Precedence").lower()) in _BULK:
        return f"it went to many (Precedence: {said})"
    for name in (*_LISTS, *_ROBOTS):
        if headers.has(name):
            return f"it went to a list, or a program sent it ({name})"
    if content_type == "multipart/report" or any(one.strip() == "<>" for one in headers.all("Return-Path")):
        return "it reports about another mail"
    if _MACHINES.fullmatch(sender.partition("@")[0]):
        return "nobody reads answers there"
    return ""
