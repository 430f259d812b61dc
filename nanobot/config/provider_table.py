"""The table of providers: everything about a provider that does not require loading it, and which one serves a model.

A provider is chosen in this order: an explicit one; the model's prefix; its keywords; a key in the config, gateways
first; a key in the environment. Local servers and the offline provider follow in providers/factory.py.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Literal, Protocol

from nanobot.config.keypath import camel

AUTO = "auto"
DEFAULT_MODEL = "anthropic/claude-opus-4-5"
DEFAULT_CONTEXT_WINDOW = 65536
REPORTS_COST = "openrouter"
"""The provider whose responses include their cost."""

PromptCache = Literal["anthropic", "automatic", "none"]
Reason = Literal["explicit", "prefix", "keyword", "key", "environment"]


def plain_name(name: str) -> str:
    """A provider's name without case, dashes and underscores: `lmStudio`, `lm_studio` and `lm-studio` are equal."""
    return name.replace("-", "").replace("_", "").lower()


@dataclass(frozen=True, slots=True)
class ProviderSpec:
    """One provider.

    `keywords` match the beginning of a word in its model names. `env_keys`: environment variables for its key, the
    first one set counts. `prompt_cache`: "anthropic" needs cache_control markers, "automatic" needs nothing.
    `litellm_prefix` is LiteLLM's name for it. `default_api_base` is only used for direct requests. `is_oauth`: uses an
    account instead of a key, see `nanobot provider login`. `brings_credentials`: LiteLLM finds credentials on the host
    (a profile, a role). `key_page`: the web page where people make a key.
    """

    name: str
    display_name: str
    keywords: tuple[str, ...] = ()
    env_keys: tuple[str, ...] = ()
    default_api_base: str | None = None
    default_model: str | None = None
    key_prefix: str = ""
    is_gateway: bool = False
    is_local: bool = False
    is_oauth: bool = False
    speaks_chat_completions: bool = True
    prompt_cache: PromptCache = "none"
    litellm_prefix: str = "openai"
    needs_key: bool = True
    brings_credentials: bool = False
    key_page: str = ""

    @property
    def config_key(self) -> str:
        """Its camelCase name under `providers` in config.json."""
        return camel(self.name)

    def env_variable(self, environ: Mapping[str, str]) -> str:
        """The variable with its key; empty if none is set."""
        return next((name for name in self.env_keys if environ.get(name)), "")

    def env_key(self, environ: Mapping[str, str]) -> str | None:
        return environ.get(self.env_variable(environ)) or None

    def missing_key(self, what_it_does: str) -> str:
        """What to do about a missing key, in two sentences."""
        variable = f" or {self.env_keys[0]} in the environment" if self.env_keys else ""
        key = f"providers.{self.config_key}.apiKey"
        return f"There is no key for {self.display_name}, which {what_it_does}. Set {key} in the config{variable}."

    def is_direct(self, backend: str) -> bool:
        """Whether it is called without LiteLLM, given the configured `backend`."""
        return self.speaks_chat_completions if backend == "auto" else backend == "direct"


_gateway = partial(ProviderSpec, is_gateway=True)
_account = partial(ProviderSpec, is_oauth=True, needs_key=False)
_local = partial(ProviderSpec, is_local=True, needs_key=False, prompt_cache="automatic")

