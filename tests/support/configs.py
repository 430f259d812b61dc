"""Configs for tests, from plain values."""

from typing import Any

from nanobot.config.schema import Config


def made(**settings: Any) -> Config:
    """What `Config(...)` makes of plain values, as a person would pass them."""
    return Config(**settings)
