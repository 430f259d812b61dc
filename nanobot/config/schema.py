"""What may stand in config.json, and what holds where it does not: one model a section, one line a key.

`Config()` is what holds without a file; NANOBOT_ variables fill what its arguments leave open. It reads no file:
the loader does. Channels have a file of their own.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, field_validator, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from nanobot.config.channels import ChannelsConfig
from nanobot.config.loaded_from import LoadedFrom
from nanobot.config.provider_match import ProviderMatch, match_provider
from nanobot.config.provider_table import AUTO, DEFAULT_MODEL, PROVIDERS, find_by_name, plain_name
from nanobot.config.section import (
    AnyMap,
    Count,
    Headers,
    Money,
    NullableUrl,
    Number,
    Port,
    Seconds,
    Section,
    StrMap,
    Text,
    Whole,
    empty_is_null,
)


def _empty_is_auto(value: object) -> object:
    return AUTO if value == "" else value


def _http_transport(value: object) -> object:
    """Other clients' names for the same transport; a config is often copied from one."""
    return "streamableHttp" if value in ("http", "streamable-http", "streamable_http") else empty_is_null(value)


Effort = Annotated[
    Literal["none", "minimal", "low", "medium", "high", "xhigh", "max", "adaptive"] | None,
    BeforeValidator(empty_is_null),
]
Temperature = Annotated[float, Number, Field(ge=0, le=2)]


class ModelPreset(Section):
    """A model under a name of one's own; what is null is as in `agents.defaults`."""

    model: str = Field(min_length=1)
    provider: Text = AUTO
    max_tokens: Count | None = None
    context_window_tokens: Count | None = None
    temperature: Temperature | None = None
    reasoning_effort: Effort = None


class DreamConfig(Section):
    """When and how far the memory is tidied from what is new. Without something new no model is asked."""

    enabled: bool = True  # the gateway does it by itself; /dream does it in any case
    cron: str | None = None  # when, by the zone of the agent; before intervalH
    interval_h: Annotated[float, Number, Field(gt=0, le=24 * 366)] | None = None  # both null: at four in the morning
    model_override: str | None = None  # a model or a preset; null: backgroundModel, else the usual one
    max_batch_size: Count = 20  # entries of the log in one call
    max_iterations: Count = 3  # calls of a model in one run
    max_tokens: Count = 60_000  # in one run, both ways
    annotate_line_ages: bool = True  # tell the model how old each fact is

    @field_validator("cron")
    @classmethod
    def _is_a_time(cls, value: str | None) -> str | None:
        if not value or not value.strip():
            return None
        from croniter import croniter  # only a config that sets it pays

        if not croniter.is_valid(value):
            raise ValueError("must be a cron expression such as `0 4 * * *`")
        return value


class AgentDefaults(Section):
    """How the agent thinks and works."""

    workspace: str = "~/.nanobot/workspace"
    model: str = Field(default=DEFAULT_MODEL, min_length=1)
    provider: Text = AUTO  # a name of `providers`, or auto
    model_preset: str | None = None  # a name of `modelPresets`; goes before model and provider
    fallback_models: list[str | ModelPreset] = Field(default_factory=list)  # names of presets, or models
    background_model: str | None = None  # for consolidation, heartbeat and Dream
    max_tokens: Count = 8192
    context_window_tokens: Count | None = None  # null: from the model table, else 65536
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
    dream: DreamConfig = Field(default_factory=DreamConfig)
    idle_compact_after_minutes: Whole = 0  # 0: never
    session_max_mb: Whole = 256  # a larger session goes to the archive, and a fresh one goes on; 0: never
    session_max_days: Whole = 0  # the same by age
    steering: Literal["join", "queue"] = "join"
    review: bool = False
    goal_steps: Count = 200  # model calls that a goal may make, its subagents' too
    goal_usd: float = Field(default=2.0, gt=0)  # dollars that a goal may use
    unified_session: bool = False
    disabled_skills: list[str] = Field(default_factory=list)
    skills_prompt_chars: Count = 8000  # how much of a prompt the summaries of skills may take
    timezone: str | None = None  # null: the host's
    bot_name: Text = "nanobot"
    bot_icon: Text = "🐈"

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
        from zoneinfo import ZoneInfo, available_timezones  # reads files; only a config that names a zone pays

        try:
            ZoneInfo(value)
        except (ValueError, OSError) as error:
            raise ValueError("must be a zone such as Europe/Berlin") from error
        except KeyError as error:  # not found: a host without zones knows none, and that is not the config's fault
            if available_timezones():
                raise ValueError("must be a zone such as Europe/Berlin") from error
        return value