# fmt: off
# In the order in which keys in the environment are tried.
PROVIDERS: tuple[ProviderSpec, ...] = (
    _gateway("openrouter", "OpenRouter", ("openrouter",), ("OPENROUTER_API_KEY",), "https://openrouter.ai/api/v1",
        DEFAULT_MODEL, key_prefix="sk-or-", prompt_cache="anthropic", litellm_prefix="openrouter",
        key_page="https://openrouter.ai/settings/keys"),
    _gateway("aihubmix", "AiHubMix", ("aihubmix",), ("AIHUBMIX_API_KEY",), "https://aihubmix.com/v1",
        "claude-opus-4-5", key_page="https://aihubmix.com/token"),
    _gateway("siliconflow", "SiliconFlow", ("siliconflow",), ("SILICONFLOW_API_KEY",),
        "https://api.siliconflow.cn/v1", "deepseek-ai/DeepSeek-V3",
        key_page="https://cloud.siliconflow.cn/account/ak"),
    _gateway("volcengine", "VolcEngine Ark", ("volcengine", "doubao"), ("ARK_API_KEY", "VOLCENGINE_API_KEY"),
        "https://ark.cn-beijing.volces.com/api/v3", "doubao-seed-2-1-pro-260915", litellm_prefix="volcengine",
        key_page="https://console.volcengine.com/ark"),
    ProviderSpec("custom", "OpenAI-compatible server (vLLM, llama.cpp, ...)", needs_key=False),
    ProviderSpec("anthropic", "Anthropic", ("anthropic", "claude"), ("ANTHROPIC_API_KEY",),
        "https://api.anthropic.com", "claude-opus-5-5", key_prefix="sk-ant-", speaks_chat_completions=False,
        prompt_cache="anthropic", litellm_prefix="anthropic",
        key_page="https://console.anthropic.com/settings/keys"),
    ProviderSpec("openai", "OpenAI", ("openai", "gpt", "chatgpt", "o1", "o3", "o4"), ("OPENAI_API_KEY",),
        "https://api.openai.com/v1", "gpt-5.6", key_prefix="sk-", prompt_cache="automatic",
        key_page="https://platform.openai.com/api-keys"),
    ProviderSpec("deepseek", "DeepSeek", ("deepseek",), ("DEEPSEEK_API_KEY",), "https://api.deepseek.com",
        "deepseek-v4-flash", key_prefix="sk-", prompt_cache="automatic", litellm_prefix="deepseek",
        key_page="https://platform.deepseek.com/api_keys"),
    ProviderSpec("gemini", "Google Gemini", ("gemini",), ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        "https://generativelanguage.googleapis.com/v1beta/openai", "gemini-flash-latest", key_prefix="AIza",
        prompt_cache="automatic", litellm_prefix="gemini", key_page="https://aistudio.google.com/apikey"),
    ProviderSpec("zhipu", "Zhipu AI", ("zhipu", "glm", "zai"), ("ZHIPU_API_KEY", "ZHIPUAI_API_KEY", "ZAI_API_KEY"),
        "https://open.bigmodel.cn/api/paas/v4", "glm-5.3", prompt_cache="automatic", litellm_prefix="zai",
        key_page="https://open.bigmodel.cn/usercenter/apikeys"),
    ProviderSpec("dashscope", "DashScope (Qwen)", ("dashscope", "qwen", "qwq"), ("DASHSCOPE_API_KEY",),
        "https://dashscope.aliyuncs.com/compatible-mode/v1", "qwen-plus", key_prefix="sk-", prompt_cache="automatic",
        litellm_prefix="dashscope"),
    ProviderSpec("moonshot", "Moonshot AI (Kimi)", ("moonshot", "kimi"), ("MOONSHOT_API_KEY",),
        "https://api.moonshot.ai/v1", "kimi-k3", key_prefix="sk-", prompt_cache="automatic",
        litellm_prefix="moonshot", key_page="https://platform.moonshot.ai/console/api-keys"),
    ProviderSpec("minimax", "MiniMax", ("minimax", "abab"), ("MINIMAX_API_KEY",), "https://api.minimax.io/v1",
        "MiniMax-M3", prompt_cache="automatic", litellm_prefix="minimax"),
    ProviderSpec("mistral", "Mistral AI", ("mistral", "ministral", "magistral", "codestral", "devstral", "pixtral"),
        ("MISTRAL_API_KEY",), "https://api.mistral.ai/v1", "mistral-large-latest", litellm_prefix="mistral",
        key_page="https://console.mistral.ai/api-keys"),
    ProviderSpec("nvidia", "NVIDIA NIM", ("nvidia", "nemotron"), ("NVIDIA_API_KEY", "NVIDIA_NIM_API_KEY"),
        "https://integrate.api.nvidia.com/v1", "meta/llama-3.3-70b-instruct", key_prefix="nvapi-",
        litellm_prefix="nvidia_nim"),
    _gateway("opencode", "OpenCode Zen", (), ("OPENCODE_API_KEY",), "https://opencode.ai/zen/v1",
        "deepseek-v4.1-flash", key_page="https://opencode.ai/auth"),
    _gateway("opencode_zen", "OpenCode Zen (earlier name)", (), (), "https://opencode.ai/zen/v1",
        "deepseek-v4.1-flash", key_page="https://opencode.ai/auth"),
    _gateway("opencode_go", "OpenCode Go", (), ("OPENCODE_API_KEY",), "https://opencode.ai/zen/go/v1",
        "deepseek-v4.1-flash", key_page="https://opencode.ai/auth"),
    _gateway("novita", "Novita AI", ("novita",), ("NOVITA_API_KEY",), "https://api.novita.ai/openai/v1",
        "zai-org/glm-5.3", litellm_prefix="novita"),
    _gateway("modelscope", "ModelScope", ("modelscope",), ("MODELSCOPE_API_KEY",),
        "https://api-inference.modelscope.cn/v1", "Qwen/Qwen3.5-397B-A17B", litellm_prefix="modelscope",
        key_page="https://modelscope.cn/my/tokens"),
    _gateway("together", "Together AI", ("together",), ("TOGETHER_API_KEY", "TOGETHERAI_API_KEY"),
        "https://api.together.ai/v1", "zai-org/GLM-5.3", litellm_prefix="together_ai"),
    _gateway("fireworks", "Fireworks AI", ("fireworks",), ("FIREWORKS_API_KEY",),
        "https://api.fireworks.ai/inference/v1", "accounts/fireworks/models/minimax-m3",
        litellm_prefix="fireworks_ai"),
    _gateway("deepinfra", "DeepInfra", ("deepinfra",), ("DEEPINFRA_API_KEY",), "https://api.deepinfra.com/v1/openai",
        "deepseek-ai/DeepSeek-V4.1-Flash", litellm_prefix="deepinfra"),
    _gateway("nebius", "Nebius Token Factory", ("nebius",), ("NEBIUS_API_KEY",),
        "https://api.tokenfactory.nebius.com/v1", "zai-org/GLM-5.3", litellm_prefix="nebius"),
    _gateway("baseten", "Baseten", ("baseten",), ("BASETEN_API_KEY",), "https://inference.baseten.co/v1",
        "zai-org/GLM-5.3", litellm_prefix="baseten"),
    _gateway("skywork", "Skywork (APIFree)", ("skywork",), ("SKYWORK_API_KEY", "APIFREE_API_KEY"),
        "https://api.apifree.ai/agent/v1", "skywork-ai/skyclaw-v1"),
    _gateway("byteplus", "BytePlus ModelArk", ("byteplus",), ("BYTEPLUS_API_KEY",),
        "https://ark.ap-southeast.bytepluses.com/api/v3", "seed-2-0-pro-260328"),
    _gateway("volcengine_coding_plan", "VolcEngine Ark coding plan", (), ("ARK_CODING_PLAN_API_KEY",),
        "https://ark.cn-beijing.volces.com/api/coding/v3", "ark-code-latest"),
    _gateway("byteplus_coding_plan", "BytePlus coding plan", (), ("BYTEPLUS_CODING_PLAN_API_KEY",),
        "https://ark.ap-southeast.bytepluses.com/api/coding/v3", "dola-seed-2.0-pro"),
    ProviderSpec("kimi_coding", "Kimi coding plan", (), ("KIMI_API_KEY",), "https://api.kimi.com/coding/v1",
        "kimi-for-coding", key_page="https://www.kimi.com/code"),
    ProviderSpec("xai", "xAI (Grok)", ("xai", "grok"), ("XAI_API_KEY",), "https://api.x.ai/v1", "grok-4.7",
        prompt_cache="automatic", litellm_prefix="xai", key_page="https://console.x.ai"),
    ProviderSpec("stepfun", "StepFun", ("stepfun", "step"), ("STEPFUN_API_KEY",), "https://api.stepfun.ai/v1",
        "step-3.7-flash", prompt_cache="automatic", key_page="https://platform.stepfun.ai/interface-key"),
    ProviderSpec("xiaomi_mimo", "Xiaomi MiMo", ("xiaomi", "mimo"), ("XIAOMI_MIMO_API_KEY", "XIAOMI_API_KEY"),
        "https://api.xiaomimimo.com/v1", "mimo-v2.6-pro", prompt_cache="automatic", litellm_prefix="xiaomi_mimo"),
    ProviderSpec("longcat", "LongCat", ("longcat",), ("LONGCAT_API_KEY",), "https://api.longcat.chat/openai/v1",
        "LongCat-2.0", key_page="https://longcat.chat/platform"),
    ProviderSpec("qianfan", "Baidu Qianfan", ("qianfan", "ernie"), ("QIANFAN_API_KEY",),
        "https://qianfan.baidubce.com/v2", "ernie-5.0",
        key_page="https://console.bce.baidu.com/qianfan/ais/console/apiKey"),
    ProviderSpec("ant_ling", "Ant Ling", ("antling",), ("ANT_LING_API_KEY",), "https://api.ant-ling.com/v1",
        "Ling-2.6-1T"),
    ProviderSpec("cerebras", "Cerebras", ("cerebras",), ("CEREBRAS_API_KEY",), "https://api.cerebras.ai/v1",
        "qwen-3.8-27b", litellm_prefix="cerebras"),
    ProviderSpec("sambanova", "SambaNova", ("sambanova",), ("SAMBANOVA_API_KEY",), "https://api.sambanova.ai/v1",
        "MiniMax-M2.7", litellm_prefix="sambanova"),
    # After providers whose key implies a chat model: these keys often serve transcription, downloads or searches
    # only.
    ProviderSpec("groq", "Groq", ("groq",), ("GROQ_API_KEY",), "https://api.groq.com/openai/v1",
        "openai/gpt-oss-120b", key_prefix="gsk_", prompt_cache="automatic", litellm_prefix="groq",
        key_page="https://console.groq.com/keys"),
    _gateway("huggingface", "Hugging Face", ("huggingface",), ("HUGGINGFACE_API_KEY", "HF_TOKEN"),
        "https://router.huggingface.co/v1", "openai/gpt-oss-120b", key_prefix="hf_", litellm_prefix="huggingface",
        key_page="https://huggingface.co/settings/tokens"),
    ProviderSpec("perplexity", "Perplexity", ("perplexity", "sonar"), ("PERPLEXITY_API_KEY", "PERPLEXITYAI_API_KEY"),
        "https://api.perplexity.ai", "sonar-pro", litellm_prefix="perplexity"),
    # Azure and Bedrock have no common endpoint or model: they are chosen in the config.
    ProviderSpec("azure_openai", "Azure OpenAI", ("azure",), ("AZURE_OPENAI_API_KEY", "AZURE_API_KEY"),
        speaks_chat_completions=False, prompt_cache="automatic", litellm_prefix="azure"),
    ProviderSpec("bedrock", "Amazon Bedrock", ("bedrock",), ("AWS_BEARER_TOKEN_BEDROCK",),
        speaks_chat_completions=False, prompt_cache="anthropic", litellm_prefix="bedrock", needs_key=False,
        brings_credentials=True),
    _account("openai_codex", "OpenAI Codex (ChatGPT account)",
        default_api_base="https://chatgpt.com/backend-api/codex", default_model="gpt-5.1-codex",
        speaks_chat_completions=False, prompt_cache="automatic"),
    _account("github_copilot", "GitHub Copilot", default_api_base="https://api.githubcopilot.com",
        default_model="gpt-4.1", litellm_prefix="github_copilot"),
    _local("ollama", "Ollama", default_api_base="http://localhost:11434/v1"),
    _local("lm_studio", "LM Studio", default_api_base="http://localhost:1234/v1", litellm_prefix="lm_studio"),
    _local("llama_cpp", "llama.cpp", default_api_base="http://localhost:8080/v1"),
    _local("vllm", "vLLM", default_api_base="http://localhost:8000/v1", litellm_prefix="hosted_vllm"),
    _local("atomic_chat", "Atomic Chat", default_api_base="http://localhost:1337/v1"),
    _local("ovms", "OpenVINO Model Server", default_api_base="http://localhost:8000/v3", prompt_cache="none"),
)
# fmt: on

