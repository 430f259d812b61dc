"""The channel at a real Synapse, in rooms with and without encryption."""

from collections.abc import Iterator

import pytest

from nanobot.testing import Check
from nanobot.testing.channels import channel_checks
from tests.fakes.platform_synapse import EncryptedSynapsePlatform, SynapsePlatform
from tests.support.synapse import PROGRAM, synapse

pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="Synapse is not installed (matrix-synapse)"),
    pytest.mark.xdist_group("synapse"),
]

NOT_HERE = ("duplicate",)
"""Checks in which the platform repeats a message, which Synapse does not."""


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[str]:
    with synapse() as url:
        SynapsePlatform.url = url
        yield url


def checks() -> Iterator[object]:
    for platform in (SynapsePlatform, EncryptedSynapsePlatform):
        for check in channel_checks(platform):
            if not check.skipped and not any(word in check.name for word in NOT_HERE):
                yield pytest.param(check, id=f"{'encrypted' if platform.is_encrypted else 'plain'}-{check}")


@pytest.mark.parametrize("check", [*checks()])
async def test_the_channel_holds_at_synapse(check: Check, tmp_path):
    await check.run(tmp_path)
