"""The `channels` section of config.json: one model for each platform.

All inherit `ChannelConfig`. An unknown platform belongs to a plugin: its section is passed to the channel unchanged.
`allowFrom`: an empty list allows paired users only, ["*"] everyone.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from nanobot.config.section import (
    RESTRICTS,
    Count,
    HttpUrl,
    Ids,
    Millis,
    NullableUrl,
    Port,
    Retries,
    Seconds,
    Section,
    Text,
    WebSocketUrl,
    Whole,
    defaults_of,
)

GroupPolicy = Annotated[Literal["mention", "open", "allowlist"], RESTRICTS]


class ChannelConfig(Section):
    """Settings of every channel; null means the value in `channels`."""

    enabled: bool = False
    allow_from: Ids = []
    send_progress: bool | None = None
    send_tool_hints: bool | None = None
    show_reasoning: bool | None = None
    send_max_retries: Retries | None = None
    transcription_provider: str | None = None
    transcription_language: str | None = None


class TelegramConfig(ChannelConfig):
    """A Telegram bot, with long polling."""

    token: Text = ""
    proxy: str | None = None
    reply_to_message: bool = False
    group_policy: GroupPolicy = "mention"
    streaming: bool = True
    react_emoji: Text = "👀"
    api_base: NullableUrl = None  # null: Telegram's own; else a self-hosted Bot API server


class DiscordConfig(ChannelConfig):
    """A Discord bot, over the gateway."""

    token: Text = ""
    gateway_url: WebSocketUrl = "wss://gateway.discord.gg/?v=10&encoding=json"
    intents: Whole = 37377
    proxy: str | None = None
    group_policy: GroupPolicy = "mention"
    allow_channels: Annotated[Ids, RESTRICTS] = []
    streaming: bool = True
    react_emoji: Text = "👀"


class WhatsAppConfig(ChannelConfig):
    """A linked WhatsApp account, through a bridge on Node.js."""

    bridge_url: WebSocketUrl = "ws://localhost:3001"
    bridge_token: Text = ""  # empty: a new one at each start of the bridge
    bridge_managed: bool = True  # only on loopback: the gateway runs the bridge
    auth_dir: Text = ""  # empty: in the data folder
    phone: Text = ""  # link by a code for this number instead of a QR code
    group_policy: GroupPolicy = "open"
    self_chat: bool | None = None  # null: if the account's own number is allowed
    reply_to_message: bool = False
    react_emoji: Text = "👀"
    streaming: bool = False
    send_read_receipts: bool = False
    lid_mappings: dict[str, str] = {}


class SlackDirectConfig(Section):
    """Direct messages in Slack."""

    enabled: Annotated[bool, RESTRICTS] = True
    policy: Annotated[Literal["open", "allowlist"], RESTRICTS] = "open"
    allow_from: Annotated[Ids, RESTRICTS] = []


class SlackConfig(ChannelConfig):
    """A Slack app in socket mode."""

    mode: Literal["socket"] = "socket"
    bot_token: Text = ""
    app_token: Text = ""
    user_token_read_only: bool = True
    reply_in_thread: bool = True
    react_emoji: Text = "eyes"
    group_policy: GroupPolicy = "mention"
    group_allow_from: Annotated[Ids, RESTRICTS] = []
    streaming: bool = True
    api_base: NullableUrl = None  # null: Slack's own; else the base URL of its Web API, such as a company gateway
    dm: SlackDirectConfig = defaults_of(SlackDirectConfig)


class FeishuConfig(ChannelConfig):
    """A Feishu (or Lark) app, over its long connection."""

    app_id: Text = ""
    app_secret: Text = ""
    group_policy: GroupPolicy = "mention"
    topic_isolation: bool = True
    reply_to_message: bool = False
    react_emoji: Text = "THUMBSUP"
    done_emoji: Text = ""
    streaming: bool = True
    domain: Literal["feishu", "lark"] | HttpUrl = "feishu"  # or the address of a private deployment


class DingTalkConfig(ChannelConfig):
    """A DingTalk robot in stream mode."""

    client_id: Text = ""
    client_secret: Text = ""
    robot_code: Text = ""  # empty: the client id
    group_user_isolation: bool = False
    disable_private_chat: Annotated[bool, RESTRICTS] = False
    allow_remote_media_redirects: bool = False
    remote_media_redirect_allowed_hosts: list[str] = []
    streaming: bool = True
    react_emoji: Text = "👀"
    api_base: NullableUrl = None  # null: DingTalk's own
    oapi_base: NullableUrl = None  # null: DingTalk's own; for uploads


class QQConfig(ChannelConfig):
    """A QQ bot, over QQ's gateway."""

    app_id: Text = ""
    secret: Text = ""
    msg_format: Literal["plain", "markdown"] = "plain"
    ack_message: Text = ""
    api_base: NullableUrl = None  # null: QQ's own