class AgentsConfig(Section):
    """The agent."""

    defaults: AgentDefaults = Field(default_factory=AgentDefaults)


class ProviderConfig(Section):
    """How to reach one provider. An empty key means: look in the environment."""

    api_key: Text = ""
    api_base: NullableUrl = None  # null: the provider's own address
    extra_headers: Headers | None = None
    extra_body: AnyMap | None = None
    proxy: str | None = None
    backend: Literal["auto", "direct", "litellm"] = "auto"  # direct: our own HTTP; auto: direct where it can be
    connect_timeout_s: Seconds | None = None
    first_token_timeout_s: Seconds | None = None
    idle_timeout_s: Seconds | None = None
    total_timeout_s: Seconds | None = None
    region: str | None = None  # bedrock
    profile: str | None = None  # bedrock


class ProvidersConfig(Section):
    """Ways to reach models. Any other name is an endpoint of one's own that speaks OpenAI chat completions."""

    __pydantic_extra__: dict[str, ProviderConfig] = Field(init=False)

    custom: ProviderConfig = Field(default_factory=ProviderConfig)
    anthropic: ProviderConfig = Field(default_factory=ProviderConfig)
    openai: ProviderConfig = Field(default_factory=ProviderConfig)
    openrouter: ProviderConfig = Field(default_factory=ProviderConfig)
    deepseek: ProviderConfig = Field(default_factory=ProviderConfig)
    groq: ProviderConfig = Field(default_factory=ProviderConfig)
    gemini: ProviderConfig = Field(default_factory=ProviderConfig)
    moonshot: ProviderConfig = Field(default_factory=ProviderConfig)
    zhipu: ProviderConfig = Field(default_factory=ProviderConfig)
    dashscope: ProviderConfig = Field(default_factory=ProviderConfig)
    minimax: ProviderConfig = Field(default_factory=ProviderConfig)
    mistral: ProviderConfig = Field(default_factory=ProviderConfig)
    huggingface: ProviderConfig = Field(default_factory=ProviderConfig)
    aihubmix: ProviderConfig = Field(default_factory=ProviderConfig)
    siliconflow: ProviderConfig = Field(default_factory=ProviderConfig)
    volcengine: ProviderConfig = Field(default_factory=ProviderConfig)
    nvidia: ProviderConfig = Field(default_factory=ProviderConfig)
    vllm: ProviderConfig = Field(default_factory=ProviderConfig)
    ollama: ProviderConfig = Field(default_factory=ProviderConfig)
    lm_studio: ProviderConfig = Field(default_factory=ProviderConfig)
    llama_cpp: ProviderConfig = Field(default_factory=ProviderConfig)
    azure_openai: ProviderConfig = Field(default_factory=ProviderConfig)
    bedrock: ProviderConfig = Field(default_factory=ProviderConfig)
    openai_codex: ProviderConfig = Field(default_factory=ProviderConfig)
    github_copilot: ProviderConfig = Field(default_factory=ProviderConfig)

    def by_name(self) -> dict[str, ProviderConfig]:
        """Every section under its name, those of one's own too."""
        return {spec.name: getattr(self, spec.name) for spec in PROVIDERS} | self.__pydantic_extra__


class HeartbeatConfig(Section):
    """The regular look at HEARTBEAT.md: it begins with the first task there, unless `enabled` is set to false."""

    enabled: bool = False
    interval_s: Count = 1800
    channel: Text = ""
    """With `to`, the chat that hears of it; where they are empty, the one its owner wrote in last."""
    to: Text = ""


class GatewayConfig(Section):
    """Where the gateway answers health checks."""

    host: str = "127.0.0.1"
    port: Port = 18790
    heartbeat: HeartbeatConfig = Field(default_factory=HeartbeatConfig)


class ApiConfig(Section):
    """The OpenAI-compatible HTTP face."""

    host: str = "127.0.0.1"
    port: Port = 8900
    token: Text = ""
    timeout: Seconds = 120


class WebSearchConfig(Section):
    """Web search; `auto` takes the first that has a key, else DuckDuckGo."""

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
    """The web tools; off as a whole with `enable` false."""

    enable: bool = True
    proxy: str | None = None
    search: WebSearchConfig = Field(default_factory=WebSearchConfig)
    fetch: WebFetchConfig = Field(default_factory=WebFetchConfig)


