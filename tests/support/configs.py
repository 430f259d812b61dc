"""Configs from plain values, and which provider they choose."""

from typing import Any

from nanobot.config.schema import Config


def made(**settings: Any) -> Config:
    """What `Config(...)` makes of plain values, as a person would pass them."""
    return Config(**settings)


OPENROUTER = "https://openrouter.ai/api/v1"
OLLAMA = "http://localhost:11434/v1"
# (explicit provider, providers with a key, model) -> (chosen, base URL, model on the wire)
PAIRS = [
    ("auto", ["openrouter"], "anthropic/claude-opus-4-5", "openrouter", OPENROUTER, "anthropic/claude-opus-4-5"),
    ("auto", ["anthropic"], "anthropic/claude-opus-4-5", "anthropic", "https://api.anthropic.com", "claude-opus-4-5"),
    ("openrouter", ["anthropic"], "anthropic/claude-opus-4-5", "openrouter", OPENROUTER, "anthropic/claude-opus-4-5"),
    ("anthropic", [], "claude-opus-4-5", "anthropic", "https://api.anthropic.com", "claude-opus-4-5"),
    ("auto", ["openrouter"], "openrouter/z-ai/glm-4.6", "openrouter", OPENROUTER, "z-ai/glm-4.6"),
    ("openrouter", ["zhipu"], "z-ai/glm-4.6", "openrouter", OPENROUTER, "z-ai/glm-4.6"),
    ("openrouter", [], "openrouter/openrouter/auto", "openrouter", OPENROUTER, "openrouter/auto"),
    ("openrouter", [], "deepseek/deepseek-r1:free", "openrouter", OPENROUTER, "deepseek/deepseek-r1:free"),
    ("auto", ["openrouter"], "meta-llama/llama-4:nitro", "openrouter", OPENROUTER, "meta-llama/llama-4:nitro"),
    ("ollama", ["dashscope"], "qwen2.5-coder:7b", "ollama", OLLAMA, "qwen2.5-coder:7b"),
    ("ollama", ["dashscope", "openrouter"], "ollama/qwen3:8b", "ollama", OLLAMA, "qwen3:8b"),
    ("auto", ["dashscope"], "ollama/qwen2.5:7b", "ollama", OLLAMA, "qwen2.5:7b"),
    ("ollama", [], "hf.co/bartowski/Llama-3.2-3B:Q4_K_M", "ollama", OLLAMA, "hf.co/bartowski/Llama-3.2-3B:Q4_K_M"),
    ("vllm", ["dashscope"], "Qwen/Qwen2.5-7B-Instruct", "vllm", "http://localhost:8000/v1", "Qwen/Qwen2.5-7B-Instruct"),
    ("lmStudio", [], "lm-studio/gemma-3", "lm_studio", "http://localhost:1234/v1", "gemma-3"),
    ("llama_cpp", ["openai"], "gpt-oss-20b", "llama_cpp", "http://localhost:8080/v1", "gpt-oss-20b"),
    ("auto", ["dashscope"], "qwen-max", "dashscope", "https://dashscope.aliyuncs.com/compatible-mode/v1", "qwen-max"),
    ("auto", ["deepseek", "openrouter"], "deepseek-chat", "deepseek", "https://api.deepseek.com", "deepseek-chat"),
    ("auto", ["deepseek"], "deepseek/deepseek-chat", "deepseek", "https://api.deepseek.com", "deepseek-chat"),
    ("groq", [], "openai/gpt-oss-120b", "groq", "https://api.groq.com/openai/v1", "openai/gpt-oss-120b"),
    ("auto", ["groq"], "groq/openai/gpt-oss-120b", "groq", "https://api.groq.com/openai/v1", "openai/gpt-oss-120b"),
    ("auto", ["openai"], "openai/gpt-4.1", "openai", "https://api.openai.com/v1", "gpt-4.1"),
    ("auto", ["openai", "groq"], "o3-mini", "openai", "https://api.openai.com/v1", "o3-mini"),
    ("auto", ["moonshot"], "kimi-k2.5", "moonshot", "https://api.moonshot.ai/v1", "kimi-k2.5"),
    ("auto", ["zhipu"], "glm-4.6", "zhipu", "https://open.bigmodel.cn/api/paas/v4", "glm-4.6"),
    ("auto", ["minimax"], "MiniMax-M2", "minimax", "https://api.minimax.io/v1", "MiniMax-M2"),
    ("auto", ["mistral"], "codestral-latest", "mistral", "https://api.mistral.ai/v1", "codestral-latest"),
    ("nvidia", [], "nvidia/nvidia/nemotron-4", "nvidia", "https://integrate.api.nvidia.com/v1", "nvidia/nemotron-4"),
    ("siliconflow", [], "Pro/zai-org/GLM-4.7", "siliconflow", "https://api.siliconflow.cn/v1", "Pro/zai-org/GLM-4.7"),
    ("aihubmix", [], "anthropic/claude-opus-4-5", "aihubmix", "https://aihubmix.com/v1", "anthropic/claude-opus-4-5"),
    ("huggingface", [], "zai-org/GLM-4.6:x", "huggingface", "https://router.huggingface.co/v1", "zai-org/GLM-4.6:x"),
    ("auto", ["xai"], "grok-4.7", "xai", "https://api.x.ai/v1", "grok-4.7"),
    ("auto", ["kimi_coding"], "kimi-for-coding", "kimi_coding", "https://api.kimi.com/coding/v1", "kimi-for-coding"),
    ("auto", ["xiaomi_mimo"], "mimo-v2.6-pro", "xiaomi_mimo", "https://api.xiaomimimo.com/v1", "mimo-v2.6-pro"),
    ("auto", ["opencode_go"], "opencode-go/kimi-k3", "opencode_go", "https://opencode.ai/zen/go/v1", "kimi-k3"),
    ("together", [], "zai-org/GLM-5.3", "together", "https://api.together.ai/v1", "zai-org/GLM-5.3"),
    ("custom", [], "a/b/c:d@e", "custom", None, "a/b/c:d@e"),
    ("azureOpenai", [], "azure-openai/my-deployment", "azure_openai", None, "my-deployment"),
    ("auto", [], "github-copilot/gpt-4.1", "github_copilot", "https://api.githubcopilot.com", "gpt-4.1"),
    ("bedrock", [], "us.anthropic.claude-opus-4-5-v1:0", "bedrock", None, "us.anthropic.claude-opus-4-5-v1:0"),
]  # fmt: skip
