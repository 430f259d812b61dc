"""Providers: ways to reach models. Whoever asks a model knows `base` and `errors`; `chain` knows which one to make.

The agent, runtime and cli may import it; sessions are strangers. Reading order: base, errors, registry, limits,
custom_provider > completions > exchange > (wire, encoded_rows, sse, answer, failures, capabilities, textual_calls),
litellm_provider > litellm_transport, offline_provider, openai_codex_provider > account_provider > (responses >
(input_items, output_items), oauth), copilot_provider, factory > local_servers; then what holds them: chain >
fallback_provider > breaker, retry_provider > attempt; what counts them: spending > metered_provider; and beside them
transcription (speech to text).
"""
