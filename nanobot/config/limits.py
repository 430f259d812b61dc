"""The spending limits of a config."""

from nanobot.config.schema import Config
from nanobot.usage.budget import SpendingLimits


def spending_limits(config: Config) -> SpendingLimits:
    """The limits of a config."""
    limits = config.limits
    return SpendingLimits(
        limits.daily_usd, limits.monthly_usd, limits.turn_tokens, unknown_price=limits.unknown_price == "allow"
    )
