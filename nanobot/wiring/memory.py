"""Who moves old messages into memory and when, as the config says. Nothing of it is imported before it is needed."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import cache, partial
from typing import TYPE_CHECKING

from nanobot.agent.idle import IdleWatch
from nanobot.agent.memory import MemoryStore
from nanobot.agent.scope import Scope
from nanobot.agent.tidying import Tidying
from nanobot.agent.vitals import Vitals
from nanobot.config.paths import Places
from nanobot.config.schema import Config
from nanobot.pairing.store import PairingStore
from nanobot.session.manager import Session, SessionManager
from nanobot.utils.clock import Clock
from nanobot.wiring import people
from nanobot.wiring.models import ConfiguredModels

if TYPE_CHECKING:
    from nanobot.agent.consolidation import Consolidator


class Upkeep:
    """The upkeep of memory of one bot."""

    def __init__(
        self,
        config: Config,
        places: Places,
        memory: MemoryStore,
        sessions: SessionManager,
        models: ConfiguredModels,
        pairing: PairingStore,
        vitals: Vitals,
        clock: Clock,
    ) -> None:
        defaults = config.agents.defaults

        @cache
        def consolidator() -> "Consolidator":
            from nanobot.agent.consolidation import Consolidator  # most turns consolidate nothing

            return Consolidator(
                memory,
                sessions,
                models,
                vitals,
                clock,
                background_model=defaults.background_model,
                others_write=partial(people.others_write, config, pairing),
                scope_of=partial(people.scope_of_row, config, pairing),
            )

        self.tidying = Tidying(
            consolidator, sessions, clock, memory_window=defaults.memory_window, waiting=places.to_consolidate
        )
        self._consolidator = consolidator
        self._idle_s = defaults.idle_compact_after_minutes * 60
        self._clock = clock

    def saved(self, session: Session, scope: Scope) -> None:
        """A turn has let go of this session."""
        self.tidying.saved(session)

    async def close(self) -> None:
        """Leave what is half done to the next start."""
        await self.tidying.close()

    def idle_watch(self, lane: Callable[[str], AbstractAsyncContextManager[object]]) -> IdleWatch | None:
        """Who does it for sessions in which nobody speaks any more; None where the config does not want it."""
        if not self._idle_s:
            return None
        return IdleWatch(lambda key: self._consolidator().compact(key, lane(key)), self._idle_s, self._clock)
