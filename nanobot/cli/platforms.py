"""What each platform wants before it lets a bot in: what is asked, where a person finds it, how the answer looks.

`channel_setup` asks by it. A new channel is a row here; where data cannot say what follows from the answers (the
servers of a mailbox, a token that we make), the row names a function above it.
"""

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import typer

from nanobot.cli import questions
from nanobot.config.channels import ChannelConfig, EmailConfig, WebSocketConfig

Values = dict[str, object]
"""What a section is given, by the names of its attributes."""


@dataclass(frozen=True, slots=True)
class Field:
    """One thing that is asked for."""

    name: str
    """As the section calls it."""
    words: str
    shape: re.Pattern[str]
    hint: str
    """What is said of an answer of another shape."""
    is_secret: bool = True


Rest = Callable[[Mapping[str, str], ChannelConfig, bool], Values]
"""Gets the answers, the section as it is, and whether what it has is to be asked anew."""


def _nothing_more(*_: object) -> Values:
    return {}


@dataclass(frozen=True, slots=True)
class Platform:
    """A way to be reached, and how one gets there."""

    name: str
    title: str
    needs: str
    """In the menu: what a person has to have."""
    steps: str
    """Where they get it."""
    fields: tuple[Field, ...]
    owner: Field
    """How the owner is called there."""
    consent: str = ""
    """What a person has to agree to first; kept as `consent_granted`."""
    rest: Rest = _nothing_more
    """What follows from the answers; asked only where nobody can know."""
    first_word: str = "Write to your bot on {title}"
    """How the owner begins."""


_MAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_SERVER = re.compile(r"[\w.-]+(?::\d{1,5})?")
_MAIL_SERVERS: dict[str, tuple[str, str]] = {
    "gmail.com": ("imap.gmail.com", "smtp.gmail.com"),
    "googlemail.com": ("imap.gmail.com", "smtp.gmail.com"),
    "icloud.com": ("imap.mail.me.com", "smtp.mail.me.com"),
    "me.com": ("imap.mail.me.com", "smtp.mail.me.com"),
    "fastmail.com": ("imap.fastmail.com", "smtp.fastmail.com"),
    "yahoo.com": ("imap.mail.yahoo.com", "smtp.mail.yahoo.com"),
    "gmx.net": ("imap.gmx.net", "mail.gmx.net"),
    "gmx.de": ("imap.gmx.net", "mail.gmx.net"),
    "163.com": ("imap.163.com", "smtp.163.com:465"),
}
"""By the domain of an address: where its mails come in, and where they go out."""
_IMAP, _IMAPS, _SUBMISSION, _SUBMISSIONS = 143, 993, 587, 465


def _mailbox(said: Mapping[str, str], section: ChannelConfig, anew: bool) -> Values:
    """The servers of a mailbox: a port says how TLS begins there."""
    assert isinstance(section, EmailConfig)  # noqa: S101 for the type alone: it is the section of this row
    address = said["imap_username"]
    login: Values = {"smtp_username": address, "smtp_password": said["imap_password"]}
    if section.imap_host and section.smtp_host and not anew:
        kept = {"smtp_username": section.smtp_username, "smtp_password": section.smtp_password}
        return {name: kept[name] or value for name, value in login.items()}
    domain = address.rpartition("@")[2].lower()
    servers = _MAIL_SERVERS.get(domain) or (
        _ask_server("Server where its mails come in (IMAP)", section.imap_host or f"imap.{domain}"),
        _ask_server("Server where its mails go out (SMTP)", section.smtp_host or f"smtp.{domain}"),
    )
    (imap_host, imap_port), (smtp_host, smtp_port) = map(_host_and_port, servers)
    return login | {
        "imap_host": imap_host,
        "imap_port": imap_port or _IMAPS,
        "imap_use_ssl": imap_port != _IMAP,
        "smtp_host": smtp_host,
        "smtp_port": smtp_port or _SUBMISSION,
        "smtp_use_ssl": smtp_port == _SUBMISSIONS,
    }


def _ask_server(words: str, default: str) -> str:
    answer = ""
    while not _SERVER.fullmatch(answer):
        answer = questions.ask(words, default)
    return answer


def _host_and_port(server: str) -> tuple[str, int]:
    host, _, port = server.partition(":")
    return host, int(port or 0)


def _own_token(_: Mapping[str, str], section: ChannelConfig, anew: bool) -> Values:
    """A token that nobody guesses, unless there is one."""
    assert isinstance(section, WebSocketConfig)  # noqa: S101 for the type alone: it is the section of this row
    if section.token and not anew:
        return {}
    token = secrets.token_hex(24)
    where = f"ws://{section.host}:{section.port}"
    typer.echo(f"Your clients connect to {where} with this token, which the config keeps:\n  {token}")
    return {"token": token}


