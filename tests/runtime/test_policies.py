"""How long a turn is waited for: nothing that the config allows is taken for a turn that hangs."""

from typing import Any

import pytest

from nanobot.agent.events import TurnPhase
from nanobot.config.schema import Config
from nanobot.runtime.policies import turn_timeouts


@pytest.mark.parametrize(
    ("settings", "phase", "seconds"),
    [
        ({"providers": {"ollama": {"firstTokenTimeoutS": 3600}}}, TurnPhase.RUN, 3600),
        ({"providers": {"my-own": {"apiBase": "http://localhost:1/v1", "idleTimeoutS": 1800}}}, TurnPhase.RUN, 1800),
        ({"tools": {"mcpServers": {"slow": {"url": "http://localhost:1", "toolTimeout": 7200}}}}, TurnPhase.RUN, 7200),
        ({"plugins": {"hookTimeoutS": 200}}, TurnPhase.RUN, 400),
        ({"plugins": {"hookTimeoutS": 200}}, TurnPhase.BUILD, 400),
    ],
    ids=["a slow model", "an endpoint of one's own", "a slow server", "hooks in a run", "hooks before a run"],
)
def test_a_limit_of_the_config_s_comes_before_the_watchdog(settings: dict[str, Any], phase: TurnPhase, seconds: float):
    assert turn_timeouts(Config.model_validate(settings)).of(phase) > seconds
