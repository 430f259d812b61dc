"""What every channel promises, held by ours: the checks of `nanobot.testing.channels` on each platform."""

import pytest

from nanobot.testing import Check
from nanobot.testing.channels import channel_checks
from tests.fakes.platforms import PLATFORMS, platform_class

CHECKS = [
    pytest.param(check, id=f"{name}-{check}") for name in PLATFORMS for check in channel_checks(platform_class(name))
]


@pytest.mark.parametrize("check", CHECKS)
async def test_a_channel_holds(check: Check, tmp_path):
    await check.run(tmp_path)
