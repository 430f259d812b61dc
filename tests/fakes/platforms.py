"""The platforms of our own channels, as the checks of `nanobot.testing.channels` ask for them.

A new channel brings a stand-in as `tests/fakes/<name>.py`, adds its line to PLATFORMS below, and is done
when its column of the matrix is green: `python -m pytest tests/contracts/test_channels.py -k <name> -m ""`.
"""

from nanobot.plugins import load
from nanobot.testing.platform import Platform

PLATFORMS: dict[str, str] = {
    "board": "tests.fakes.platform_board:BoardPlatform",
    "discord": "tests.fakes.platform_discord:DiscordPlatform",
    "telegram": "tests.fakes.platform_telegram:TelegramPlatform",
    "email": "tests.fakes.platform_email:EmailPlatform",
    "websocket": "tests.fakes.platform_websocket:WebSocketPlatform",
    "slack": "tests.fakes.slack:SlackPlatform",
    "feishu": "tests.fakes.feishu:FeishuPlatform",
    "dingtalk": "tests.fakes.dingtalk:DingTalkPlatform",
    "qq": "tests.fakes.qq:QQPlatform",
    "wecom": "tests.fakes.wecom:WeComPlatform",
    "weixin": "tests.fakes.weixin:WeixinPlatform",
    "msteams": "tests.fakes.msteams:TeamsPlatform",
    "whatsapp": "tests.fakes.whatsapp:WhatsAppPlatform",
    "matrix": "tests.fakes.matrix:MatrixPlatform",
    "mochat": "tests.fakes.mochat:MochatPlatform",
    "lines": "tests.fakes.platform_lines:LinesPlatform",
}
"""By name, `module:Class`; built with a folder to work in. A line here is all that a new platform adds to this file.

Then `python -m tests.contracts.test_matrix` writes its column into docs/writing-a-channel.md.
"""


def platform_class(name: str) -> type[Platform]:
    """The class behind a line of the table."""
    found: type[Platform] = load(PLATFORMS[name])
    assert issubclass(found, Platform)
    return found