class ExecConfig(Section):
    """The exec tool; off with `enable` false."""

    enable: bool = True
    timeout: Seconds = 60
    path_append: Text = ""
    sandbox: Annotated[Literal["auto", "bwrap", "none"], BeforeValidator(_empty_is_auto)] = "auto"
    network: bool = True
    allowed_env_keys: list[str] = Field(default_factory=list)
    deny_patterns: list[str] = Field(default_factory=list)
    allow_patterns: list[str] = Field(default_factory=list)

    @field_validator("deny_patterns", "allow_patterns")
    @classmethod
    def _are_patterns(cls, value: list[str]) -> list[str]:
        import re

        for pattern in value:
            try:
                re.compile(pattern)
            except (re.error, OverflowError, RecursionError) as error:
                raise ValueError(f"must hold regular expressions, and {pattern[:60]!r} is none: {error}") from error
        return value


class McpServerConfig(Section):
    """An MCP server: a command to start, or a URL to reach."""

    type: Annotated[Literal["stdio", "sse", "streamableHttp"] | None, BeforeValidator(_http_transport)] = None
    command: Text = ""
    args: list[str] = Field(default_factory=list)
    env: StrMap | None = Field(default_factory=dict)
    url: Text = ""
    headers: Headers | None = Field(default_factory=dict)
    tool_timeout: Seconds = 30
    enabled_tools: list[str] = Field(default_factory=lambda: ["*"])


class ToolsConfig(Section):
    """What the agent may do."""

    restrict_to_workspace: bool = False
    custom_tools: bool = False
    allowed_paths: list[str] = Field(default_factory=list)
    protected_paths: list[str] = Field(default_factory=list)
    approval: Literal["ask", "deny", "off"] = "ask"
    ssrf_whitelist: list[str] = Field(default_factory=list)  # CIDR
    web: WebToolsConfig = Field(default_factory=WebToolsConfig)
    exec: ExecConfig = Field(default_factory=ExecConfig)
    mcp_servers: dict[str, McpServerConfig] = Field(default_factory=dict)

    @field_validator("ssrf_whitelist")
    @classmethod
    def _are_networks(cls, value: list[str]) -> list[str]:
        from ipaddress import ip_network

        for network in value:
            try:
                ip_network(network, strict=False)
            except ValueError as error:
                raise ValueError(f"must hold networks such as 192.168.1.0/24, and {network[:60]!r} is none") from error
        return value


class HookCommandConfig(Section):
    """A hook that is a program: what it is told of, and whether what it fails to judge is denied."""

    command: list[str] = Field(min_length=1)
    on: list[Literal["message", "request", "answer", "beforeTool", "afterTool", "turnEnd"]] = Field(min_length=1)
    guard: bool = False
    env: StrMap = Field(default_factory=dict)


class PluginsConfig(Section):
    """Installed packages that bring tools and hooks. Any other key is the settings of the package of that name."""

    enabled: list[str] = Field(default_factory=list)  # names of packages; "*": whatever is installed
    disabled: list[str] = Field(default_factory=list)  # of these nothing is used, not even channels and providers
    hook_timeout_s: Seconds = 5
    commands: dict[str, HookCommandConfig] = Field(default_factory=dict)  # programs as hooks, behind those of packages


class LimitsConfig(Section):
    """What may be spent; null means no limit."""

    daily_usd: Money | None = None
    monthly_usd: Money | None = None
    turn_tokens: Count | None = None


class _Layers(PydanticBaseSettingsSource):
    """What was passed in, its keys in camelCase, and under it the NANOBOT_ variables."""

    def __init__(self, settings_cls: type[BaseSettings], passed: dict[str, Any]) -> None:
        super().__init__(settings_cls)
        self._passed = passed

    def get_field_value(self, field: object, field_name: str) -> tuple[Any, str, bool]:
        """Not asked: `__call__` answers for all fields at once."""
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        """One tree."""
        from nanobot.config import environment, keys

        tree = keys.in_camel_case(self._passed, self.settings_cls)
        filled = environment.fill(tree, self.settings_cls, os.environ).tree
        return keys.with_all_sections(filled, self.settings_cls)


