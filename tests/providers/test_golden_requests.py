"""What goes out to each provider that is reached directly, byte for byte as it was looked at once.

One conversation with everything that providers are strict about: a call and its result, an answer without a text, words
of ours, thinking. `custom.json` holds for each provider without a file of its own, but for the model. A body that
changes is a change for somebody's server: look at the difference, then write the files anew with `GOLDEN=write python
-m pytest -n 0 tests/providers/test_golden_requests.py`.
"""

import json
import os
from pathlib import Path

import pytest

from nanobot.config.provider_table import PROVIDERS, ProviderSpec
from nanobot.config.schema import Config
from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.providers.factory import choose_provider
from nanobot.testing.model_server import FakeModels

GOLDEN = Path(__file__).parent / "golden"
DIRECT = [spec for spec in PROVIDERS if spec.speaks_chat_completions and not spec.is_oauth]
WORK: list[ChatMessage] = [
    {"role": "system", "content": "You are nanobot."},
    {"role": "user", "content": "What is in the folder?", "runtime_context": "[now]", "sender_id": "ann"},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "I look.",
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "list_dir", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "call_1", "name": "list_dir", "content": "a.txt", "provenance": "file"},
    {"role": "assistant", "content": "One file: a.txt.", "turn_id": "t1"},
    {"role": "user", "content": "Thanks", "origin": "user"},
]
TOOLS: list[ToolSchema] = [
    {
        "type": "function",
        "function": {
            "name": "list_dir",
            "description": "Lists a folder.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
]


def sent_as_kept(name: str, sent: dict[str, object]) -> bool:
    """Whether the body is the one in the file; told to write it, it is."""
    own, common = GOLDEN / f"{name}.json", GOLDEN / "custom.json"
    path = own if own.exists() else common
    if os.environ.get("GOLDEN") == "write":
        path = own
        path.write_text(json.dumps(sent, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    kept: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    return kept | ({"model": sent["model"]} if path != own else {}) == sent


@pytest.mark.parametrize("spec", DIRECT, ids=lambda spec: spec.name)
async def test_a_request_is_as_it_was_looked_at(spec: ProviderSpec, tmp_path: Path):
    model = spec.default_model or "some-model"
    with FakeModels() as server:
        config = Config.model_validate(
            {
                "agents": {"defaults": {"provider": spec.name, "model": model}},
                "providers": {spec.config_key: {"apiBase": server.v1, "apiKey": "key"}},
            }
        )
        chosen = await choose_provider(config, environ={}, state_dir=tmp_path)
        response = await chosen.provider.chat(WORK, TOOLS, chosen.model, max_tokens=100, temperature=0.1)
        await chosen.provider.close()
        (request,) = [one for one in server.requests if one.method == "POST"]
    sent = json.loads(request.body)

    assert response.content == "ok"
    assert sent_as_kept(spec.name, sent)