class WeComConfig(ChannelConfig):
    """A WeCom smart robot, over its long connection."""

    bot_id: Text = ""
    secret: Text = ""
    welcome_message: Text = ""
    streaming: bool = True
    ws_url: WebSocketUrl = "wss://openws.work.weixin.qq.com"


class WeixinConfig(ChannelConfig):
    """The bot of a personal WeChat account, with long polling."""

    token: Text = ""
    base_url: HttpUrl = "https://ilinkai.weixin.qq.com"
    cdn_base_url: HttpUrl = "https://novac2c.cdn.weixin.qq.com/c2c"
    route_tag: Annotated[str | None, Field(coerce_numbers_to_str=True)] = None
    state_dir: Text = ""  # empty: `weixin` in the data folder; has the account.json of earlier releases
    poll_timeout: Seconds = 35
    reply_progress_messages: bool = False
    reply_progress_max_messages: Whole = 2
    context_message_budget: Count = 8


class TeamsConfig(ChannelConfig):
    """A Microsoft Teams bot, whose messages arrive at a webhook."""

    app_id: Text = ""
    app_password: Text = ""
    tenant_id: Text = ""  # empty: a bot for any tenant
    host: Text = ""  # empty: the gateway's HTTP server, at /hooks/msteams
    port: Port = 3978
    path: Annotated[str, Field(pattern=r"^/")] = "/api/messages"
    reply_in_thread: bool = True
    mention_only_response: Text = "Yes? Write your question behind my name."
    streaming: bool = True
    validate_inbound_auth: Annotated[bool, RESTRICTS] = True
    trusted_service_url_hosts: Annotated[list[str], RESTRICTS] = [
        "smba.trafficmanager.net",
        "smba.infra.gcc.teams.microsoft.com",
        "smba.infra.gov.teams.microsoft.us",
        "smba.infra.dod.teams.microsoft.us",
    ]
    ref_ttl_days: Count = 30
    prune_web_chat_refs: bool = True
    prune_non_personal_refs: bool = True
    ref_touch_interval_s: Whole = 300
    api_base: HttpUrl = "https://login.microsoftonline.com"
    openid_url: HttpUrl = "https://login.botframework.com/v1/.well-known/openidconfiguration"
    service_url: HttpUrl = "https://smba.trafficmanager.net/teams"  # where nobody has written yet


class EmailConfig(ChannelConfig):
    """A mailbox, read with IMAP and answered with SMTP; requires `consentGranted`."""

    consent_granted: bool = False
    imap_host: Text = ""
    imap_port: Port = 993
    imap_username: Text = ""
    imap_password: Text = ""
    imap_mailbox: Text = "INBOX"
    imap_use_ssl: bool = True
    smtp_host: Text = ""
    smtp_port: Port = 587
    smtp_username: Text = ""
    smtp_password: Text = ""
    smtp_use_tls: bool = True
    smtp_use_ssl: bool = False
    from_address: Text = ""
    auto_reply_enabled: bool = True
    poll_interval_seconds: Seconds = 30
    mark_seen: bool = True
    max_body_chars: Count = 12000
    subject_prefix: Text = "Re: "
    max_attachment_size: Count = 25_000_000
    max_attachments_per_email: Whole = 10
    max_replies_per_hour: Count = 3
    authserv_id: str | None = None
    server_checks_senders: bool = False
    ca_file: str | None = None


class MatrixConfig(ChannelConfig):
    """A Matrix account, with access token or password."""

    homeserver: Text = "https://matrix.org"
    user_id: Text = ""
    access_token: Text = ""
    password: Text = ""
    device_id: Text = ""
    e2ee_enabled: bool = True
    group_policy: GroupPolicy = "mention"
    group_allow_from: Annotated[Ids, RESTRICTS] = []
    allow_room_mentions: bool = False
    max_media_bytes: Count = 20 * 1024 * 1024
    streaming: bool = True
    react_emoji: Text = "👀"
    proxy: str | None = None


class MochatMentionConfig(Section):
    """Whether a message in a group has to mention the bot."""

    require_in_groups: bool = False


