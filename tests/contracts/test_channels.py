"""What every channel promises, held by ours: the checks of `nanobot.testing.channels` on each platform."""

import pytest

from nanobot.testing import Check
from nanobot.testing.channels import channel_checks
from tests.fakes.platforms import PLATFORMS, platform_class

KINDS = ("telegram", "discord", "slack", "email")
"""They stand for the kinds of platforms in rows about what all channels share: the journal, which tells what a crash
left, and the supervisor, which ends a connection that is dead.
"""
EXAMPLES = ("board", "lines")
"""No channels of ours. `tests/stories/test_plugin.py` has an example pass the checks, each time."""


def marks(name: str, check: Check) -> list[pytest.MarkDecorator]:
    is_shared = "crash" in check.name or "half_open" in check.name
    is_slow = name in EXAMPLES or (is_shared and name not in KINDS)
    return [pytest.mark.slow] if is_slow else []


CHECKS = [
    pytest.param(check, id=f"{name}-{check}", marks=marks(name, check))
    for name in PLATFORMS
    for check in channel_checks(platform_class(name))
]


@pytest.mark.parametrize("check", CHECKS)
async def test_a_channel_holds(check: Check, tmp_path):
    await check.run(tmp_path)
