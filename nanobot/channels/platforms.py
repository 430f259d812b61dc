"""What the setup of each platform asks for: instructions, fields with the pattern of their answers, the owner's id.

The terminal's wizard, the page, the status and the doctor read it. A new channel is an entry in PLATFORMS. Where
settings are derived from the answers (the servers of a mailbox, a generated token), the entry names a function.
"""

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nanobot.channels.registry import CHANNELS
from nanobot.config.channels import ChannelConfig, EmailConfig, MatrixConfig, WebSocketClient, WebSocketConfig

if TYPE_CHECKING:
    from nanobot.channels.base import ShowStep

Values = dict[str, object]
"""Settings by attribute name of the config section."""
Answers = Mapping[str, str]
"""By name of their field."""


@dataclass(frozen=True, slots=True)
class SetupField:
    name: str
    """The attribute of the config section."""
    label: str
    pattern: str
    hint: str
    """Where to get it and how it looks; shown for an answer that does not match the pattern."""
    is_secret: bool = False
    alternative: str = ""
    """Another attribute; where it is set, this one is not needed."""
    suggest: Callable[[Answers, ChannelConfig, bool], str] | None = None
    """Makes it optional, and no attribute: `derive_values` reads it. Takes what `derive_values` takes. Returns the
    default of an answer; empty if nothing has to be asked.
    """

    def is_set(self, section: ChannelConfig) -> bool:
        """Whether the section has this setting, or the alternative, or needs neither."""
        names = filter(None, (self.name, self.alternative))
        return self.suggest is not None or any(str(getattr(section, name)).strip() for name in names)

    def accepts(self, answer: str) -> bool:
        return re.fullmatch(self.pattern, answer) is not None


DeriveValues = Callable[[Answers, ChannelConfig, bool], Values]
"""Takes the answers, the current section, and whether the answers replace existing ones."""


def _no_values(*_: object) -> Values:
    return {}


OwnerValues = Callable[[str, ChannelConfig, "ShowStep"], Values]
"""Takes the owner's id and the current section, and shows what the owner has to know."""


@dataclass(frozen=True, slots=True)
class PlatformSetup:
    name: str
    requires: str
    """What the user needs; shown in the menu."""
    instructions: str
    """How to get it."""
    fields: tuple[SetupField, ...]
    owner: SetupField
    """The owner's id on the platform."""
    consent: str = ""
    """What the user has to agree to first; stored as `consent_granted`."""
    sign_in: str = ""
    """`module:function` that gets the values of the fields with a QR code, instead of asking for them. It takes the
    section, ShowStep and AskPerson, and returns SignedIn.
    """
    ways: tuple[tuple[str, str], ...] = ()
    """Where the fields may also be typed: value and label of both ways, signing in first."""
    derive_values: DeriveValues = _no_values
    """Further settings derived from the answers."""
    owner_values: OwnerValues = _no_values
    """Further settings for the owner, if one was given."""
    first_step: str = "Write to your bot on {title}"
    """What the owner does first once it runs."""
    links_account: bool = False
    """Whether the login links an account with a QR code, or with a code for a phone number."""
    waits_for_owner: bool = True
    """Whether the setup can wait for the owner's first message instead of asking for an id."""

    @property
    def title(self) -> str:
        return next(spec.title for spec in CHANNELS if spec.name == self.name)

    @property
    def is_tested(self) -> bool:
        """Whether there is something to try before it is saved."""
        return bool(self.fields) or self.links_account

    @property
    def required(self) -> list[SetupField]:
        """The fields that are settings."""
        return [field for field in self.fields if field.suggest is None]

    def missing_settings(self, section: ChannelConfig) -> list[str]:
        """The required settings that are empty, by attribute name."""
        missing = [field.name for field in self.required if not field.is_set(section)]
        return missing + (["consent_granted"] if self.consent and not getattr(section, "consent_granted", True) else [])


def _secret(name: str, label: str, pattern: str, hint: str) -> SetupField:
    return SetupField(name, label, pattern, hint, is_secret=True)


def _owner(label: str, pattern: str, hint: str) -> SetupField:
    return SetupField("owner", label, pattern, hint)


