"""The schema of config.json with its defaults: one model for each section, one line for each key.

`Config()` gives the defaults, filled from NANOBOT_ variables. It reads no file; that is the loader's task. Channels are
in `channels`.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, PrivateAttr, create_model, field_validator, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from nanobot.config.channels import ChannelsConfig
from nanobot.config.keypath import InvalidKeyError, KeyPath, nearest
from nanobot.config.provider_table import (
    AUTO,
    DEFAULT_MODEL,
    PROVIDERS,
    ProviderMatch,
    find_by_name,
    match_provider,
    plain_name,
)
from nanobot.config.section import (
    RESTRICTS,
    AnyMap,
    ApiType,
    Count,
    Headers,
    Money,
    NullableUrl,
    Number,
    Port,
    Seconds,
    Section,
    Shape,
    StrMap,
    Text,
    Whole,
    defaults_of,
    empty_is_null,
    in_camel_case,
    with_all_sections,
)

if TYPE_CHECKING:
    from nanobot.usage.budget import SpendingLimits

API_KEY_NAME = r"^[A-Za-z0-9._-]{1,40}$"
PERSON = r"^([a-z_]+:\S+)?$"
"""`channel:chat_id`."""


def _empty_is_auto(value: object) -> object:
    return AUTO if value == "" else value


def _http_transport(value: object) -> object:
    """Accept the names that other clients use for the same transport; configs are often copied."""
    return "streamableHttp" if value in ("http", "streamable-http", "streamable_http") else empty_is_null(value)


Effort = Annotated[
    Literal["none", "minimal", "low", "medium", "high", "xhigh", "max", "adaptive"] | None,
    BeforeValidator(empty_is_null),
]
Temperature = Annotated[float, Number, Field(ge=0, le=2)]


class ModelPreset(Section):
    """A named model; null means the value in `agents.defaults`."""

    model: str = Field(min_length=1)
    provider: Text = AUTO
    max_tokens: Count | None = None
    context_window_tokens: Count | None = None
    temperature: Temperature | None = None
    reasoning_effort: Effort = None


class DreamConfig(Section):
    """When and how Dream edits the memory. It calls no model unless there is something new."""

    enabled: bool = True  # scheduled by the gateway; /dream always works
    cron: str | None = None  # in the agent's time zone; overrides intervalH
    interval_h: Annotated[float, Number, Field(gt=0, le=24 * 366)] | None = None  # both null: at 04:00
    model_override: str | None = None  # a model or a preset; null: backgroundModel, else the default model
    max_batch_size: Count = 20  # log entries per model call
    max_iterations: Count = 3  # model calls per run
    max_tokens: Count = 60_000  # per run, input and output
    annotate_line_ages: bool = True  # show the model the age of each fact

    @field_validator("cron")
    @classmethod
    def _is_a_time(cls, value: str | None) -> str | None:
        if not value or not value.strip():
            return None
        from croniter import croniter  # only needed if it is set

        if not croniter.is_valid(value):
            raise ValueError("must be a cron expression such as `0 4 * * *`")
        return value


class AgentDefaults(Section):
    """Settings of the agent."""

    workspace: str = "~/.nanobot/workspace"
    model: str = Field(default=DEFAULT_MODEL, min_length=1)
    provider: Text = AUTO  # a key of `providers`, or auto
    model_preset: str | None = None  # a key of `modelPresets`; overrides model and provider
    fallback_models: list[str | ModelPreset] = []  # presets or models
    background_model: str | None = None  # for consolidation, heartbeat and Dream
    max_tokens: Count = 8192
    context_window_tokens: Count | None = None  # null: what the endpoint lists, else the model table, else 65536
    temperature: Temperature = 0.1
    reasoning_effort: Effort = None
    provider_retry_mode: Literal["standard", "persistent"] = "standard"
    max_tool_iterations: Count = 40
    max_tool_result_chars: Count = 16000
    max_concurrent_subagents: Count = 4
    subagent_timeout_s: Seconds = 1800
    subagent_depth: Literal[1, 2] = 1  # 2: subagents may have subagents
    subagent_keep_days: Count = 30  # transcripts of subagents
    memory_window: Count = 100  # messages before consolidation starts
    memory_budget_bytes: Count = 8192  # of MEMORY.md, after a consolidation
    dream: DreamConfig = defaults_of(DreamConfig)
    idle_compact_after_minutes: Whole = 0  # 0: never
    session_max_mb: Whole = 256  # a larger session is archived and a new one started; 0: never
    session_max_days: Whole = 0  # the same, by age
    steering: Literal["join", "queue"] = "join"
    review: bool = False
    goal_steps: Annotated[Count, RESTRICTS] = 200  # model calls of a goal, including its subagents
    goal_usd: Annotated[float, RESTRICTS] = Field(default=2.0, gt=0)  # dollars a goal may spend
    unified_session: bool = False
    disabled_skills: Annotated[list[str], RESTRICTS] = []
    skills_prompt_chars: Count = 8000  # limit for the skill summaries in the prompt
    timezone: str | None = None  # null: the host's
    bot_name: Text = "nanobot"
    bot_icon: Text = "🐈"  # shown before the name in the terminal chat if changed

    @property
    def bot_title(self) -> str:
        """The bot's name for chats, with the icon if the owner changed it."""
        chosen = self.bot_icon not in ("", type(self).model_fields["bot_icon"].default)
        return f"{self.bot_icon} {self.bot_name}" if chosen else self.bot_name

    @field_validator("workspace")
    @classmethod
    def _is_a_path(cls, value: str) -> str:
        if not value.strip() or "\0" in value:
            raise ValueError("must be the path of a folder")
        return value

    @field_validator("timezone")
    @classmethod
    def _is_a_zone(cls, value: str | None) -> str | None:
        if not value:
            return None
        from zoneinfo import ZoneInfo, available_timezones  # reads files; only needed if a zone is set

        try:
            ZoneInfo(value)
        except (ValueError, OSError) as error:
            raise ValueError("must be a zone such as Europe/Berlin") from error
        except KeyError as error:  # not found; a host without a zone database knows none, which is not an error
            if available_timezones():
                raise ValueError("must be a zone such as Europe/Berlin") from error
        return value


