"""Setting up a channel by questions, at both doors: `nanobot onboard` and `nanobot channels login`."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nanobot.cli.main import app
from tests.fakes.dingtalk import CLIENT_ID, DingTalkPlatform
from tests.fakes.dingtalk import SECRET as DINGTALK_SECRET
from tests.fakes.feishu import APP_ID, FeishuPlatform
from tests.fakes.feishu import SECRET as FEISHU_SECRET
from tests.fakes.feishu import FeishuPlatform as FeishuServer
from tests.fakes.mail_server import PASSWORD, USER, FakeMail
from tests.fakes.matrix import BOT as MATRIX_BOT
from tests.fakes.matrix import PASSWORD as MATRIX_PASSWORD
from tests.fakes.matrix import TOKEN as MATRIX_TOKEN
from tests.fakes.matrix import MatrixPlatform
from tests.fakes.platform_discord import DiscordPlatform
from tests.fakes.slack import APP_TOKEN, BOT_TOKEN, SlackPlatform
from tests.fakes.telegram import TOKEN, FakeTelegram
from tests.fakes.weixin import ANNA, WeixinPlatform
from tests.support.eventually import eventually
from tests.support.home import NANOBOT, POSIX

pexpect = pytest.importorskip("pexpect")
if sys.platform != "win32":
    from tests.support.terminal import at_home, on_screen

WITHOUT_MODEL = "later\n"
DISCORD_TOKEN = "MTExMTEx.GaBcDe.f-g_h"


async def command(*words: str, answers: str = "") -> Result:
    """A command of the terminal, while the platforms run in this loop."""
    return await asyncio.to_thread(CliRunner().invoke, app, [*words], input=answers)


def config_path() -> Path:
    return Path.home() / ".nanobot" / "config.json"


def write_config(**config: Any) -> bytes:
    config_path().parent.mkdir(exist_ok=True)
    config_path().write_text(json.dumps(config), encoding="utf-8")
    return config_path().read_bytes()


def channels() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(config_path().read_text(encoding="utf-8")).get("channels", {})
    return found


def places_of(server: FakeMail) -> dict[str, Any]:
    """Where the servers are, in the words of the config."""
    return {
        "imapHost": "127.0.0.1",
        "imapPort": server.imap_port,
        "imapUseSsl": False,
        "smtpHost": "127.0.0.1",
        "smtpPort": server.smtp_port,
        "smtpUseTls": False,
    }


def owners() -> dict[str, list[str]]:
    path = config_path().with_name("pairing.json")
    found: dict[str, list[str]] = json.loads(path.read_text(encoding="utf-8"))["owners"] if path.exists() else {}
    return found


@pytest.fixture
async def telegram(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeTelegram]:
    async with FakeTelegram().open() as server:
        monkeypatch.setenv("NANOBOT_CHANNELS__TELEGRAM__API_BASE", server.url)
        yield server


@pytest.fixture
async def discord(tmp_path: Path) -> AsyncIterator[DiscordPlatform]:
    async with DiscordPlatform(tmp_path).open() as platform:
        platform.rest.token = DISCORD_TOKEN
        yield platform


@pytest.fixture
async def slack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SlackPlatform]:
    async with SlackPlatform(tmp_path).open() as platform:
        monkeypatch.setenv("NANOBOT_CHANNELS__SLACK__API_BASE", f"{platform.workspace.url}/api")
        yield platform


@pytest.fixture
async def mail() -> AsyncIterator[FakeMail]:
    """A mailbox without TLS, at ports of its own: the config says where, and the questions leave it."""
    async with FakeMail().open() as server:
        write_config(channels={"email": places_of(server)})
        yield server


def login(channel: str, **environ: str) -> Any:
    """`nanobot channels login` of it, in a terminal."""
    words = [*NANOBOT, "channels", "login", channel]
    return on_screen(words, env=at_home(**environ), dimensions=(60, 100), timeout=20)


async def talk(child: Any, *lines: tuple[str, str]) -> None:
    """Wait in a terminal for each of the first, and type the second."""
    for text, typed in lines:
        await asyncio.to_thread(child.expect_exact, text)
        child.send(typed)


async def leaves(child: Any) -> int:
    """The exit code, once it has ended."""
    await asyncio.to_thread(child.expect, pexpect.EOF)
    child.close()
    return int(child.exitstatus)


# onboarding


async def test_onboarding_takes_a_newcomer_to_a_bot_on_telegram(telegram):
    result = await command("onboard", answers=f"{WITHOUT_MODEL}telegram\n{TOKEN}\n\n\n")

    assert result.exit_code == 0, result.output
    assert channels() == {"telegram": {"enabled": True, "token": TOKEN}}
    assert "write to @BotFather" in result.stdout
    assert "https://t.me/nano_test_bot" in result.stdout
    assert "\n  nanobot gateway\n" in result.stdout
    assert "nanobot pairing approve CODE --owner" in result.stdout
    assert [method for method, _ in telegram.asked] == ["getMe"]
    assert TOKEN not in result.output


@pytest.mark.parametrize(
    ("now", "kept"),
    [
        (f"again\n{TOKEN}\n", {"telegram": {"enabled": True, "token": TOKEN}}),
        ("save\n", {"telegram": {"enabled": True, "token": "1:wrong"}}),
        ("leave\n", {}),
    ],
)
async def test_a_token_that_is_refused_is_asked_again_saved_or_left_as_the_person_says(telegram, now, kept):
    result = await command("onboard", answers=f"{WITHOUT_MODEL}telegram\nmy token\n1:wrong\n{now}\n\n")

    assert result.exit_code == 0, result.output
    assert "A token looks like 123456:ABC-DEF" in result.stdout
    assert "my token" not in str(telegram.asked)
    assert "The token is refused" in result.stdout
    assert channels() == kept


async def test_several_channels_in_one_go(telegram, slack):
    ids = "@anna\n+49 170 1234567\n491701234567\n111"
    answers = f"{WITHOUT_MODEL}slack\n{BOT_TOKEN}\n{APP_TOKEN}\n\ntelegram\n{TOKEN}\n{ids}\n\n"

    result = await command("onboard", answers=answers)

    assert [*channels()] == ["telegram", "slack"]
    assert owners() == {"telegram": ["111"]}  # who knows their id needs no code
    assert result.stdout.count("A phone number or a @name does not tell") == 3
    assert "Write to your bot on Telegram: it recognises you as its owner." in result.stdout
    start = "Start the gateway, and keep it running:\n  nanobot gateway\nWrite to your bot on Slack: it answers"
    assert start in result.stdout


@pytest.mark.usefixtures("telegram")
async def test_onboarding_again_keeps_a_channel_and_its_token():
    before = write_config(channels={"telegram": {"enabled": True, "token": TOKEN, "streaming": False}}, mine=1)

    kept = await command("onboard", answers="keep\n\n")
    looked = await command("onboard", answers="later\ntelegram\n\n\n")

    assert (kept.exit_code, looked.exit_code) == (0, 0)
    assert "Telegram: set up" in looked.stdout
    assert json.loads(config_path().read_bytes()) == json.loads(before)


async def test_enter_goes_on_without_a_channel_and_with_yes_nothing_is_asked_of_them():
    entered = await command("onboard", answers=f"{WITHOUT_MODEL}\n")
    said_yes = await command("onboard", "--yes", answers="telegram\n")

    assert entered.exit_code == 0
    assert "nanobot channels login telegram" in entered.stdout
    assert "chat app" not in said_yes.stdout
    assert channels() == {}


# the second door


async def test_login_asks_what_is_missing_and_leaves_the_rest_as_it_is_written(telegram, monkeypatch):
    monkeypatch.setenv("TELEGRAM_TOKEN", TOKEN)
    write_config(mine=1, channels={"telegram": {"token": "${TELEGRAM_TOKEN}", "streaming": False}})

    result = await command("channels", "login", "Telegram", answers="\n")

    assert result.exit_code == 0, result.output
    assert "already set" in result.stdout
    assert json.loads(config_path().read_bytes()) == {
        "mine": 1,
        "channels": {"telegram": {"token": "${TELEGRAM_TOKEN}", "streaming": False, "enabled": True}},
    }
    assert TOKEN not in result.output


async def test_login_of_what_is_set_up_only_tries_it_and_with_force_asks_anew(telegram):
    before = write_config(channels={"telegram": {"enabled": True, "token": TOKEN}})

    good = await command("channels", "login", "telegram")
    telegram.token = "4242:another"
    bad = await command("channels", "login", "telegram")
    left = await command("channels", "login", "telegram", "--force", answers="\n")
    after_that = config_path().read_bytes()
    changed = await command("channels", "login", "telegram", "--force", answers="4242:another\n\n")

    assert "Your bot is Nano" in good.stdout
    assert good.stdout.endswith("telegram is configured and its credentials work.\n")
    assert (bad.exit_code, "nanobot channels login telegram --force" in bad.stderr) == (1, True)
    assert (left.exit_code, "Nothing was saved" in left.stderr, after_that) == (1, True, before)
    assert (changed.exit_code, channels()["telegram"]["token"]) == (0, "4242:another")


@POSIX
async def test_login_waits_for_the_owners_first_message_and_asks_who_it_is(telegram):
    telegram.chats[-7] = {"id": -7, "type": "group", "title": "A group"}
    for number, name in ((333, "Eve"), (222, "Zoe"), (111, "Anna")):
        telegram.people[number] = {"id": number, "is_bot": False, "first_name": name, "username": name.lower()}
        telegram.chats[number] = {"id": number, "type": "private", "first_name": name}
    child = login("telegram", NANOBOT_CHANNELS__TELEGRAM__API_BASE=telegram.url)

    await talk(child, ("Bot token", f"{TOKEN}\r"), ("Now write anything", ""))
    await telegram.message(-7, 333, "@nano_test_bot hi")  # nobody is owner for a word in a group
    await telegram.message(222, 222, "hi")
    await talk(child, ("Zoe (@zoe), ID 222, just wrote: is that you? [Y/n]", "n\r"), ("Then write", ""))
    own = await telegram.message(111, 111, "hello bot")
    await talk(child, ("Anna (@anna), ID 111, just wrote: is that you? [Y/n]", "\r"), ("it recognises you", ""))

    assert await leaves(child) == 0
    assert owners() == {"telegram": ["111"]}
    assert telegram.update_of(own) in telegram.waiting()  # the gateway will answer it


@pytest.mark.slow
@POSIX
async def test_slack_waits_for_the_owners_first_message_too(slack):
    child = login("slack", NANOBOT_CHANNELS__SLACK__API_BASE=f"{slack.workspace.url}/api")

    tokens = ("Bot User OAuth Token", f"{BOT_TOKEN}\r"), ("App-Level Token", f"{APP_TOKEN}\r")
    await talk(child, *tokens, ("Now write anything", ""))
    await eventually(lambda: slack.workspace.lines)
    own = await slack.says("hello")
    await talk(child, (f"ID {slack.person}, just wrote: is that you?", "\r"))

    assert await leaves(child) == 0
    assert owners() == {"slack": [slack.person]}
    assert not slack.acknowledged(own)  # it comes again, to the gateway


@pytest.mark.slow
@POSIX
async def test_feishu_stays_connected_while_it_waits_so_that_the_console_takes_the_long_connection(tmp_path):
    async with FeishuPlatform(tmp_path).open() as feishu:
        child = login("feishu", NANOBOT_CHANNELS__FEISHU__DOMAIN=feishu.feishu.url)
        secret = ("App ID, cli_", f"{APP_ID}\r"), ("App Secret", f"{FEISHU_SECRET}\r")
        await talk(child, ("Enter the App ID", "\x1b[B\r"), *secret)
        await talk(child, ("Your bot is nanobot", ""), ("Now write anything", ""))
        await eventually(lambda: feishu.feishu.lines)
        own = await feishu.says("hello")
        await talk(child, (f"ID {feishu.person} just wrote: is that you?", "\r"))
        assert await leaves(child) == 0
        await eventually(lambda: not feishu.feishu.lines)

    assert not feishu.acknowledged(own)  # it comes again, to the gateway
    assert owners() == {"feishu": [feishu.person]}


@POSIX
async def test_ctrl_c_while_it_waits_leaves_the_code(telegram):
    child = login("telegram", NANOBOT_CHANNELS__TELEGRAM__API_BASE=telegram.url)

    await talk(child, ("Bot token", f"{TOKEN}\r"))
    await eventually(lambda: telegram.polls)
    await talk(child, ("", "\x03"), ("pairing approve CODE --owner", ""))

    assert await leaves(child) == 0
    assert channels()["telegram"]["token"] == TOKEN


@pytest.mark.usefixtures("telegram")
async def test_a_script_may_pipe_the_token_and_nothing_else_and_without_it_is_told_the_keys():
    nobody = await command("channels", "login", "slack")
    made = config_path().exists()
    result = await command("channels", "login", "telegram", answers=f"{TOKEN}\n")

    assert (nobody.exit_code, made) == (1, False)
    assert "channels.slack.botToken, channels.slack.appToken" in nobody.stderr
    assert result.exit_code == 0, result.output
    assert channels() == {"telegram": {"enabled": True, "token": TOKEN}}
    assert "nanobot pairing approve CODE --owner" in result.stdout


@pytest.mark.parametrize(("name", "hint"), [("telegarm", "Did you mean 'telegram'?"), ("fax", "Channels: telegram")])
async def test_login_at_a_channel_nobody_knows_names_those_there_are(name, hint):
    result = await command("channels", "login", name)

    assert result.exit_code == 1
    assert hint in result.stderr
    assert result.stderr.count("\n") == 1


# each platform


async def test_tokens_of_slack_that_are_swapped_are_told_by_their_beginnings(slack):
    answers = f"{APP_TOKEN}\n{BOT_TOKEN}\n{BOT_TOKEN}\n{APP_TOKEN}\n\n"

    result = await command("channels", "login", "slack", answers=answers)

    assert result.exit_code == 0, result.output
    assert "It begins with xoxb-" in result.stdout
    assert "It begins with xapp-" in result.stdout
    assert "Your bot is @nanobot" in result.stdout
    assert channels() == {"slack": {"enabled": True, "botToken": BOT_TOKEN, "appToken": APP_TOKEN}}


async def test_discord_says_which_switch_is_off_and_how_the_bot_gets_into_a_server(discord):
    discord.rest.flags, flags = 0, discord.rest.flags
    off = await command("channels", "login", "discord", answers=f"{DISCORD_TOKEN}\nleave\n")
    made, discord.rest.flags = config_path().exists(), flags
    result = await command("channels", "login", "discord", answers=f"123456789\n{DISCORD_TOKEN}\n\n")

    assert (off.exit_code, "switch on MESSAGE CONTENT INTENT" in off.stdout, made) == (1, True, False)
    assert result.exit_code == 0, result.output
    assert "an Application ID" in result.stdout
    assert "https://discord.com/oauth2/authorize?client_id=" in result.stdout
    assert channels() == {"discord": {"enabled": True, "token": DISCORD_TOKEN}}


async def test_a_mailbox_is_read_with_consent_only_and_tried_both_ways_before_it_is_saved(mail):
    before = config_path().read_bytes()
    declined = await command("channels", "login", "email", answers="\n")
    untouched = config_path().read_bytes() == before and mail.commands == []
    refused = await command("channels", "login", "email", answers=f"y\n{USER}\nwrong\nleave\n")
    taken = await command("channels", "login", "email", answers=f"y\n{USER}\n{PASSWORD}\nanna@friends.test\n")

    assert (declined.exit_code, "send it to your model" in declined.stdout, untouched) == (1, True, True)
    assert "rejected the user name or password" in refused.stdout
    assert taken.exit_code == 0, taken.output
    assert f"The mailbox of {USER} can be read and written from." in taken.stdout
    login = {"imapUsername": USER, "imapPassword": PASSWORD, "smtpUsername": USER, "smtpPassword": PASSWORD}
    assert channels()["email"] == {**places_of(mail), "enabled": True, "consentGranted": True, **login}
    assert owners() == {"email": ["anna@friends.test"]}


@pytest.mark.parametrize(
    ("servers", "section"),
    [
        ("127.0.0.1:1\n127.0.0.1:465\n", {"imapHost": "127.0.0.1", "imapPort": 1, "smtpPort": 465}),
        ("127.0.0.1:143\n127.0.0.1\n", {"imapHost": "127.0.0.1", "imapPort": 143}),
    ],
)
async def test_the_port_of_a_mail_server_says_how_tls_begins_there(servers, section):
    result = await command("channels", "login", "email", answers=f"y\nbot@here.test\nsecret\n{servers}save\n\n")

    email = channels()["email"]
    assert result.exit_code == 0, result.output
    assert email.items() >= section.items()
    assert email.get("imapUseSsl", True) is (email.get("imapPort") != 143)
    assert email.get("smtpUseSsl", False) is (email.get("smtpPort") == 465)


@pytest.mark.parametrize("name", ["phone", ""])
async def test_a_websocket_gets_a_token_of_a_named_client_that_is_shown_once_or_one_that_login_shows(name):
    first = await command("channels", "login", "websocket", answers=f"{name}\n")
    again, later = [await command("channels", "login", "websocket") for _ in range(2)]

    section = channels()["websocket"]
    if name:
        token = section["clients"]["phone"]["token"]
        told = f"phone connects to ws://127.0.0.1:8765 with this token, which is stored in the config:\n  {token}\n"
        assert (told in first.stdout, len(token), token in again.output) == (True, 48, False)
        assert "with the tokens that the config has for: phone." in again.stdout
        assert section == {"enabled": True, "clients": {"phone": {"token": token}}}
        assert owners() == {"websocket": ["phone"]}
    else:
        assert section == {"enabled": True}
        assert re.search(r"with this token:\n  [0-9a-f]{48}\n", again.stdout)
        assert later.stdout == again.stdout


@POSIX
@pytest.mark.parametrize("works", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_missing_package_is_installed_if_wanted(tmp_path: Path, works: bool):
    """`discord` is a package that cannot be imported until this `pip` has run."""
    site = tmp_path / "site"
    (site / "discord").mkdir(parents=True)
    (site / "discord/__init__.py").write_text("raise ModuleNotFoundError('no discord', name='discord')")
    (site / "pip").mkdir()
    (site / "pip/__init__.py").touch()
    remove = f"import shutil; shutil.rmtree({str(site / 'discord')!r})" if works else "raise SystemExit(1)"
    (site / "pip/__main__.py").write_text(f"import sys; print('pip', *sys.argv[1:])\n{remove}\n")
    child = pexpect.spawn(  # a real start: the warm process has imported the package
        NANOBOT[0],
        [*NANOBOT[1:], "channels", "login", "discord"],
        env=at_home(PYTHONPATH=os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])),
        dimensions=(40, 100),
        timeout=20,
        encoding="utf-8",
    )

    child.expect_exact("Install it now? [Y/n]")
    child.send("\r")
    child.expect_exact("pip install nanobot[discord]")
    child.expect_exact("Bot token")
    seen = " ".join(child.before.split())
    child.sendintr()
    child.expect_exact("Nothing was saved.")
    child.expect(pexpect.EOF)
    child.close()

    assert child.exitstatus == 130
    assert ("The installation failed" in seen, "not tested" in seen) == (not works, not works)


async def test_login_without_a_name_shows_the_channels_and_asks(telegram):
    write_config(channels={"telegram": {"enabled": True, "token": TOKEN}})

    asked = await command("channels", "login", answers="telegram\n")
    alone = await command("channels", "login")

    assert asked.exit_code == 0, asked.output
    assert "Telegram: set up" in asked.stdout
    assert "Discord: not set up (needs a bot token" in asked.stdout
    assert "its credentials work" in asked.stdout
    assert (alone.exit_code, "nanobot channels login telegram" in alone.stderr) == (2, True)


async def test_without_the_package_it_is_set_up_untried_with_the_line_that_installs_it(monkeypatch):
    for name in [one for one in sys.modules if one.startswith(("nanobot.channels.slack", "slack_sdk"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "slack_sdk", None)

    result = await command("channels", "login", "slack", answers=f"{BOT_TOKEN}\n{APP_TOKEN}\n\n")
    tried = await command("channels", "login", "slack")

    assert result.exit_code == 0, result.output
    assert tried.stderr.startswith("Error: Slack needs a package")
    assert tried.stderr.endswith("then start the gateway again.\n")
    assert f"{sys.executable} -m pip install 'nanobot[slack]'" in result.stdout
    assert "not tested" in result.stdout
    assert channels()["slack"]["enabled"] is True


async def test_dingtalk_is_set_up_with_the_credentials_of_an_app(tmp_path, monkeypatch):
    async with DingTalkPlatform(tmp_path).open() as platform:
        monkeypatch.setenv("NANOBOT_CHANNELS__DINGTALK__API_BASE", platform.server.url)

        answers = f"{CLIENT_ID}\nwrong-secret\nagain\n{CLIENT_ID}\n{DINGTALK_SECRET}\nanna01\n"
        result = await command("channels", "login", "dingtalk", answers=answers)

    assert result.exit_code == 0, result.output
    assert "open-dev.dingtalk.com" in result.stdout
    assert "does not take channels.dingtalk.clientId and clientSecret" in result.output
    assert channels() == {"dingtalk": {"enabled": True, "clientId": CLIENT_ID, "clientSecret": DINGTALK_SECRET}}
    assert owners() == {"dingtalk": ["anna01"]}
    assert DINGTALK_SECRET not in result.output


# Feishu, where a QR code creates the app


@pytest.fixture
async def feishu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FeishuServer]:
    async with FeishuPlatform(tmp_path).open() as platform:
        monkeypatch.setenv("NANOBOT_CHANNELS__FEISHU__DOMAIN", platform.feishu.url)
        yield platform.feishu


async def test_feishu_is_set_up_by_whoever_scans_the_code_that_creates_the_app(feishu):
    created = {"client_id": APP_ID, "client_secret": FEISHU_SECRET, "user_info": {"open_id": "ou_anna"}}
    feishu.polls.extend([{"error": "access_denied"}, {"error": "expired_token"}])
    feishu.polls.extend([{"error": "authorization_pending"}, created])

    declined, expired = [await command("channels", "login", "feishu", answers="create\n") for _ in range(2)]
    made = config_path().exists()
    result = await command("channels", "login", "feishu", answers="create\n")

    assert "it was declined" in declined.stdout and "Try again for a new link" in expired.stdout
    assert (declined.exit_code, "Feishu is unchanged." in declined.stdout, made) == (1, True, False)
    assert result.exit_code == 0, result.output
    assert "https://open.feishu.cn/page/cli?user_code=AB12" in result.stdout
    assert re.search(r"^█{20,}$", result.stdout, re.MULTILINE)
    assert channels() == {"feishu": {"enabled": True, "appId": APP_ID, "appSecret": FEISHU_SECRET}}
    assert owners() == {"feishu": ["ou_anna"]}
    assert "it recognises you as its owner" in result.stdout
    assert FEISHU_SECRET not in result.output


# WeChat, where a QR code is scanned instead


@pytest.fixture
async def weixin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WeixinPlatform]:
    monkeypatch.setattr("nanobot.channels.weixin.PAUSE_S", 0.01)
    async with WeixinPlatform(tmp_path).open() as platform:
        monkeypatch.setenv("NANOBOT_CHANNELS__WEIXIN__BASE_URL", platform.server.url)
        yield platform.server


def confirmed(server: WeixinPlatform) -> dict[str, str]:
    bot = {"ilink_bot_id": "b1@im.bot", "ilink_user_id": ANNA}
    return {"status": "confirmed", "bot_token": server.token, "baseurl": f"{server.url}/hk", **bot}


async def test_wechat_is_set_up_by_whoever_scans_the_code_and_types_the_number(weixin):
    states = ["wait", "scaned", "need_verifycode", "need_verifycode", "scaned", "scaned"]
    weixin.statuses.extend([*({"status": state} for state in states), confirmed(weixin)])

    result = await command("channels", "login", "weixin", answers="12\n34\n")

    assert result.exit_code == 0, result.output
    assert "https://liteapp.weixin.qq.com/q/" in result.stdout
    assert re.search(r"^█{20,}$", result.stdout, re.MULTILINE)  # the edge of the QR code
    assert result.stdout.count("Confirm it on your phone") == 1
    assert "That is another number" in result.stdout
    assert weixin.numbers == ["12", "34"]
    assert channels() == {"weixin": {"enabled": True, "token": weixin.token, "baseUrl": f"{weixin.url}/hk"}}
    assert owners() == {"weixin": [ANNA]}
    assert "it recognises you as its owner" in result.stdout
    assert weixin.token not in result.output


@POSIX
async def test_ctrl_c_at_the_number_in_a_terminal_saves_nothing(weixin):
    weixin.statuses.extend([{"status": "need_verifycode"}, confirmed(weixin)])
    child = login("weixin", NANOBOT_CHANNELS__WEIXIN__BASE_URL=weixin.url)

    await talk(child, ("The number on your phone", "4\x03"), ("Nothing was saved.", ""))

    assert (await leaves(child), weixin.numbers, config_path().exists()) == (130, [], False)


async def test_an_expired_code_is_replaced_and_the_third_is_the_last(weixin):
    weixin.statuses.extend({"status": state} for state in ("expired", "verify_code_blocked", "expired"))

    result = await command("channels", "login", "weixin")

    assert result.exit_code == 1
    assert result.stdout.count("https://liteapp.weixin.qq.com/q/") == 3
    assert "3 QR codes have expired" in result.stdout
    assert not config_path().exists()


async def test_the_login_follows_to_a_server_of_wechat_only(weixin, tmp_path):
    (tmp_path / "other").mkdir()
    async with WeixinPlatform(tmp_path / "other").open() as other:
        hosts = [server.url.removeprefix("http://") for server in (weixin, other.server)]
        redirects = [{"status": "scaned_but_redirect", "redirect_host": host} for host in hosts]
        weixin.statuses.extend([*redirects, confirmed(weixin) | {"baseurl": other.server.url}])

        result = await command("channels", "login", "weixin")

    assert result.exit_code == 0, result.output
    assert other.server.requests == []
    assert channels() == {"weixin": {"enabled": True, "token": weixin.token}}


async def test_a_bot_that_is_logged_in_keeps_its_login_and_an_ended_token_names_the_command_once(weixin):
    write_config(channels={"weixin": {"enabled": True, "token": weixin.token, "baseUrl": weixin.url}})
    weixin.statuses.append({"status": "binded_redirect"})
    kept = await command("channels", "login", "weixin", "--force", answers="\n")
    token = channels()["weixin"]["token"]
    write_config(channels={"weixin": {"enabled": True, "token": "ended", "baseUrl": weixin.url}})
    ended = await command("channels", "login", "weixin")

    assert (kept.exit_code, token) == (0, weixin.token)
    known = [body.get("local_token_list") for method, body in weixin.requests if method == "get_bot_qrcode"]
    assert [weixin.token] in known
    assert ended.exit_code == 1
    assert "has logged the bot of channels.weixin.token out" in ended.stderr
    assert ended.stderr.count("nanobot channels login weixin --force") == 1


async def test_onboarding_goes_on_if_wechat_cannot_be_reached(weixin, monkeypatch):
    monkeypatch.setenv("NANOBOT_CHANNELS__WEIXIN__BASE_URL", "http://127.0.0.1:9")

    result = await command("onboard", answers=f"{WITHOUT_MODEL}weixin\n\n")

    assert result.exit_code == 0, result.output
    assert "WeChat cannot be reached" in result.stdout
    assert "WeChat is unchanged." in result.stdout
    assert channels() == {}


@pytest.mark.slow
@POSIX
async def test_matrix_takes_who_invites_the_bot_for_its_owner_if_they_say_so(tmp_path):
    async with MatrixPlatform(tmp_path).open() as matrix:
        child = login("matrix", NANOBOT_CHANNELS__MATRIX__HOMESERVER=matrix.url)
        await talk(child, ("User ID of the bot", f"{MATRIX_BOT}\r"), ("Password of the bot", f"{MATRIX_PASSWORD}\r"))
        await talk(child, (f"Your bot is {MATRIX_BOT}", ""), ("Now write anything", ""))
        await matrix.server.invites("!new:example.org", matrix.person)
        await talk(child, (f"ID {matrix.person}, just wrote: is that you?", "\r"))
        assert await leaves(child) == 0

    assert owners() == {"matrix": [matrix.person]}
    assert matrix.server.rooms["!new:example.org"].members[MATRIX_BOT] == "invite"  # the gateway accepts it


async def test_an_account_with_a_token_needs_no_password(tmp_path):
    async with MatrixPlatform(tmp_path).open() as matrix:
        section = {"enabled": True, "homeserver": matrix.url, "userId": MATRIX_BOT, "accessToken": MATRIX_TOKEN}
        write_config(channels={"matrix": section})

        good = await command("channels", "login", "matrix")

    assert good.stdout.endswith("matrix is configured and its credentials work.\n")
