"""What every channel promises, held by ours: the checks of `nanobot.testing.channels` on each platform."""

import pytest

from nanobot.testing import Check
from nanobot.testing.channels import channel_checks
from tests.fakes.platforms import PLATFORMS, platform_class

CRASHES = ("telegram", "discord", "slack", "email")
"""What a crash leaves is told by the journal, which all channels share: these four stand for the kinds of platforms."""
EXAMPLES = ("board", "lines")
"""No channels of ours. `tests/stories/test_plugin.py` has an example pass the checks, each time."""


def marks(name: str, check: Check) -> list[pytest.MarkDecorator]:
    is_slow = name in EXAMPLES or ("crash" in check.name and name not in CRASHES)
    return [pytest.mark.slow] if is_slow else []


CHECKS = [
    pytest.param(check, id=f"{name}-{check}", marks=marks(name, check))
    for name in PLATFORMS
    for check in channel_checks(platform_class(name))
]


@pytest.mark.parametrize("check", CHECKS)
async def test_a_channel_holds(check: Check, tmp_path):
    await check.run(tmp_path)