class AgentsConfig(Section):
    defaults: AgentDefaults = defaults_of(AgentDefaults)


class ModelPrice(Section):
    """Prices in dollars per million tokens."""

    input: Money
    output: Money
    cached: Money | None = None  # cached input tokens; null: same as input


class ProviderConfig(Section):
    """Connection to one provider. With an empty key, the environment is used."""

    api_key: Text = ""
    api_base: NullableUrl = None  # null: the provider's default
    extra_headers: Headers | None = None
    extra_body: AnyMap | None = None
    proxy: str | None = None
    backend: Literal["auto", "direct", "litellm"] = "auto"  # direct: our own HTTP client; auto: direct if supported
    api_type: ApiType = "auto"  # responses: the OpenAI Responses API; auto: chat completions
    connect_timeout_s: Seconds | None = None
    first_token_timeout_s: Seconds | None = None
    idle_timeout_s: Seconds | None = None
    total_timeout_s: Seconds | None = None
    region: str | None = None  # bedrock
    profile: str | None = None  # bedrock
    prices: dict[str, ModelPrice] = {}  # by model, or a pattern such as `large-*`


if TYPE_CHECKING:
    _ProviderSections = Section
else:
    _ProviderSections = create_model(
        "_ProviderSections",
        __base__=Section,
        **{spec.name: (ProviderConfig, defaults_of(ProviderConfig)) for spec in PROVIDERS},
    )


class ProvidersConfig(_ProviderSections):
    """Access to models: a section for each provider in the table. Any other key is an OpenAI-compatible endpoint."""

    __pydantic_extra__: dict[str, ProviderConfig] = Field(init=False)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> ProviderConfig: ...

    def by_name(self) -> dict[str, ProviderConfig]:
        """All sections by name, including custom ones."""
        return {spec.name: getattr(self, spec.name) for spec in PROVIDERS} | self.__pydantic_extra__


class HeartbeatConfig(Section):
    """The periodic check of HEARTBEAT.md: starts with the first task in it, unless `enabled` is set to false."""

    enabled: bool = False
    interval_s: Count = 1800
    channel: Text = ""
    """With `to`, the chat that gets the results; if empty, the one in which the owner wrote last."""
    to: Text = ""


class SessionsConfig(Section):
    """What happens to conversations that are over."""

    keep_days: Annotated[Whole, Field(le=36_500)] = 0
    """Days after which archived sessions and daily notes move into one archive for each month; 0: never."""


class WebConfig(Section):
    """The page that the gateway serves."""

    enabled: bool = True
    public_url: Text = ""
    """Its address behind a proxy with TLS, such as `https://bot.example.org`; needed on another host than loopback."""
    allowed_hosts: list[str] = []
    """Further names by which browsers may call it."""