_BY_NAME = {plain_name(spec.name): spec for spec in PROVIDERS}

# Context windows in tokens, the most specific name first; the smallest of each family.
CONTEXT_WINDOWS = {
    "claude": 200_000, "gpt-5": 400_000, "gpt-4.1": 1_047_576, "gpt-4o": 128_000, "gpt-oss": 131_072, "o1": 200_000,
    "o3": 200_000, "o4": 200_000, "gemini": 1_048_576, "deepseek": 128_000, "kimi-k3": 1_048_576,
    "kimi-k2.5": 262_144, "kimi-k2": 131_072, "glm-5": 200_000, "glm-4.6": 200_000, "glm-4.5": 131_072,
    "qwen-plus": 131_072, "qwen-turbo": 131_072, "qwen3-coder-plus": 262_144, "minimax-m3": 1_000_000,
    "minimax-m2": 196_608, "llama-3.3": 131_072, "mistral-large": 131_072, "doubao-seed": 262_144,
}  # fmt: skip


def context_window(model: str) -> int:
    """The context window in tokens, by model family; a conservative default for unknown families."""
    name = model.rsplit("/", 1)[-1].lower()
    return next(
        (tokens for family, tokens in CONTEXT_WINDOWS.items() if name.startswith(family)), DEFAULT_CONTEXT_WINDOW
    )


