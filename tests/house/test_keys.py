"""No key of a channel does nothing: what a section of the config offers, some line of its channel reads.

A key counts as read where its room takes it as an attribute, or where what all channels share names it.
"""

import ast
from functools import cache
from pathlib import Path

import pytest
from pydantic import BaseModel

from nanobot.channels.registry import CHANNELS
from nanobot.config.channels import ChannelConfig, ChannelsConfig
from nanobot.config.keypath import camel
from tests.house.repo import ROOT, text_of, tracked_files

NOT_READ = {"slack.mode": "its one value is checked where the config is read, so that an old `webhook` is told of"}
NAMING = ("nanobot/channels/access.py", "nanobot/channels/base.py", "nanobot/channels/chat_channel.py")
"""These take a section as it comes, also that of a plugin, and so name its keys."""
EVERYWHERE = (
    "nanobot/channels/",
    "nanobot/gateway/",
    "nanobot/providers/",
    "nanobot/runtime/",
)


@cache
def taken_in(path: Path) -> frozenset[str]:
    """Whatever a file takes as an attribute, or names: a single word only where keys are named, for it is any word."""
    nodes = [*ast.walk(ast.parse(text_of(path)))]
    words = {one.value for one in nodes if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    named = words if path.relative_to(ROOT).as_posix() in NAMING else {one for one in words if "_" in one}
    return frozenset({one.attr for one in nodes if isinstance(one, ast.Attribute)} | named)


def unread(model: type[BaseModel], rooms: tuple[str, ...]) -> list[str]:
    """The keys of this section that nothing in these rooms reads; `dm.policy` for one of a section within."""
    files = [path for path in tracked_files() if path.relative_to(ROOT).as_posix().startswith(rooms)]
    read = frozenset[str]().union(*(taken_in(path) for path in files if path.suffix == ".py"))
    missing = []
    for name, field in model.model_fields.items():
        within = field.annotation
        if not {name, camel(name)} & read:
            missing.append(name)
        if isinstance(within, type) and issubclass(within, BaseModel) and not issubclass(within, ChannelConfig):
            missing += [f"{name}.{one}" for one in unread(within, rooms)]
    return missing


@pytest.mark.parametrize("name", [spec.name for spec in CHANNELS])
def test_a_channel_reads_every_key_of_its_section(name: str):
    own = (f"nanobot/channels/{name}/", f"nanobot/channels/{name}.py")
    section = type(getattr(ChannelsConfig(), name))

    missing = {f"{name}.{key}" for key in unread(section, (*own, *NAMING)) if key not in ChannelConfig.model_fields}

    assert missing == {key for key in NOT_READ if key.startswith(f"{name}.")}


def test_what_all_channels_share_is_read():
    sections = {spec.name for spec in CHANNELS}

    assert unread(ChannelConfig, EVERYWHERE) == []
    assert [key for key in unread(ChannelsConfig, EVERYWHERE) if key not in sections] == []
    assert sections <= ChannelsConfig.model_fields.keys()