_MAIL = r"[^@\s]+@[^@\s]+\.[^@\s]+"
_MATRIX_ID = r"@[^:\s]+:[\w.:\[\]-]+"
_SERVER = r"[\w.-]+(?::\d{1,5})?"
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
"""IMAP and SMTP server by mail domain."""
_IMAP, _IMAPS, _SUBMISSION, _SUBMISSIONS = 143, 993, 587, 465


def _mail_server(kind: str, label: str) -> SetupField:
    """The IMAP or SMTP server, asked for where neither the config nor the domain of the mailbox tells it."""

    def suggest(answers: Answers, section: ChannelConfig, replaces: bool) -> str:
        address = answers.get("imap_username", "")
        if _domain(address) in _MAIL_SERVERS or _keeps_servers(address, section, replaces):
            return ""
        return str(getattr(section, f"{kind}_host")) or f"{kind}.{_domain(address)}"

    port = _IMAPS if kind == "imap" else _SUBMISSION
    hint = f"A server is a name, such as {kind}.example.org or {kind}.example.org:{port}; empty: that of the address."
    return SetupField(f"{kind}_server", label, _SERVER, hint, suggest=suggest)


def _mailbox(answers: Answers, section: ChannelConfig, replaces: bool) -> Values:
    """The servers of a mailbox. The port decides between TLS and STARTTLS. An SMTP login of its own stays."""
    assert isinstance(section, EmailConfig)  # noqa: S101 narrows the type
    address, password = answers["imap_username"], answers["imap_password"]
    values: Values = {
        "smtp_username": address if section.smtp_username in ("", section.imap_username) else section.smtp_username,
        "smtp_password": password if section.smtp_password in ("", section.imap_password) else section.smtp_password,
    }
    imap_server, smtp_server = answers.get("imap_server", ""), answers.get("smtp_server", "")
    if _keeps_servers(address, section, replaces) and not (imap_server or smtp_server):
        return values
    existing = (f"{section.imap_host}:{section.imap_port}", f"{section.smtp_host}:{section.smtp_port}")
    known = _MAIL_SERVERS.get(_domain(address), existing)
    imap_host, imap_port = _host_and_port(imap_server or known[0])
    smtp_host, smtp_port = _host_and_port(smtp_server or known[1])
    return values | {
        "imap_host": imap_host,
        "imap_port": imap_port or _IMAPS,
        "imap_use_ssl": imap_port != _IMAP,
        "smtp_host": smtp_host,
        "smtp_port": smtp_port or _SUBMISSION,
        "smtp_use_ssl": smtp_port == _SUBMISSIONS,
    }


def _keeps_servers(address: str, section: ChannelConfig, replaces: bool) -> bool:
    assert isinstance(section, EmailConfig)  # noqa: S101 narrows the type
    has_servers = bool(section.imap_host and section.smtp_host)
    return has_servers and not replaces and section.imap_username in ("", address)


def _domain(address: str) -> str:
    return address.rpartition("@")[2].lower()


def _homeserver(answers: Answers, section: ChannelConfig, replaces: bool) -> Values:
    """The homeserver of the bot's id, unless another is set. A new password replaces a token."""
    assert isinstance(section, MatrixConfig)  # noqa: S101 narrows the type
    is_default = section.homeserver == MatrixConfig.model_fields["homeserver"].default
    server: Values = {"homeserver": f"https://{answers['user_id'].partition(':')[2]}"} if is_default else {}
    password = answers.get("password", "")
    is_new = password and section.access_token and (replaces or password != section.password)
    return server | ({"access_token": ""} if is_new else {})


def _host_and_port(server: str) -> tuple[str, int]:
    host, _, port = server.partition(":")
    return host, int(port or 0)


def _client_with_token(name: str, section: ChannelConfig, show: "ShowStep") -> Values:
    """A client with a random token, unless it exists already."""
    from nanobot.channels.base import LoginStep  # the forms alone need no channel

    assert isinstance(section, WebSocketConfig)  # noqa: S101 narrows the type
    if name in section.clients:
        return {}
    token = secrets.token_hex(24)
    url = f"ws://{section.host}:{section.port}"
    show(LoginStep(f"{name} connects to {url} with this token, which is stored in the config:", code=token))
    return {"clients": section.clients | {name: WebSocketClient(token=token)}}


