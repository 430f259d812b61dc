"""Voice messages that nobody can hear yet, on all channels of a gateway."""

import time
from pathlib import Path

import pytest

from nanobot.testing.model_server import FakeModels, Fitting
from tests.fakes.people import ALL, Lives, OnPlatform, everybody, heard
from tests.fakes.transcription import Answer, FakeTranscription
from tests.support.eventually import eventually
from tests.support.home import POSIX
from tests.support.toy_gateway import GatewayHome

pytestmark = POSIX

LONGEST_S = 1.0


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_stop_behind_a_voice_message_is_answered_within_a_second(tmp_path: Path):
    (voice := tmp_path / "voice.ogg").write_bytes(b"OggS" + bytes(60))
    took: dict[str, float] = {}
    with FakeTranscription() as hearing, FakeModels(default=Fitting(heard), strict=False) as server:
        hearing.script = [Answer(after_s=5)] * len(ALL)
        home = GatewayHome(tmp_path / "home", server)
        groq = {"apiKey": hearing.api_key, "apiBase": hearing.v1}
        home.change(providers={**home.config["providers"], "groq": groq})
        async with everybody(home, ALL) as mouths:
            lives = Lives(home)
            try:
                await lives.ready()
                for name, one in mouths.items():
                    if not isinstance(one, OnPlatform) or not one.platform.files:
                        continue
                    await one.say(0, "here is q1")
                    await eventually(lambda one=one: any("q1" in text for text in one.shown(0)))  # type: ignore[misc]
                    uploads = hearing.asked
                    await one.platform.says("listen", sender=one.people[0], chat=one.chats[0], file=voice, mention=True)
                    await eventually(lambda uploads=uploads: hearing.asked > uploads)  # type: ignore[misc]
                    before, began = len(one.shown(0)), time.monotonic()
                    await one.say(0, "/stop")
                    await eventually(lambda one=one, before=before: len(one.shown(0)) > before)  # type: ignore[misc]
                    took[name] = time.monotonic() - began
            finally:
                lives.close()

    print({name: f"{seconds:.2f} s" for name, seconds in took.items()})
    assert len(took) == 13
    assert max(took.values()) < LONGEST_S