class MochatGroupConfig(Section):
    """The same for one group, panel or chat."""

    require_mention: bool = False


class MochatConfig(ChannelConfig):
    """A Mochat agent, over Socket.IO with polling as a fallback."""

    base_url: Text = "https://mochat.io"
    socket_url: Text = ""
    socket_path: Text = "/socket.io"
    socket_disable_msgpack: bool = False
    socket_reconnect_delay_ms: Millis = 1000
    socket_max_reconnect_delay_ms: Millis = 10000
    socket_connect_timeout_ms: Millis = 10000
    refresh_interval_ms: Millis = 30000
    watch_timeout_ms: Millis = 25000
    watch_limit: Count = 100
    retry_delay_ms: Millis = 500
    max_retry_attempts: Whole = 0  # 0: no limit
    claw_token: Text = ""
    agent_user_id: Text = ""
    sessions: Ids = []
    panels: Ids = []
    group_policy: GroupPolicy = "open"
    mention: MochatMentionConfig = defaults_of(MochatMentionConfig)
    groups: dict[str, MochatGroupConfig] = {}
    reply_delay_mode: Literal["non-mention", "off"] = "non-mention"
    reply_delay_ms: Millis = 120000


class WebSocketClient(Section):
    """A client of the WebSocket server, identified by its token."""

    token: Text = ""


class WebSocketConfig(ChannelConfig):
    """A WebSocket server for custom clients."""

    host: Text = "127.0.0.1"
    port: Port = 8765
    token: Annotated[Text, RESTRICTS] = ""
    clients: dict[str, WebSocketClient] = {}
    allow_origins: Annotated[list[str], RESTRICTS] = []
    media_folders: list[str] = []
    streaming: bool = True
    max_message_bytes: Count = 8 * 1024 * 1024
    ping_interval_s: Seconds = 20
    ping_timeout_s: Seconds = 20
    ssl_certfile: Text = ""
    ssl_keyfile: Text = ""


class ChannelsConfig(Section):
    """Defaults for all channels; each channel may override them."""

    send_progress: bool = True
    send_tool_hints: bool = False
    show_reasoning: bool = False
    send_max_retries: Retries = 3
    transcription_provider: Text = "groq"
    transcription_language: str | None = None

    telegram: TelegramConfig = defaults_of(TelegramConfig)
    discord: DiscordConfig = defaults_of(DiscordConfig)
    whatsapp: WhatsAppConfig = defaults_of(WhatsAppConfig)
    slack: SlackConfig = defaults_of(SlackConfig)
    feishu: FeishuConfig = defaults_of(FeishuConfig)
    dingtalk: DingTalkConfig = defaults_of(DingTalkConfig)
    qq: QQConfig = defaults_of(QQConfig)
    wecom: WeComConfig = defaults_of(WeComConfig)
    weixin: WeixinConfig = defaults_of(WeixinConfig)
    msteams: TeamsConfig = defaults_of(TeamsConfig)
    email: EmailConfig = defaults_of(EmailConfig)
    matrix: MatrixConfig = defaults_of(MatrixConfig)
    mochat: MochatConfig = defaults_of(MochatConfig)
    websocket: WebSocketConfig = defaults_of(WebSocketConfig)

    def section(self, name: str) -> ChannelConfig:
        """The section of a channel; for a plugin's channel, the settings that every channel has."""
        known = getattr(self, name, None) if name in type(self).model_fields else None
        if isinstance(known, ChannelConfig):
            return known
        extra = (self.model_extra or {}).get(name)
        return ChannelConfig.model_validate(extra if isinstance(extra, dict) else {})

    def own_section(self, name: str) -> Any:
        """The section as its channel takes it: the schema's model, or for a plugin the dict in the file."""
        return getattr(self, name) if name in type(self).model_fields else (self.model_extra or {}).get(name, {})

    def enabled_by_name(self) -> dict[str, bool]:
        """All channels by name, including plugins', and whether they are enabled."""
        sections = {name: getattr(self, name) for name in type(self).model_fields} | (self.model_extra or {})
        known = {name: section.enabled for name, section in sections.items() if isinstance(section, ChannelConfig)}
        plugins = {name: extra.get("enabled") is True for name, extra in sections.items() if isinstance(extra, dict)}
        return known | plugins

    @property
    def enabled(self) -> list[str]:
        """Enabled channels in the order of the schema, then those of plugins."""
        return [name for name, is_on in self.enabled_by_name().items() if is_on]
