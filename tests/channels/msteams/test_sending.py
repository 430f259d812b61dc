"""What people in Teams get of the bot: messages, cards with buttons, pictures, and files once they agree."""

from pathlib import Path

from nanobot.bus.events import Address, Button
from nanobot.testing.live_channel import delta, live
from tests.fakes.msteams import ANNA, HALL, chat_of
from tests.support.eventually import eventually

ADDRESS = Address("msteams", chat_of(ANNA))


async def test_a_thread_is_answered_in_it_or_beside_it(teams, tmp_path):
    thread = f"{HALL};messageid=7"
    async with live(teams, tmp_path) as life:
        await life.asked("one", chat=HALL, thread="7", mention=True)
        await eventually(lambda: life.channel.status.sent)
    async with live(teams, tmp_path, silent=True, reply_in_thread=False) as life:
        life.adjust(delta_interval_s=0.0)
        await teams.says("two", chat=HALL, thread="7", mention=True)
        message = await life.hears("two")
        delta(life, message, "first ")
        await life.shows("first", HALL)
        life.answers(message, "first second")
        await life.shows("first second", HALL)

    assert [(post.chat, post.text) for post in teams.posts] == [
        (thread, "You said: one"),
        (HALL, "first second"),
    ]


async def test_of_many_buttons_the_first_six_are_shown(teams, tmp_path):
    async with live(teams, tmp_path) as life:
        await life.posted(ADDRESS, "which?", buttons=tuple(Button(f"b{number}", "x" * 300) for number in range(9)))

    (post,) = teams.posts
    assert [button["title"] for button in post.buttons] == [f"b{number}" for number in range(6)]
    assert post.text == "which?"


async def test_a_token_that_teams_no_longer_takes_is_replaced(teams, tmp_path):
    async with live(teams, tmp_path) as life:
        life.adjust(login_s=60)
        await life.is_up()
        teams.expire_tokens()
        await life.posted(ADDRESS, "hello")

    assert [post.text for post in teams.posts] == ["hello"]


async def test_a_file_is_stored_once_its_person_agrees_even_if_it_is_gone_and_the_bot_was_away(teams, tmp_path):
    (file := tmp_path / "plan.txt").write_text("the plan", encoding="utf-8")
    async with live(teams, tmp_path) as life:
        await life.posted(ADDRESS, "here it is", media=[str(file)])
    file.unlink()
    consent = teams.posts[-1]
    stored_before = dict(teams.stored)
    async with live(teams, tmp_path) as life:
        await life.is_up()
        answers = [await teams.answers_consent(consent, "accept")]
        await eventually(lambda: len(teams.posts) == 3)
        await eventually(lambda: not [*(tmp_path / "files").iterdir()])
        answers.append(await teams.answers_consent(consent, "accept"))
        await life.asked("thanks")

    assert answers == [200, 200]
    assert (stored_before, teams.stored) == ({}, {"stored-plan.txt": b"the plan"})
    (shown,) = teams.posts[2].attachments
    assert (shown["contentType"], shown["name"]) == ("application/vnd.microsoft.teams.card.file.info", "plan.txt")
    assert len(teams.posts) == 4


async def test_a_file_whose_card_is_refused_does_not_wait(teams, tmp_path):
    (tmp_path / "plan.txt").write_text("the plan", encoding="utf-8")
    async with live(teams, tmp_path) as life:
        await life.is_up()
        teams.refuse(1, status=500)
        await life.posted(ADDRESS, "", media=[str(tmp_path / "plan.txt")])

    assert len([*(tmp_path / "files").iterdir()]) == len(teams.posts) == 1


async def test_a_file_that_is_declined_is_forgotten(teams, tmp_path):
    (tmp_path / "plan.txt").write_text("the plan", encoding="utf-8")
    async with live(teams, tmp_path) as life:
        await life.posted(ADDRESS, "", media=[str(tmp_path / "plan.txt")])
        waiting = [*(tmp_path / "files").iterdir()]
        await teams.answers_consent(teams.posts[-1], "decline")
        await eventually(lambda: not [*(tmp_path / "files").iterdir()])

    assert len(waiting) == 1
    assert teams.stored == {}


async def test_an_answer_about_another_file_than_one_that_waits_sends_and_deletes_none(teams, tmp_path):
    for name in ("plan.txt", "other.txt"):
        (tmp_path / name).write_text(f"the {name}", encoding="utf-8")
    async with live(teams, tmp_path) as life:
        await life.posted(ADDRESS, "", media=[str(tmp_path / "plan.txt")])
        consent = teams.posts[-1]
        for file_id in ("*", "../../other.txt", "/etc/passwd", "0" * 32, {"odd": 1}):
            consent.attachments[0]["content"]["acceptContext"] = {"file": file_id}
            assert await teams.answers_consent(consent, "accept") == 200
        await life.asked("thanks")
        assert len([*(tmp_path / "files").iterdir()]) == 1

    assert teams.stored == {}


async def test_a_file_that_onedrive_refuses_waits_and_its_person_is_told(teams, tmp_path):
    (tmp_path / "plan.txt").write_text("the plan", encoding="utf-8")
    async with live(teams, tmp_path) as life:
        await life.posted(ADDRESS, "", media=[str(tmp_path / "plan.txt")])
        consent = teams.posts[-1]
        teams.onedrive_status = 507
        await teams.answers_consent(consent, "accept")
        await life.shows("plan.txt could not be stored")
        teams.onedrive_status = 201
        await teams.answers_consent(consent, "accept")
        await eventually(lambda: teams.stored)

    assert teams.stored == {"stored-plan.txt": b"the plan"}


async def test_a_group_is_told_of_a_file_that_teams_takes_in_private_chats_only(teams, tmp_path):
    (tmp_path / "plan.txt").write_text("the plan", encoding="utf-8")
    async with live(teams, tmp_path) as life:
        await life.posted(Address("msteams", HALL), "", media=[str(tmp_path / "plan.txt")])

    (post,) = teams.posts
    assert "plan.txt cannot be sent here" in post.text
    assert not Path(tmp_path / "files").exists()