def find_by_name(name: str) -> ProviderSpec | None:
    """The provider of that name, in any spelling."""
    return _BY_NAME.get(plain_name(name))


def spec_for(name: str) -> ProviderSpec:
    """The provider of that name; an unknown name means a custom chat completions endpoint."""
    return find_by_name(name) or ProviderSpec(name, name, needs_key=False)


def find_by_model(model: str) -> ProviderSpec | None:
    """The provider that a model name suggests, by prefix or keywords, regardless of keys."""
    return next(chain(_by_prefix(model), _by_keywords(model)), None)


def find_by_key(key: str) -> ProviderSpec | None:
    """The provider whose keys start like this one, if that is unambiguous."""
    matches = [spec for spec in PROVIDERS if len(spec.key_prefix) > len("sk-") and key.startswith(spec.key_prefix)]
    return matches[0] if len(matches) == 1 else None


def wire_model(spec: ProviderSpec, model: str) -> str:
    """The model name to send: one leading `<name>/` of this provider is removed."""
    prefix, slash, rest = model.partition("/")
    return rest if slash and rest and plain_name(prefix) == plain_name(spec.name) else model


def _by_prefix(model: str) -> Iterator[ProviderSpec]:
    """The provider named before the first slash, if any."""
    prefix, slash, _ = model.partition("/")
    spec = find_by_name(prefix) if slash else None
    return iter([spec] if spec else [])


