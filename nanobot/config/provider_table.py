"""The table of providers: everything about a provider that does not require loading it. `provider_match` chooses."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from nanobot.config.spelling import camel

AUTO = "auto"
DEFAULT_MODEL = "anthropic/claude-opus-4-5"
DEFAULT_CONTEXT_WINDOW = 65536

PromptCache = Literal["anthropic", "automatic", "none"]


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
    key_prefix: str = ""
    env_keys: tuple[str, ...] = ()
    default_api_base: str | None = None
    default_model: str | None = None
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
        """Its key in the environment, if set."""
        return environ.get(self.env_variable(environ)) or None

    def is_direct(self, backend: str) -> bool:
        """Whether it is called without LiteLLM, given the configured `backend`."""
        return self.speaks_chat_completions if backend == "auto" else backend == "direct"


# In the order in which keys in the environment are tried.
PROVIDERS: tuple[ProviderSpec, ...] = (
    ProviderSpec(
        "openrouter",
        "OpenRouter",
        ("openrouter",),
        "sk-or-",
        ("OPENROUTER_API_KEY",),
        "https://openrouter.ai/api/v1",
        DEFAULT_MODEL,
        is_gateway=True,
        prompt_cache="anthropic",
        litellm_prefix="openrouter",
        key_page="https://openrouter.ai/settings/keys",
    ),
    ProviderSpec(
        "aihubmix",
        "AiHubMix",
        ("aihubmix",),
        "",
        ("AIHUBMIX_API_KEY",),
        "https://aihubmix.com/v1",
        "claude-opus-4-5",
        is_gateway=True,
        key_page="https://aihubmix.com/token",
    ),
    ProviderSpec(
        "siliconflow",
        "SiliconFlow",
        ("siliconflow",),
        "",
        ("SILICONFLOW_API_KEY",),
        "https://api.siliconflow.cn/v1",
        "deepseek-ai/DeepSeek-V3",
        is_gateway=True,
        key_page="https://cloud.siliconflow.cn/account/ak",
    ),
    ProviderSpec(
        "volcengine",
        "VolcEngine Ark",
        ("volcengine", "doubao"),
        "",
        ("ARK_API_KEY", "VOLCENGINE_API_KEY"),
        "https://ark.cn-beijing.volces.com/api/v3",
        "doubao-seed-2-1-pro-260915",
        is_gateway=True,
        litellm_prefix="volcengine",
        key_page="https://console.volcengine.com/ark",
    ),
    ProviderSpec("custom", "OpenAI-compatible server (vLLM, llama.cpp, ...)", needs_key=False),
    ProviderSpec(
        "anthropic",
        "Anthropic",
        ("anthropic", "claude"),
        "sk-ant-",
        ("ANTHROPIC_API_KEY",),
        "https://api.anthropic.com",
        "claude-opus-5-5",
        speaks_chat_completions=False,
        prompt_cache="anthropic",
        litellm_prefix="anthropic",
        key_page="https://console.anthropic.com/settings/keys",
    ),
    ProviderSpec(
        "openai",
        "OpenAI",
        ("openai", "gpt", "chatgpt", "o1", "o3", "o4"),
        "sk-",
        ("OPENAI_API_KEY",),
        "https://api.openai.com/v1",
        "gpt-5.6",
        prompt_cache="automatic",
        key_page="https://platform.openai.com/api-keys",
    ),
    ProviderSpec(
        "deepseek",
        "DeepSeek",
        ("deepseek",),
        "sk-",
        ("DEEPSEEK_API_KEY",),
        "https://api.deepseek.com",
        "deepseek-v4-flash",
        prompt_cache="automatic",
        litellm_prefix="deepseek",
        key_page="https://platform.deepseek.com/api_keys",
    ),
    ProviderSpec(
        "gemini",
        "Google Gemini",
        ("gemini",),
        "AIza",
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "gemini-flash-latest",
        prompt_cache="automatic",
        litellm_prefix="gemini",
        key_page="https://aistudio.google.com/apikey",
    ),
    ProviderSpec(
        "zhipu",
        "Zhipu AI",
        ("zhipu", "glm", "zai"),
        "",
        ("ZHIPU_API_KEY", "ZHIPUAI_API_KEY", "ZAI_API_KEY"),
        "https://open.bigmodel.cn/api/paas/v4",
        "glm-5.3",
        prompt_cache="automatic",
        litellm_prefix="zai",
        key_page="https://open.bigmodel.cn/usercenter/apikeys",
    ),
    ProviderSpec(
        "dashscope",
        "DashScope (Qwen)",
        ("dashscope", "qwen", "qwq"),
        "sk-",
        ("DASHSCOPE_API_KEY",),
        "https://dashscope.aliyuncs.com/compatible-mode/v1",
        "qwen-plus",
        prompt_cache="automatic",
        litellm_prefix="dashscope",
    ),
    ProviderSpec(
        "moonshot",
        "Moonshot AI (Kimi)",
        ("moonshot", "kimi"),
        "sk-",
        ("MOONSHOT_API_KEY",),
        "https://api.moonshot.ai/v1",
        "kimi-k3",
        prompt_cache="automatic",
        litellm_prefix="moonshot",
        key_page="https://platform.moonshot.ai/console/api-keys",
    ),
    ProviderSpec(
        "minimax",
        "MiniMax",
        ("minimax", "abab"),
        "",
        ("MINIMAX_API_KEY",),
        "https://api.minimax.io/v1",
        "MiniMax-M3",
        prompt_cache="automatic",
        litellm_prefix="minimax",
    ),
    ProviderSpec(
        "mistral",
        "Mistral AI",
        ("mistral", "ministral", "magistral", "codestral", "devstral", "pixtral"),
        "",
        ("MISTRAL_API_KEY",),
        "https://api.mistral.ai/v1",
        "mistral-large-latest",
        litellm_prefix="mistral",
        key_page="https://console.mistral.ai/api-keys",
    ),
    ProviderSpec(
        "nvidia",
        "NVIDIA NIM",
        ("nvidia", "nemotron"),
        "nvapi-",
        ("NVIDIA_API_KEY", "NVIDIA_NIM_API_KEY"),
        "https://integrate.api.nvidia.com/v1",
        "meta/llama-3.3-70b-instruct",
        litellm_prefix="nvidia_nim",
    ),
    # After providers whose key implies a chat model: these keys often serve transcription or downloads only.
    ProviderSpec(
        "groq",
        "Groq",
        ("groq",),
        "gsk_",
        ("GROQ_API_KEY",),
        "https://api.groq.com/openai/v1",
        "openai/gpt-oss-120b",
        prompt_cache="automatic",
        litellm_prefix="groq",
        key_page="https://console.groq.com/keys",
    ),
    ProviderSpec(
        "huggingface",
        "Hugging Face",
        ("huggingface",),
        "hf_",
        ("HUGGINGFACE_API_KEY", "HF_TOKEN"),
        "https://router.huggingface.co/v1",
        "openai/gpt-oss-120b",
        is_gateway=True,
        litellm_prefix="huggingface",
        key_page="https://huggingface.co/settings/tokens",
    ),
    # Azure and Bedrock have no common endpoint or model: they are chosen in the config.
    ProviderSpec(
        "azure_openai",
        "Azure OpenAI",
        ("azure",),
        "",
        ("AZURE_OPENAI_API_KEY", "AZURE_API_KEY"),
        speaks_chat_completions=False,
        prompt_cache="automatic",
        litellm_prefix="azure",
    ),
    ProviderSpec(
        "bedrock",
        "Amazon Bedrock",
        ("bedrock",),
        "",
        ("AWS_BEARER_TOKEN_BEDROCK",),
        speaks_chat_completions=False,
        prompt_cache="anthropic",
        litellm_prefix="bedrock",
        needs_key=False,
        brings_credentials=True,
    ),
    ProviderSpec(
        "openai_codex",
        "OpenAI Codex (ChatGPT account)",
        default_api_base="https://chatgpt.com/backend-api/codex",
        default_model="gpt-5.1-codex",
        is_oauth=True,
        needs_key=False,
        speaks_chat_completions=False,
        prompt_cache="automatic",
    ),
    ProviderSpec(
        "github_copilot",
        "GitHub Copilot",
        default_api_base="https://api.githubcopilot.com",
        default_model="gpt-4.1",
        is_oauth=True,
        needs_key=False,
        litellm_prefix="github_copilot",
    ),
    ProviderSpec(
        "ollama",
        "Ollama",
        default_api_base="http://localhost:11434/v1",
        is_local=True,
        needs_key=False,
        prompt_cache="automatic",
    ),
    ProviderSpec(
        "lm_studio",
        "LM Studio",
        default_api_base="http://localhost:1234/v1",
        is_local=True,
        needs_key=False,
        prompt_cache="automatic",
        litellm_prefix="lm_studio",
    ),
    ProviderSpec(
        "llama_cpp",
        "llama.cpp",
        default_api_base="http://localhost:8080/v1",
        is_local=True,
        needs_key=False,
        prompt_cache="automatic",
    ),
    ProviderSpec(
        "vllm",
        "vLLM",
        default_api_base="http://localhost:8000/v1",
        is_local=True,
        needs_key=False,
        prompt_cache="automatic",
        litellm_prefix="hosted_vllm",
    ),
)

_BY_NAME = {plain_name(spec.name): spec for spec in PROVIDERS}

# Context windows in tokens, the most specific name first; the smallest of each family.
CONTEXT_WINDOWS: tuple[tuple[str, int], ...] = (
    ("claude", 200_000),
    ("gpt-5", 400_000),
    ("gpt-4.1", 1_047_576),
    ("gpt-4o", 128_000),
    ("gpt-oss", 131_072),
    ("o1", 200_000),
    ("o3", 200_000),
    ("o4", 200_000),
    ("gemini", 1_048_576),
    ("deepseek", 128_000),
    ("kimi-k3", 1_048_576),
    ("kimi-k2.5", 262_144),
    ("kimi-k2", 131_072),
    ("glm-5", 200_000),
    ("glm-4.6", 200_000),
    ("glm-4.5", 131_072),
    ("qwen-plus", 131_072),
    ("qwen-turbo", 131_072),
    ("qwen3-coder-plus", 262_144),
    ("minimax-m3", 1_000_000),
    ("minimax-m2", 196_608),
    ("llama-3.3", 131_072),
    ("mistral-large", 131_072),
    ("doubao-seed", 262_144),
)


def context_window(model: str) -> int:
    """The context window in tokens, by model family; a conservative default for unknown families."""
    name = model.rsplit("/", 1)[-1].lower()
    return next((tokens for family, tokens in CONTEXT_WINDOWS if name.startswith(family)), DEFAULT_CONTEXT_WINDOW)


def find_by_name(name: str) -> ProviderSpec | None:
    """The provider of that name, in any spelling."""
    return _BY_NAME.get(plain_name(name))


def spec_for(name: str) -> ProviderSpec:
    """The provider of that name; an unknown name means a custom chat completions endpoint."""
    return find_by_name(name) or ProviderSpec(name, name, needs_key=False)


def find_by_model(model: str) -> ProviderSpec | None:
    """The provider that a model name suggests, by prefix or keywords, regardless of keys."""
    return next(chain(by_prefix(model), by_keywords(model)), None)


def find_by_key(key: str) -> ProviderSpec | None:
    """The provider whose keys start like this one, if that is unambiguous."""
    matches = [spec for spec in PROVIDERS if len(spec.key_prefix) > len("sk-") and key.startswith(spec.key_prefix)]
    return matches[0] if len(matches) == 1 else None


def wire_model(spec: ProviderSpec, model: str) -> str:
    """The model name to send: one leading `<name>/` of this provider is removed."""
    prefix, slash, rest = model.partition("/")
    return rest if slash and rest and plain_name(prefix) == plain_name(spec.name) else model


def by_prefix(model: str) -> Iterator[ProviderSpec]:
    """The provider named before the first slash, if any."""
    prefix, slash, _ = model.partition("/")
    spec = find_by_name(prefix) if slash else None
    return iter([spec] if spec else [])


def by_keywords(model: str) -> Iterator[ProviderSpec]:
    """The providers whose keywords occur in the model name."""
    words = re.split(r"[^a-z0-9]+", model.lower())
    return (spec for spec in PROVIDERS if any(word.startswith(key) for word in words for key in spec.keywords))
