"""How much the loop does at once, and what people on a channel are sent of it."""

from collections.abc import Callable, Mapping

from nanobot.agent.delivery import DeliveryPolicy
from nanobot.agent.loop import LoopPolicy
from nanobot.config.schema import Config

_MOST_AT_ONCE = 64


def loop_policy(config: Config, environ: Mapping[str, str], streams: Callable[[str], bool]) -> LoopPolicy:
    """The loop's policy. `streams`: whether a channel of that name shows an answer as it grows."""
    joins = config.agents.defaults.steering == "join"
    return LoopPolicy(_most_at_once(environ), joins, _delivery(config, streams))


def _delivery(config: Config, streams: Callable[[str], bool]) -> Callable[[str], DeliveryPolicy]:
    """What people on a channel are sent: what its section says now, else what `channels` says for all."""

    def policy(name: str) -> DeliveryPolicy:
        channels = config.channels
        own = channels.section(name)
        return DeliveryPolicy(
            channels.send_progress if own.send_progress is None else own.send_progress,
            channels.send_tool_hints if own.send_tool_hints is None else own.send_tool_hints,
            channels.show_reasoning if own.show_reasoning is None else own.show_reasoning,
            streams(name),
        )

    return policy


def _most_at_once(environ: Mapping[str, str]) -> int:
    try:
        return int(environ.get("NANOBOT_MAX_CONCURRENT_REQUESTS", ""))
    except ValueError:
        return _MOST_AT_ONCE
