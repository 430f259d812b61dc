"""The services that all parts of a bot share."""

from collections.abc import Mapping
from pathlib import Path

from nanobot.config.paths import DataPaths
from nanobot.config.schema import Config
from nanobot.pairing.store import PairingStore
from nanobot.runtime.audience import ChatPrivacy
from nanobot.security.provenance import ProvenanceStore
from nanobot.security.secrets import named_secrets
from nanobot.session.manager import SessionManager
from nanobot.utils.aio import WorkerThread
from nanobot.utils.clock import Clock


class Services:
    """The config, the places and the stores of a bot. Nothing is read yet."""

    def __init__(
        self, config: Config, data_dir: Path, workspace: Path, environ: Mapping[str, str], clock: Clock
    ) -> None:
        self.config = config
        self.data_dir = data_dir
        self.workspace = workspace
        self.environ = environ
        self.clock = clock
        self.places = DataPaths(data_dir)
        self.sessions = SessionManager(workspace, old_folder=self.places.legacy_sessions)
        self.pairing = PairingStore(self.places, clock)
        self.privacy = ChatPrivacy(config, self.pairing, self.sessions)
        self.file_provenance = ProvenanceStore(self.places.file_provenance, self.places.media, workspace)
        self.worker = WorkerThread()
        """Where tools and hooks of plugins and the user's own tools run."""

    def secrets(self) -> dict[str, str]:
        """Return all secret values, each with its name."""
        return named_secrets(self.config.model_dump(), self.environ)