class GatewayConfig(Section):
    """The gateway's HTTP server and heartbeat."""

    host: str = "127.0.0.1"
    port: Port = 18790
    web: WebConfig = defaults_of(WebConfig)
    heartbeat: HeartbeatConfig = defaults_of(HeartbeatConfig)


class ApiKeyConfig(Section):
    """A key of a program; `nanobot api key add` makes one that is stored as a hash instead."""

    token: Annotated[Text, RESTRICTS]
    role: Annotated[Literal["owner", "guest"], RESTRICTS] = "guest"
    as_: Annotated[str, RESTRICTS, Field(alias="as", pattern=PERSON)] = ""  # whom a guest's key speaks for

    @model_validator(mode="after")
    def _only_guests_are_persons(self) -> "ApiKeyConfig":
        if self.as_ and self.role == "owner":
            raise ValueError("`as` is for guests: an owner's key acts as the owner")
        return self


class ApiConfig(Section):
    """The OpenAI-compatible HTTP API: always on the gateway's port, and on one of its own if enabled."""

    enabled: bool = False
    host: str = "127.0.0.1"
    port: Port = 8900
    token: Annotated[Text, RESTRICTS] = ""
    keys: dict[Annotated[str, Field(pattern=API_KEY_NAME)], ApiKeyConfig] = {}
    timeout: Seconds = 120  # of a request without a stream
    max_body_mb: Count = 20
    allow_origins: list[str] = []  # of web pages that may call it
    any_model: bool = True  # an unknown model means the configured one
    ignore_tools: bool = False  # pass over the `tools` of a request instead of refusing it
    default_session: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,120}$")] = ""
    """The conversation of requests that name none; if empty, each has a session of its own."""
    fetch_images: bool = True  # pictures that an owner's request names by http(s) addresses

    @field_validator("allow_origins")
    @classmethod
    def _are_origins(cls, value: list[str]) -> list[str]:
        for origin in value:
            if not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/*\s]+", origin):
                raise ValueError(f"{origin!r} is not an origin such as https://chat.example.org: no path, no *")
        return value


class WebSearchConfig(Section):
    """Web search; `auto` uses the first provider with a key, else DuckDuckGo."""

    provider: Annotated[
        Literal["auto", "brave", "tavily", "searxng", "duckduckgo", "jina", "kagi", "olostep"],
        BeforeValidator(_empty_is_auto),
    ] = "auto"
    api_key: Text = ""
    base_url: Text = ""
    max_results: Annotated[int, Number, Field(ge=1, le=50)] = 5


class WebFetchConfig(Section):
    """Reading web pages."""

    max_chars: Count = 50000


class WebToolsConfig(Section):
    """The web tools; `enable` false turns them all off."""

    enable: Annotated[bool, RESTRICTS] = True
    proxy: str | None = None
    search: WebSearchConfig = defaults_of(WebSearchConfig)
    fetch: WebFetchConfig = defaults_of(WebFetchConfig)


class ExecConfig(Section):
    """The exec tool; `enable` false turns it off."""

    enable: Annotated[bool, RESTRICTS] = True
    timeout: Seconds = 60
    path_prepend: Text = ""
    path_append: Text = ""
    sandbox: Annotated[Literal["auto", "bwrap", "none"], BeforeValidator(_empty_is_auto), RESTRICTS] = "auto"
    network: Annotated[bool, RESTRICTS] = True
    allowed_env_keys: list[str] = []
    deny_patterns: Annotated[list[str], RESTRICTS] = []
    allow_patterns: Annotated[list[str], RESTRICTS] = []

    @field_validator("deny_patterns", "allow_patterns")
    @classmethod
    def _are_patterns(cls, value: list[str]) -> list[str]:
        for pattern in value:
            try:
                re.compile(pattern)
            except (re.error, OverflowError, RecursionError) as error:
                raise ValueError(f"must contain regular expressions; {pattern[:60]!r} is not one: {error}") from error
        return value


class McpServerConfig(Section):
    """An MCP server: a command to start, or a URL."""

    type: Annotated[Literal["stdio", "sse", "streamableHttp"] | None, BeforeValidator(_http_transport)] = None
    command: Text = ""
    args: list[str] = []
    env: StrMap | None = {}
    cwd: Text = ""  # empty: its own folder in the state folder
    url: Text = ""
    headers: Headers | None = {}
    tool_timeout: Seconds = 30
    enabled_tools: Annotated[list[str], RESTRICTS] = ["*"]

    @property
    def transport(self) -> Literal["stdio", "sse", "streamableHttp"] | None:
        """The transport; None if there is no command or URL for it."""
        if self.type == "stdio" or (self.type is None and self.command):
            return "stdio" if self.command else None
        if not self.url:
            return None
        return self.type or ("sse" if urlsplit(self.url).path.rstrip("/").endswith("/sse") else "streamableHttp")

    @property
    def location(self) -> str:
        """The command line or URL, for a person to read: without possible secrets."""
        if self.transport == "stdio":
            return " ".join((self.command, *self.args))
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()

    @property
    def folder(self) -> Path | None:
        return Path(os.path.expanduser(self.cwd)) if self.cwd else None  # noqa: PTH111 - raises for no unknown user


class ImageToolConfig(Section):
    """The image tool: `auto` uses the first provider with a key and an image model; `enable` false turns it off."""

    enable: Annotated[bool, RESTRICTS] = True
    provider: Annotated[str, BeforeValidator(_empty_is_auto)] = "auto"
    model: Text = ""


class ToolsConfig(Section):
    """Tools and their permissions."""

    restrict_to_workspace: Annotated[bool, RESTRICTS] = False
    custom_tools: bool = False
    allowed_paths: list[str] = []
    protected_paths: Annotated[list[str], RESTRICTS] = []
    approval: Annotated[Literal["ask", "deny", "off"], RESTRICTS] = "ask"
    ssrf_whitelist: list[str] = []  # CIDR
    web: WebToolsConfig = defaults_of(WebToolsConfig)
    exec: ExecConfig = defaults_of(ExecConfig)
    image: ImageToolConfig = defaults_of(ImageToolConfig)
    mcp_servers: dict[str, McpServerConfig] = {}

    @field_validator("ssrf_whitelist")
    @classmethod
    def _are_networks(cls, value: list[str]) -> list[str]:
        from ipaddress import ip_network

        for network in value:
            try:
                ip_network(network, strict=False)
            except ValueError as error:
                raise ValueError(
                    f"must contain networks such as 192.168.1.0/24; {network[:60]!r} is not one"
                ) from error
        return value


class HookCommandConfig(Section):
    """A program as a hook: the events it gets, and whether its failure denies the event."""

    command: list[str] = Field(min_length=1)
    on: list[Literal["message", "request", "answer", "beforeTool", "afterTool", "turnEnd"]] = Field(min_length=1)
    guard: Annotated[bool, RESTRICTS] = False
    env: StrMap = {}


class PluginsConfig(Section):
    """Installed packages with tools and hooks. Any other key is the settings of the package of that name."""

    enabled: list[str] = []  # package names; "*": all installed ones
    disabled: Annotated[list[str], RESTRICTS] = []
    """Nothing of these packages is used, including channels and providers."""
    hook_timeout_s: Seconds = 5
    commands: dict[str, HookCommandConfig] = {}  # hooks run after those of packages


class LimitsConfig(Section):
    """Spending limits; null means no limit."""

    daily_usd: Annotated[Money | None, RESTRICTS] = None
    monthly_usd: Annotated[Money | None, RESTRICTS] = None
    turn_tokens: Annotated[Count | None, RESTRICTS] = None
    unknown_price: Annotated[Literal["refuse", "allow"], RESTRICTS] = "refuse"
    """Whether to use a model without a known price under a limit in dollars."""

    def spending_limits(self) -> "SpendingLimits":
        """The limits as the ledger enforces them."""
        from nanobot.usage.budget import SpendingLimits

        return SpendingLimits(
            self.daily_usd, self.monthly_usd, self.turn_tokens, unknown_price=self.unknown_price == "allow"
        )


@dataclass(frozen=True, slots=True)
class LoadedFrom:
    """What a config was made of; `file` is None without one. Paths are camelCase.

    All instances are equal, so that configs with the same settings are.
    """

    file: Path | None = field(default=None, compare=False)
    written: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The migrated file with known keys in camelCase and references as written."""
    tree: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The same as it was used: without references, filled from the environment."""
    variables: Mapping[KeyPath, str] = field(default_factory=dict, compare=False)
    """The variable of each key that the environment filled."""
    warnings: tuple[str, ...] = field(default=(), compare=False)


def _unknown_name(path: KeyPath, name: str, known: Iterable[str], section: str) -> InvalidKeyError:
    guess = nearest(name, known)
    hint = f' (did you mean "{guess}"?)' if guess else f"; it must be one of `{section}`"
    return InvalidKeyError(path, f'"{name}" is not known{hint}')


class Config(BaseSettings, Section):
    """The whole of config.json."""

    model_config = SettingsConfigDict(env_prefix="NANOBOT_", env_nested_delimiter="__")

    agents: AgentsConfig = defaults_of(AgentsConfig)
    model_presets: dict[str, ModelPreset] = {}
    channels: ChannelsConfig = defaults_of(ChannelsConfig)
    providers: ProvidersConfig = defaults_of(ProvidersConfig)
    gateway: GatewayConfig = defaults_of(GatewayConfig)
    api: ApiConfig = defaults_of(ApiConfig)
    sessions: SessionsConfig = defaults_of(SessionsConfig)
    tools: ToolsConfig = defaults_of(ToolsConfig)
    limits: LimitsConfig = defaults_of(LimitsConfig)
    plugins: PluginsConfig = defaults_of(PluginsConfig)

    _loaded_from: LoadedFrom = PrivateAttr(default_factory=LoadedFrom)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments override the environment; nothing else is read."""
        from nanobot.config.environment import fill

        root = Shape(cls)
        tree = fill(in_camel_case(init_settings(), root), root, os.environ).tree
        return (InitSettingsSource(settings_cls, with_all_sections(tree, root)),)

    @model_validator(mode="after")
    def _validate_names(self) -> "Config":
        where, defaults = ("agents", "defaults"), self.agents.defaults
        presets: list[tuple[KeyPath, str]] = []
        providers: list[tuple[KeyPath, str]] = [((*where, "provider"), defaults.provider)]
        providers += [
            (("modelPresets", name, "provider"), preset.provider) for name, preset in self.model_presets.items()
        ]
        if defaults.model_preset:
            presets.append(((*where, "modelPreset"), defaults.model_preset))
        for index, model in enumerate(defaults.fallback_models):
            path: KeyPath = (*where, "fallbackModels", index)
            if isinstance(model, ModelPreset):
                providers.append(((*path, "provider"), model.provider))
            else:
                presets.append((path, model))
        for path, name in presets:
            if name not in self.model_presets:
                raise _unknown_name(path, name, self.model_presets, "modelPresets")
        for path, name in providers:
            if name != AUTO and not find_by_name(name) and not self._custom_section(name):
                known = [spec.config_key for spec in PROVIDERS] + list(self.providers.__pydantic_extra__)
                raise _unknown_name(path, name, known, "providers")
        return self

    @property
    def loaded_from(self) -> LoadedFrom:
        return self._loaded_from

    def with_origin(self, origin: LoadedFrom) -> "Config":
        self._loaded_from = origin
        return self

    @property
    def workspace_path(self) -> Path:
        """The workspace with `~` expanded. Raises ConfigError if the home folder is unknown."""
        from nanobot.config.paths import expand

        return expand(self.agents.defaults.workspace)

    def active_preset(self) -> ModelPreset:
        """The model settings in use: the chosen preset over `agents.defaults`; only the context window may be None."""
        defaults = self.agents.defaults
        preset = self.model_presets.get(defaults.model_preset or "")
        base = {name: getattr(defaults, name) for name in ModelPreset.model_fields}
        if preset:
            base |= {name: value for name in ModelPreset.model_fields if (value := getattr(preset, name)) is not None}
        return ModelPreset.model_construct(**base)

    def match_provider(
        self, model: str | None = None, environ: Mapping[str, str] | None = None
    ) -> ProviderMatch | None:
        """The provider of the model (by default the active one) and why; None if nothing is configured.

        Uses `os.environ` unless another environment is passed.
        """
        active = self.active_preset()
        return match_provider(
            model or active.model,
            self._custom_section(active.provider) or active.provider,
            self.providers.by_name(),
            os.environ if environ is None else environ,
        )

    def get_provider_name(self, model: str | None = None) -> str | None:
        """The name of the provider of the model."""
        match = self.match_provider(model)
        return match.spec.name if match else None

    def _custom_section(self, name: str) -> str | None:
        """The key under `providers` of a custom endpoint, as written in the file."""
        custom = self.providers.__pydantic_extra__
        return next((known for known in custom if plain_name(known) == plain_name(name)), None)
