"""Who else than the owner may write, as pairing and the lists of a channel say."""

from datetime import datetime
from pathlib import Path

import pytest

from nanobot.config.paths import Places
from nanobot.config.schema import Config
from nanobot.pairing.store import PairingStore
from nanobot.utils.clock import FrozenClock
from nanobot.wiring.people import others_write


@pytest.mark.parametrize(
    ("allowed", "session", "others"),
    [
        (["7"], "telegram:7", False),
        (["*"], "telegram:7", True),
        (["7", "8"], "telegram:7", True),
        (["-100"], "telegram:-100", True),
        (["*"], "unified:default", True),
        (["7"], "unified:default", False),
        (["*"], "cli:direct", False),
    ],
)
def test_what_somebody_says_is_the_owners_only_where_nobody_else_is_let_in(
    tmp_path: Path, allowed: list[str], session: str, *, others: bool
):
    config = Config.model_validate({"channels": {"telegram": {"enabled": True, "token": "1:a", "allowFrom": allowed}}})
    pairing = PairingStore(Places(tmp_path), FrozenClock(datetime(2026, 3, 1)))

    assert others_write(config, pairing, session) is others