PLATFORMS: tuple[Platform, ...] = (
    Platform(
        name="telegram",
        title="Telegram",
        needs="the token of a bot, which @BotFather makes you in a minute",
        steps=(
            "In Telegram, write to @BotFather (https://t.me/BotFather): /newbot, a name, and a user name that ends in "
            "bot. It answers with a token."
        ),
        fields=(
            Field(
                "token",
                "Token of the bot",
                re.compile(r"\d+:[\w-]+", re.ASCII),
                "A token looks like 123456:ABC-DEF. Copy all of it from @BotFather (/mybots, your bot, API Token).",
            ),
        ),
        owner=Field(
            "owner",
            "Your own number on Telegram",
            re.compile(r"\d{1,19}", re.ASCII),
            "A number, such as 12345678; names can change hands. Leave it empty, and the bot shows you a code.",
            is_secret=False,
        ),
    ),
    Platform(
        name="discord",
        title="Discord",
        needs="the token of a bot from discord.com/developers/applications",
        steps=(
            "At https://discord.com/developers/applications: New Application. On the page Bot, switch on MESSAGE "
            "CONTENT INTENT and save; then Reset Token, and copy the token."
        ),
        fields=(
            Field(
                "token",
                "Token of the bot",
                re.compile(r"(?:Bot )?[\w-]+\.[\w-]+\.[\w-]+", re.ASCII),
                "A token has three parts with dots between. It is under Bot, Reset Token; an Application ID, a Public "
                "Key and a Client Secret are something else.",
            ),
        ),
        owner=Field(
            "owner",
            "Your own user ID on Discord (Settings, Advanced, Developer Mode; then right-click yourself)",
            re.compile(r"\d{15,20}", re.ASCII),
            "A user ID is a number of 17 to 19 digits. Leave it empty, and the bot shows you a code.",
            is_secret=False,
        ),
    ),
    Platform(
        name="slack",
        title="Slack",
        needs="two tokens (xoxb- and xapp-) of an app from api.slack.com/apps",
        steps=(
            "At https://api.slack.com/apps: Create New App, From a manifest (docs/guides/slack.md has it to paste). "
            "Install App gives you the Bot User OAuth Token (xoxb-). Basic Information, App-Level Tokens: generate one "
            "with the scope connections:write (xapp-)."
        ),
        fields=(
            Field(
                "bot_token",
                "Bot User OAuth Token, xoxb-",
                re.compile(r"xoxb-[\w-]+", re.ASCII),
                "It begins with xoxb-, and is under OAuth & Permissions once the app is installed.",
            ),
            Field(
                "app_token",
                "App-Level Token, xapp-",
                re.compile(r"xapp-[\w-]+", re.ASCII),
                "It begins with xapp-, and is under Basic Information, App-Level Tokens.",
            ),
        ),
        owner=Field(
            "owner",
            "Your own member ID on Slack (your profile, the three dots, Copy member ID)",
            re.compile(r"[UW][A-Z0-9]{2,}"),
            "A member ID looks like U0123ABCD. Leave it empty, and the bot shows you a code.",
            is_secret=False,
        ),
    ),
    Platform(
        name="email",
        title="E-mail",
        needs="a mailbox of the bot's own, and its (app) password",
        steps=(
            "Make a mailbox for the bot; do not take yours. Gmail, iCloud, Yahoo, Fastmail and others want an app "
            "password: their security settings make one. IMAP may have to be switched on there, too."
        ),
        fields=(
            Field(
                "imap_username",
                "Address of the bot's mailbox",
                _MAIL,
                "An address looks like my.bot@gmail.com.",
                is_secret=False,
            ),
            Field("imap_password", "Its password, or app password", re.compile(r".+"), "A password is not empty."),
        ),
        owner=Field(
            "owner",
            "The address you write from",
            _MAIL,
            "An address looks like you@example.org. Leave it empty, and the bot answers with a code.",
            is_secret=False,
        ),
        consent="nanobot will read all mails of that mailbox, hand them to your model and answer them. Is that right?",
        rest=_mailbox,
        first_word="Write a mail to your bot",
    ),
    Platform(
        name="websocket",
        title="WebSocket",
        needs="a server on this machine, for clients of your own",
        steps="A token is made for you; docs/guides/websocket.md has a client of twenty lines.",
        fields=(),
        owner=Field(
            "owner",
            "The name of your client, such as phone",
            re.compile(r"[\w.@+-]{1,64}"),
            "A name is one word: letters, digits and . @ + - _ alone. Leave it empty, and the client is shown a code.",
            is_secret=False,
        ),
        rest=_own_token,
        first_word="Let your client say something",
    ),
)


def find_platform(name: str) -> Platform | None:
    """The platform of that name, if it is one of ours."""
    return next((one for one in PLATFORMS if one.name == name), None)
