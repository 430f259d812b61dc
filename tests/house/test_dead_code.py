"""Nothing is left that nobody uses: neither the product, nor a test, nor a program that embeds nanobot."""

import re
from pathlib import Path

import pytest
from vulture import Vulture

from tests.house.repo import ROOT, text_of, tracked_files

SURE = 60
"""Percent: from here on vulture looks at functions, classes, methods, attributes and variables."""
FIELDS = (
    "nanobot/agent/skills/lint.py",  # fields of a SKILL.md
    "nanobot/config/channels.py",  # keys of the config: test_keys judges who reads them
    "nanobot/config/schema.py",
    "nanobot/cron/history.py",  # keys of a file
    "nanobot/messages/types.py",
    "nanobot/testing/platform.py",  # what a platform can do: checks ask for it by name
    "nanobot/usage/ledger.py",  # shown as JSON, field by field
    "nanobot/sdk/run.py",
    "nanobot/sdk/result.py",
    "nanobot/usage/types.py",
)
"""Files whose variables are fields that something reads as a whole."""
OF_OTHERS = {
    "commenters whitespace whitespace_split": "shlex reads them",
    "dispatch interaction_check ws_connect": "discord.py calls them",
    "email_message_class": "imap-tools reads it",
    "handle_startendtag handle_endtag handle_data": "the standard library's HTML parser",
    "justify responds_to_cpr ttimeoutlen timeoutlen cursor_position get_completions": "rich and prompt_toolkit",
    "complete_event": "prompt_toolkit names the parameter",
    "field_title_should_be_set get_field_value settings_customise_sources model_config": "pydantic calls or reads them",
    "dst fromutc": "datetime asks a tzinfo",
    "telemetry suppress_debug_info drop_params": "LiteLLM reads them",
    "connection_made data_received eof_received connection_lost": "asyncio calls a protocol",
    "MAX_IMAGE_PIXELS": "Pillow reads it",
    "on_answer on_message on_request on_turn_end": "methods of a hook are called by the names that its plugin has",
    "assistant": "histories are repaired by a method a role",
    "format_epilog": "Click calls it",
    "run_at_ms updated_at_ms": "keys of jobs.json",
    "COMPACT": "a promised phase of a turn",
    "__getattr__": "Python calls it",
    "wss_uri": "slack-sdk connects to it",
    "capture_signals main_loop should_exit": "uvicorn's server calls or reads them",
}
"""Names that something calls or reads which is not here, and what does."""
_BY_NAME = re.compile(r'"nanobot(?:\.\w+)*:(\w+)"')


def product() -> list[Path]:
    return [path for path in tracked_files() if path.suffix == ".py" and path.is_relative_to(ROOT / "nanobot")]


@pytest.mark.slow  # ten seconds of work
@pytest.mark.timeout(240)
def test_no_code_is_unused():
    known = {name for names in OF_OTHERS for name in names.split()}
    known |= {name for path in product() for name in _BY_NAME.findall(text_of(path))}  # imported when first asked for
    fields = {str(ROOT / name) for name in FIELDS}
    finder = Vulture(
        ignore_decorators=["@app.callback*", "@*.add*", "@field_validator*", "@model_validator*", "@*_check", "@route*"]
    )
    finder.scavenge([str(ROOT / "nanobot"), str(ROOT / "tests"), str(ROOT / "docs")])

    unused = [
        f"{Path(item.filename).relative_to(ROOT)}:{item.first_lineno} {item.typ} {item.name}"
        for item in finder.get_unused_code(min_confidence=SURE)
        if Path(item.filename).is_relative_to(ROOT / "nanobot")
        and item.typ != "import"  # ruff judges imports, and reads types in quotes
        and item.name not in known
        and not (str(item.filename) in fields and item.typ in ("variable", "attribute"))
    ]

    assert not unused, "\n".join(unused)
