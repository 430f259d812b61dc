"""Providers: ways to reach models. Whoever asks a model knows `base` and `errors`; `factory` knows which one to make.

The agent, runtime and cli may import it; sessions are strangers. Reading order: base, errors, registry,
custom_provider > completions > exchange > (wire, answer, failures, textual_calls), litellm_provider, offline_provider,
openai_codex_provider > account_provider > (responses > (input_items, output_items), oauth), copilot_provider, factory >
local_servers.
"""
