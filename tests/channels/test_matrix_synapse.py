"""The channel at a real Synapse, in rooms with and without encryption."""

import json
from collections.abc import Iterator

import pytest

from nanobot.bus.events import Address
from nanobot.testing import Check
from nanobot.testing.channels import PICTURE, channel_checks
from nanobot.testing.live_channel import delta, live, turn_of, until
from nanobot.testing.model_server import FakeModels, Say
from tests.fakes.platform_synapse import EncryptedSynapsePlatform, SynapsePlatform
from tests.support.home import POSIX
from tests.support.synapse import PROGRAM, synapse
from tests.support.toy_gateway import GatewayHome

pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="Synapse is not installed (matrix-synapse)"),
    pytest.mark.xdist_group("synapse"),
    pytest.mark.timeout(240),
]
PLATFORMS = {"plain": SynapsePlatform, "encrypted": EncryptedSynapsePlatform}
ROWS = (
    "an_incoming_file_is_stored_and_its_path_given_to_the_model",
    "a_thread_has_its_own_session_and_is_answered_in_the_thread",
    "an_unknown_sender_gets_a_pairing_code_once_and_nothing_else",
    "a_message_that_has_to_wait_gets_a_reaction_or_notice",
)
"""Those of the contract that wait for what they look at: people see nothing at the moment when it is sent."""
CHECKS = [
    pytest.param(check, id=f"{kind}-{check}")
    for kind, platform in PLATFORMS.items()
    for check in channel_checks(platform)
    if check.name in ROWS
]


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    with synapse() as url:
        SynapsePlatform.url = url
        yield


@pytest.fixture(params=[*PLATFORMS])
async def platform(request, tmp_path):
    (folder := tmp_path / "platform").mkdir()
    async with PLATFORMS[request.param](folder).open() as opened:
        yield opened


@pytest.mark.parametrize("check", CHECKS)
async def test_the_channel_holds_at_synapse(check: Check, tmp_path):
    await check.run(tmp_path)


async def test_an_answer_grows_by_edits_and_its_file_arrives_whole(platform, tmp_path):
    (tmp_path / "picture.png").write_bytes(PICTURE)
    async with live(platform, tmp_path, silent=True) as life:
        life.adjust(delta_interval_s=0.0)
        message = await life.receives("hello")
        delta(life, message, "one ")
        await life.shows("one")
        picture = [str(tmp_path / "picture.png")]
        life.post(message, "one **two**", **turn_of(message), media=picture)
        shown = await life.shows("one two")
        await until(lambda: len(platform.shown()) == 2)
        received = await platform.anna.download(platform.anna.written_by(platform.bot.id, platform.private)[-1])

    assert shown.edits >= 1
    assert platform.shown()[1].files == ["picture.png"]
    assert received == PICTURE


async def test_the_bot_joins_the_room_of_an_allowed_person_and_answers_what_they_wrote_at_once(platform, tmp_path):
    async with live(platform, tmp_path) as life:
        await life.asked("hello")
        room = await platform.anna.create(platform.bot.id, encrypted=platform.is_encrypted)
        if platform.is_encrypted:  # this app may give the key only to those who have joined
            await until(lambda: platform.anna.sees_in(room, platform.bot.id))
        await platform.anna.says(room, {"msgtype": "m.text", "body": "and here?"})

        await life.shows("You said: and here?", room)


async def test_a_message_whose_key_is_missing_is_said_once_and_the_next_is_read(tmp_path):
    (folder := tmp_path / "platform").mkdir()
    async with EncryptedSynapsePlatform(folder).open() as platform, live(platform, tmp_path) as life:
        await life.asked("hello")
        anna = platform.anna.client
        (device,) = anna.device_store.active_user_devices(platform.bot.id)
        anna.blacklist_device(device)
        await platform.anna.says(platform.private, {"msgtype": "m.text", "body": "one that nobody can read"})
        await life.shows("I cannot decrypt a message here")
        await platform.anna.says(platform.private, {"msgtype": "m.text", "body": "another"})
        anna.unblacklist_device(device)
        await life.asked("and now?")

    assert [message.content for message in life.heard] == ["hello", "and now?"]
    assert len(platform.shown()) == 3


async def test_more_than_a_sync_shows_is_caught_up_on(platform, tmp_path):
    async with live(platform, tmp_path) as life:
        await life.asked("before")
    for number in range(70):
        await platform.says(f"m{number}")
    async with live(platform, tmp_path, silent=True) as life:
        await life.hears("m69")

    assert [message.content for message in life.heard] == [f"m{number}" for number in range(70)]


async def test_a_person_known_only_by_id_is_invited_and_reads_what_the_bot_wrote(platform, tmp_path):
    async with live(platform, tmp_path) as life:
        await life.is_up()
        chat = await life.manager.chat_with("matrix", platform.zoe.id)
        assert chat is not None
        assert chat == platform.stranger_chat
        await life.posted(Address("matrix", chat), "good morning")
        await life.shows("good morning", chat)


@POSIX
async def test_messages_to_a_killed_gateway_are_each_answered_once_after_its_start(platform, tmp_path):
    with FakeModels(default=Say("the answer")) as models:
        home = GatewayHome(tmp_path / "home", models, toys=())
        section = {
            "enabled": True, "homeserver": platform.url, "userId": platform.bot.id,
            "accessToken": platform.bot.client.access_token, "e2eeEnabled": platform.is_encrypted,
            "allowFrom": [platform.person],
        }  # fmt: skip
        home.change(channels={"matrix": section})
        with home.gateway() as process:
            await until(lambda: "matrix: connected" in home.log, within_s=60)
            await platform.writes("one")
            await until(lambda: len(platform.shown()) == 1, within_s=30)
            process.kill()
        await platform.writes("two")
        await platform.writes("three")
        with home.gateway():
            await until(lambda: all(word in prompts(models) for word in ("two", "three")), within_s=60)
            await platform.writes("four")
            await until(lambda: "four" in prompts(models), within_s=30)

    assert [prompts(models).count(word) for word in ("one", "two", "three", "four")] == [1, 1, 1, 1]


def prompts(models: FakeModels) -> str:
    """What people wrote, as the newest request has it."""
    newest = models.chats[-1].json if models.chats else {"messages": []}
    return json.dumps([message for message in newest["messages"] if message["role"] == "user"])