class Config(BaseSettings, Section):
    """The whole of config.json."""

    model_config = SettingsConfigDict(env_prefix="NANOBOT_", env_nested_delimiter="__")

    agents: AgentsConfig = Field(default_factory=AgentsConfig)
    model_presets: dict[str, ModelPreset] = Field(default_factory=dict)
    channels: ChannelsConfig = Field(default_factory=ChannelsConfig)
    providers: ProvidersConfig = Field(default_factory=ProvidersConfig)
    gateway: GatewayConfig = Field(default_factory=GatewayConfig)
    api: ApiConfig = Field(default_factory=ApiConfig)
    tools: ToolsConfig = Field(default_factory=ToolsConfig)
    limits: LimitsConfig = Field(default_factory=LimitsConfig)
    plugins: PluginsConfig = Field(default_factory=PluginsConfig)

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
        """What is passed in wins over the environment; nothing else is read."""
        del env_settings, dotenv_settings, file_secret_settings  # their environment would win over the file
        passed = init_settings.init_kwargs if isinstance(init_settings, InitSettingsSource) else {}
        return (_Layers(settings_cls, passed),)

    @model_validator(mode="after")
    def _names_lead_somewhere(self) -> "Config":
        """A preset or a provider that is named must be there."""
        defaults = self.agents.defaults
        for key, name in (("modelPreset", defaults.model_preset or None), *_named(defaults.fallback_models)):
            if name is not None and name not in self.model_presets:
                raise unknown_name(f"agents.defaults.{key}", name, self.model_presets, "modelPresets")
        chosen = [("agents.defaults.provider", defaults.provider)]
        chosen += [(f"modelPresets.{name}.provider", preset.provider) for name, preset in self.model_presets.items()]
        chosen += [
            (f"agents.defaults.fallbackModels[{index}].provider", preset.provider)
            for index, preset in enumerate(defaults.fallback_models)
            if isinstance(preset, ModelPreset)
        ]
        for key, name in chosen:
            if name != AUTO and not find_by_name(name) and not self._own_section(name):
                names = [spec.config_key for spec in PROVIDERS] + list(self.providers.__pydantic_extra__)
                raise unknown_name(key, name, names, "providers")
        return self

    @property
    def loaded_from(self) -> LoadedFrom:
        """Where it was loaded from."""
        return self._loaded_from

    def came_from(self, place: LoadedFrom) -> "Config":
        """Remember where it was loaded from: the loader's word."""
        self._loaded_from = place
        return self

    @property
    def workspace_path(self) -> Path:
        """The workspace, its `~` written out. Raises ConfigError where the host knows no such home."""
        from nanobot.config.paths import expand

        return expand(self.agents.defaults.workspace)

    def active_preset(self) -> ModelPreset:
        """Model and settings in force: the chosen preset over `agents.defaults`, nothing left open but the window."""
        defaults = self.agents.defaults
        preset = self.model_presets.get(defaults.model_preset or "")
        base = {name: getattr(defaults, name) for name in ModelPreset.model_fields}
        if preset:
            base |= {name: value for name in ModelPreset.model_fields if (value := getattr(preset, name)) is not None}
        return ModelPreset.model_construct(**base)

    def match_provider(
        self, model: str | None = None, environ: Mapping[str, str] | None = None
    ) -> ProviderMatch | None:
        """Which provider serves the model (the active one if none is given) and why; None where nothing is set up.

        The environment is `os.environ` unless another is passed.
        """
        active = self.active_preset()
        return match_provider(
            model or active.model,
            self._own_section(active.provider) or active.provider,
            self.providers.by_name(),
            os.environ if environ is None else environ,
        )

    def get_provider_name(self, model: str | None = None) -> str | None:
        """The name of the provider that serves the model."""
        match = self.match_provider(model)
        return match.spec.name if match else None

    def get_provider(self, model: str | None = None) -> ProviderConfig | None:
        """The section of the provider that serves the model."""
        name = self.get_provider_name(model)
        return self.providers.by_name().get(name, ProviderConfig()) if name else None

    def get_api_key(self, model: str | None = None) -> str | None:
        """The key for the model: the config's, else the one in `os.environ`."""
        match = self.match_provider(model)
        section = self.get_provider(model)
        if match is None or section is None:
            return None
        return section.api_key or match.spec.key_in(os.environ)

    def get_api_base(self, model: str | None = None) -> str | None:
        """The address for the model: the config's, else the provider's own."""
        match = self.match_provider(model)
        section = self.get_provider(model)
        if match is None or section is None:
            return None
        return section.api_base or match.spec.default_api_base

    def _own_section(self, name: str) -> str | None:
        """The name under `providers` of an endpoint of one's own, in the spelling of the file."""
        own = self.providers.__pydantic_extra__
        return next((known for known in own if plain_name(known) == plain_name(name)), None)


def unknown_name(key: str, name: str, known: Any, place: str) -> ValueError:
    """A name that leads nowhere, as a problem that names its key."""
    from nanobot.config.keys import nearest

    guess = nearest(name, list(known))
    hint = f'; did you mean "{guess}"?' if guess else f"; it must be one of `{place}`"
    error = ValueError(f'"{name}" is not known{hint}')
    error.add_note(key)
    return error


def _named(models: list[str | ModelPreset]) -> list[tuple[str, str]]:
    return [(f"fallbackModels[{index}]", name) for index, name in enumerate(models) if isinstance(name, str)]
