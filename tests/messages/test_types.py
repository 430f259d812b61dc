"""Where the words of old rows came from, which do not say it themselves: every reader of them says the same."""

from typing import Any

import pytest

from nanobot.agent.approval.taint import own_provenance
from nanobot.agent.memory.transcript import add_provenance
from nanobot.messages.types import Provenance, stored_provenance
from nanobot.session.search.update import trust_in

OWNER, _, _, TOOL, MCP, PERSON, MAIL, WEB = Provenance


@pytest.mark.parametrize(
    ("row", "key", "source"),
    [
        ({"role": "user"}, "cli:direct", OWNER),
        ({"role": "user"}, "heartbeat", OWNER),
        ({"role": "user"}, "cron:1a2b3c4d", OWNER),
        ({"role": "user"}, "unified:default", OWNER),
        ({"role": "user"}, "telegram:7", PERSON),
        ({"role": "user"}, "email:a@b.example", PERSON),
        ({"role": "user", "provenance": "owner"}, "telegram:7", OWNER),
        ({"role": "user", "provenance": "telepathy"}, "cli:direct", WEB),
        ({"role": "tool", "name": "inbox"}, "cli:direct", MAIL),
        ({"role": "tool", "name": "web_fetch"}, "cli:direct", WEB),
        ({"role": "tool", "name": "mcp_db_query"}, "cli:direct", MCP),
        ({"role": "tool", "name": "read_file"}, "telegram:7", TOOL),
        ({"role": "assistant"}, "telegram:7", OWNER),
    ],
)
def test_old_row_has_one_source_for_every_reader(row: Any, key: str, source: Provenance):
    row = {"content": "words", **row}

    assert stored_provenance(row, key) == own_provenance(row, key) == trust_in(row, key) == source
    assert stored_provenance(add_provenance([row], key)[0]) == source