def _by_keywords(model: str) -> Iterator[ProviderSpec]:
    """The providers whose keywords occur in the model name."""
    words = re.split(r"[^a-z0-9]+", model.lower())
    return (spec for spec in PROVIDERS if any(word.startswith(key) for word in words for key in spec.keywords))


class ProviderSection(Protocol):
    """What the choice depends on of `providers.<name>`."""

    api_key: str
    api_base: str | None


@dataclass(frozen=True, slots=True)
class ProviderMatch:
    """The chosen provider, the model in the owner's notation, and the reason."""

    spec: ProviderSpec
    model: str
    reason: Reason
    explanation: str

    @property
    def wire_model(self) -> str:
        return wire_model(self.spec, self.model)


def match_provider(
    model: str, provider: str, sections: Mapping[str, ProviderSection], environ: Mapping[str, str]
) -> ProviderMatch | None:
    """The provider that serves the model; None if neither config nor environment names one. Pure.

    `sections` are the providers of the config by name. The default model is not a choice: a provider that was found by
    its key alone, and is not a gateway, uses its own default model.
    """

    def is_configured(spec: ProviderSpec) -> bool:
        section = sections.get(spec.name)
        if section is None or spec.is_oauth:
            return False
        return bool(section.api_key) or (not spec.needs_key and bool(section.api_base))

    if provider and provider != AUTO:
        return ProviderMatch(spec_for(provider), model, "explicit", f"agents.defaults.provider is {provider}")
    prefix, slash, _ = model.partition("/")
    named = next(_by_prefix(model), spec_for(prefix) if slash and prefix in sections else None)
    if named and (named.is_local or named.is_oauth or named.brings_credentials or is_configured(named)):
        return ProviderMatch(named, model, "prefix", f"the model begins with {prefix}/")
    for spec in filter(is_configured, _by_keywords(model)):
        return ProviderMatch(spec, model, "keyword", f"the model's name is one of {spec.display_name}")
    for spec in filter(is_configured, sorted(PROVIDERS, key=lambda spec: not spec.is_gateway)):
        chosen_model = (spec.default_model or model) if model == DEFAULT_MODEL else model
        return ProviderMatch(spec, chosen_model, "key", f"providers.{spec.config_key} is set up")
    candidates = [*_by_prefix(model), *_by_keywords(model)]
    for spec in (*candidates, *PROVIDERS):
        if spec.env_key(environ) and spec.default_model:
            keeps_model = spec in candidates or (spec.is_gateway and model != DEFAULT_MODEL)
            explanation = f"{spec.env_variable(environ)} is in the environment"
            return ProviderMatch(spec, model if keeps_model else spec.default_model, "environment", explanation)
    return None