PLATFORMS: tuple[PlatformSetup, ...] = (
    PlatformSetup(
        name="telegram",
        requires="a bot token from @BotFather (takes a minute)",
        instructions=(
            "In Telegram, write to @BotFather (https://t.me/BotFather): send /newbot, then a name, then a user name "
            "that ends in bot. BotFather replies with the token to paste here."
        ),
        fields=(
            _secret("token", "Bot token", r"(?a)\d+:[\w-]+",
                "A token looks like 123456:ABC-DEF. Copy all of it from @BotFather (/mybots, your bot, API Token)."),
        ),
        owner=_owner("Your Telegram user ID, not your phone number",
            r"(?a)[1-9]\d{2,9}",  # longer numbers are phone numbers with their country code
            "An ID has at most ten digits, such as 12345678. A phone number or a @name does not tell Telegram's bots "
            "who you are. Leave it empty if you do not know it."),
    ),
    PlatformSetup(
        name="discord",
        requires="a bot token from discord.com/developers/applications",
        instructions=(
            "At https://discord.com/developers/applications: New Application. On the page Bot, enable MESSAGE "
            "CONTENT INTENT and save; then Reset Token, and copy the token."
        ),
        fields=(
            _secret("token", "Bot token", r"(?a)(?:Bot )?[\w-]+\.[\w-]+\.[\w-]+",
                "A token has three parts with dots between. It is under Bot, Reset Token; an Application ID, a Public "
                "Key and a Client Secret are something else."),
        ),
        owner=_owner("Your Discord user ID (Settings, Advanced, Developer Mode; then right-click yourself)",
            r"(?a)\d{15,20}",
            "A user ID is a number of 17 to 19 digits, not a name. Leave it empty if you do not know it."),
    ),
    PlatformSetup(
        name="slack",
        requires="two tokens (xoxb- and xapp-) of an app from api.slack.com/apps",
        instructions=(
            "At https://api.slack.com/apps: Create New App, From a manifest (docs/guides/slack.md has it to paste). "
            "Install App gives you the Bot User OAuth Token (xoxb-). Basic Information, App-Level Tokens: generate one "
            "with the scope connections:write (xapp-)."
        ),
        fields=(
            _secret("bot_token", "Bot User OAuth Token, xoxb-", r"(?a)xoxb-[\w-]+",
                "It begins with xoxb- and is under OAuth & Permissions once the app is installed."),
            _secret("app_token", "App-Level Token, xapp-", r"(?a)xapp-[\w-]+",
                "It begins with xapp- and is under Basic Information, App-Level Tokens."),
        ),
        owner=_owner("Your Slack member ID (your profile, the three dots, Copy member ID)", r"[UW][A-Z0-9]{2,}",
            "A member ID looks like U0123ABCD. Leave it empty if you do not know it."),
    ),
    PlatformSetup(
        name="feishu",
        requires="your Feishu or Lark, to scan a QR code; or an app from open.feishu.cn/app",
        instructions=(
            "A QR code creates an app with a bot and its permissions. Or do it at https://open.feishu.cn/app: Create "
            "Custom App. Add Features: Bot. Permissions & Scopes, Batch import: paste those of docs/guides/feishu.md. "
            "Version Management & Release: create a version. Credentials & Basic Info has the App ID and the App "
            "Secret. (For an app of Lark, first run `nanobot config set channels.feishu.domain lark`.)"
        ),
        fields=(
            SetupField("app_id", "App ID, cli_", r"(?a)cli_\w+",
                "It begins with cli_ and is under Credentials & Basic Info."),
            _secret("app_secret", "App Secret", r"\S{8,}", "It is under Credentials & Basic Info, below the App ID."),
        ),
        owner=_owner("Your open_id in this app, ou_", r"(?a)ou_\w+",
            "An open_id looks like ou_ and letters. Leave it empty if you do not know it."),
        sign_in="nanobot.channels.feishu.api:create_app",
        ways=(("create", "Create one with a QR code"), ("enter", "Enter the App ID of one that exists")),
    ),
    PlatformSetup(
        name="dingtalk",
        requires="Client ID and Client Secret of an app from open-dev.dingtalk.com",
        instructions=(
            "At https://open-dev.dingtalk.com: create an app of your organisation, and add the capability Robot with "
            "message reception in Stream mode. Under Permissions, add qyapi_robot_sendmsg, Card.Instance.Write and "
            "Card.Streaming.Write. Publish a version. Credentials has the Client ID and the Client Secret."
        ),
        fields=(
            SetupField("client_id", "Client ID, formerly AppKey", r"(?a)[\w-]{6,}",
                "It looks like dingabc123 and is under Credentials of the app."),
            _secret("client_secret", "Client Secret, formerly AppSecret", r"(?a)[\w-]{6,}",
                "It is under Credentials of the app, below the Client ID."),
        ),
        owner=_owner("Your user ID in the organisation (in the admin console, your entry under Contacts)", r"\S+",
            "A user ID is one word. Leave it empty if you do not know it."),
    ),
    PlatformSetup(
        name="qq",
        requires="AppID and AppSecret of a bot from q.qq.com",
        instructions=(
            "At https://q.qq.com: register, and create a bot (机器人). Development Settings (开发设置) has the AppID "
            "and the AppSecret to paste here; add this machine's public address to the IP allow list (IP白名单) there. "
            "Sandbox (沙箱配置): add yourself, then scan the bot's QR code in QQ."
        ),
        fields=(
            SetupField("app_id", "AppID", r"(?a)\d{6,}", "It is a number and is under Development Settings."),
            _secret("secret", "AppSecret", r"\S{8,}",
                "It is under Development Settings, below the AppID. QQ shows it once; generate another if it is lost."),
        ),
        owner=_owner("Your openid at this bot, not your QQ number", r"[0-9A-Fa-f]{32}",
            "An openid has 32 letters and digits. Leave it empty: QQ shows it nowhere."),
    ),
    PlatformSetup(
        name="wecom",
        requires="Bot ID and secret of a smart robot in your company",
        instructions=(
            "In WeCom (企业微信): Workbench (工作台), Smart Robot (智能机器人), create a robot, manually, in API mode "
            "(API 模式), with a long connection (长连接). The page shows the Bot ID and the Secret to paste here."
        ),
        fields=(
            SetupField("bot_id", "Bot ID", r"\S{6,}", "It is on the robot's page, under API mode."),
            _secret("secret", "Secret", r"\S{8,}", "It is below the Bot ID, of the long connection."),
        ),
        owner=_owner("Your user ID in the company", r"\S+",
            "The contacts of the admin console show it, under Account (账号)."),
    ),
    PlatformSetup(
        name="weixin",
        requires="your WeChat, to scan a QR code",
        instructions=(
            "Your WeChat account gets a bot of its own: a chat named ClawBot, which only you can see. If your app "
            "cannot scan the code below, update it; Me, Settings, Plugins (我, 设置, 插件) must have ClawBot."
        ),
        fields=(_secret("token", "Token", r"\S+", "A QR code gives you one."),),
        owner=_owner("Your ID at the bot, not your WeChat ID", r"\S+@im\.wechat",
            "It ends in @im.wechat. Leave it empty: WeChat shows it nowhere."),
        sign_in="nanobot.channels.weixin:scan_code",
        first_step="Write to ClawBot on {title}",
    ),
    PlatformSetup(
        name="msteams",
        waits_for_owner=False,
        requires="App ID, password and tenant of a bot registered at Azure; an https address for it",
        instructions=(
            "At portal.azure.com: Create a resource, Azure Bot, single tenant. Its page Configuration shows the "
            "Microsoft App ID and the App Tenant ID; Manage Password, New client secret makes the password (copy its "
            "Value). Under Channels, add Microsoft Teams."
        ),
        fields=(
            SetupField("app_id", "Microsoft App ID", r"[0-9a-fA-F-]{36}",
                "It looks like 11111111-2222-3333-4444-555555555555."),
            _secret("app_password", "Password", r"\S{16,}", "It is the Value of the client secret, not its Secret ID."),
            SetupField("tenant_id", "App Tenant ID", r"\S{3,}",
                "It is below the App ID. For an older bot that is multi-tenant: botframework.com."),
        ),
        owner=_owner("Your object ID in Entra ID", r"\S{8,}", "At entra.microsoft.com: Users, your name, Object ID."),
    ),
    PlatformSetup(
        name="whatsapp",
        waits_for_owner=False,
        requires="a phone with WhatsApp, and Node.js 20 or later on this machine",
        instructions=(
            "nanobot becomes a linked device of a WhatsApp account: best of one with its own number. With your number, "
            "you talk to it in the chat with yourself. The first time, this installs a bridge with npm, which takes a "
            "minute. Then it shows a QR code to scan with the phone; or, for a number (in a terminal --phone NUMBER), "
            "a code to enter there."
        ),
        fields=(),
        owner=_owner("Your own WhatsApp number, also if it is the one you linked", r"\+[0-9][0-9 ()./-]{6,30}",
            "A number has its country code, such as +49 151 12345678."),
        # a new channel answers in groups when it is mentioned; without the setting, old ones do always
        derive_values=lambda _, section, __: {} if section.enabled else {"group_policy": "mention"},
        first_step="Write to your bot on {title} (to yourself, if it is your own number)",
        links_account=True,
    ),
    PlatformSetup(
        name="matrix",
        requires="user ID and password of an account for the bot, on any homeserver",
        instructions=(
            "Create an account for the bot on any homeserver, with a Matrix app such as Element. Paste its user ID and "
            "password here. nanobot logs in as a device of its own."
        ),
        fields=(
            SetupField("user_id", "User ID of the bot", _MATRIX_ID, "It looks like @nanobot:example.org."),
            SetupField("password", "Password of the bot", r".+", "It is the one with which the bot's account logs in.",
                alternative="access_token", is_secret=True),
        ),
        owner=_owner("Your own user ID", _MATRIX_ID,
            "It looks like @anna:example.org; your Matrix app shows it in the settings."),
        derive_values=_homeserver,
        first_step="Start a chat with your bot on {title}",
    ),
    PlatformSetup(
        name="mochat",
        requires="token and user ID of an agent registered at mochat.io",
        instructions=(
            "Register an agent. The answer has its token and its botUserId, to paste here:\n"
            "  curl https://mochat.io/api/claw/agents/selfRegister \\\n"
            "    -H 'Content-Type: application/json' -d '{\"name\": \"Nano\"}'\n"
            "Then bind it to your account at Mochat, by its e-mail address, with the token:\n"
            "  curl https://mochat.io/api/claw/agents/bind -H 'X-Claw-Token: claw_...' \\\n"
            "    -H 'Content-Type: application/json' -d '{\"email\": \"you@example.org\"}'"
        ),
        fields=(
            _secret("claw_token", "Token of the agent", r"claw_\S{8,}",
                "It begins with claw_ and is in the answer to the registration."),
            SetupField("agent_user_id", "User ID of the agent", r"\S{6,}",
                "It is the botUserId in the answer to the registration."),
        ),
        owner=_owner("Your user ID at Mochat", r"\S{6,}", "It is the ownerUserId in the answer to the binding."),
    ),
    PlatformSetup(
        name="email",
        waits_for_owner=False,
        requires="a mailbox for the bot, and its (app) password",
        instructions=(
            "Create a separate mailbox for the bot; do not use your own. Gmail, iCloud, Yahoo, Fastmail and others "
            "require an app password, made in their security settings. IMAP may have to be enabled there, too."
        ),
        fields=(
            SetupField("imap_username", "Address of the bot's mailbox", _MAIL,
                "An address looks like my.bot@gmail.com."),
            _secret("imap_password", "Its password, or app password", r".+",
                "Most services want an app password, made in their security settings."),
            _mail_server("imap", "IMAP server (incoming mail)"),
            _mail_server("smtp", "SMTP server (outgoing mail)"),
        ),
        owner=_owner("The address you write from", _MAIL,
            "An address looks like you@example.org. If you leave it empty, the bot answers with a code."),
        consent="nanobot will read all mail in that mailbox, send it to your model and answer it. Do you agree?",
        derive_values=_mailbox,
        first_step="Send a mail to your bot",
    ),
    PlatformSetup(
        name="websocket",
        waits_for_owner=False,
        requires="nothing; serves your own clients on this machine",
        instructions="Each client has its own token; docs/examples/chat.py is a small client.",
        fields=(),
        owner=_owner("A name for your client, such as phone", r"[\w.@+-]{1,64}",
            "A name is one word of letters, digits and . @ + - _. If you leave it empty, the gateway makes a token "
            "when it starts, and its client is shown a code."),
        owner_values=_client_with_token,
        first_step="Send a message from your client",
    ),
)  # fmt: skip


def find_platform(name: str) -> PlatformSetup | None:
    return next((platform for platform in PLATFORMS if platform.name == name), None)
