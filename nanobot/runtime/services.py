"""The services that all parts of a bot share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nanobot.agent.scope import Scope
from nanobot.bus.events import InboundMessage
from nanobot.config.paths import DataPaths
from nanobot.config.schema import Config
from nanobot.pairing.store import PairingStore
from nanobot.runtime import audience
from nanobot.security.provenance import ProvenanceStore
from nanobot.security.secrets import named_secrets
from nanobot.session.manager import SessionManager
from nanobot.utils.clock import Clock
from nanobot.utils.worker_thread import WorkerThread


@dataclass(frozen=True, slots=True)
class Services:
    """The config, the places and the stores of a bot."""

    config: Config
    data_dir: Path
    workspace: Path
    environ: Mapping[str, str]
    clock: Clock
    places: DataPaths
    sessions: SessionManager
    pairing: PairingStore
    file_provenance: ProvenanceStore
    worker: WorkerThread = field(default_factory=WorkerThread)
    """Where tools and hooks of plugins and the user's own tools run."""

    @classmethod
    def of(
        cls, config: Config, data_dir: Path, workspace: Path, environ: Mapping[str, str], clock: Clock
    ) -> "Services":
        """Create the services. Nothing is read yet."""
        places = DataPaths(data_dir)
        return cls(
            config,
            data_dir,
            workspace,
            environ,
            clock,
            places,
            SessionManager(workspace, old_folder=places.legacy_sessions),
            PairingStore(places, clock),
            ProvenanceStore(places.file_provenance, places.media, workspace),
        )

    async def scope_of(self, message: InboundMessage) -> Scope:
        """Whose memory the turn of this message may read."""
        return await audience.scope_of(self.config, self.pairing, self.sessions, message)

    def secrets(self) -> dict[str, str]:
        """Return all secret values, each with its name."""
        return named_secrets(self.config.model_dump(), self.environ)
