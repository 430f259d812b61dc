"""What all parts of a bot stand on: its config, its places, and what is kept there."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nanobot.agent.scope import Scope
from nanobot.bus.events import InboundMessage
from nanobot.config.paths import Places
from nanobot.config.schema import Config
from nanobot.pairing.store import PairingStore
from nanobot.security.provenance import FileBook
from nanobot.security.secrets import Redactor, named_secrets, secrets_of
from nanobot.session.manager import SessionManager
from nanobot.utils.clock import Clock
from nanobot.wiring import people


@dataclass(frozen=True, slots=True)
class Home:
    """What all parts of a bot stand on: its config, its places, and what is kept there."""

    config: Config
    data_dir: Path
    workspace: Path
    environ: Mapping[str, str]
    clock: Clock
    places: Places
    sessions: SessionManager
    pairing: PairingStore
    file_book: FileBook
    redactor: Redactor

    @classmethod
    def of(cls, config: Config, data_dir: Path, workspace: Path, environ: Mapping[str, str], clock: Clock) -> "Home":
        """Nothing of it is read yet."""
        places = Places(data_dir)
        return cls(
            config,
            data_dir,
            workspace,
            environ,
            clock,
            places,
            SessionManager(workspace, old_folder=places.old_sessions),
            PairingStore(places, clock),
            FileBook(places.file_book, places.media, workspace),
            Redactor(lambda: secrets_of(config.model_dump(), environ)),
        )

    def scope_of(self, message: InboundMessage) -> Scope:
        """Whose memory the turn of a message may be told of."""
        return people.scope_of(self.config, self.pairing, self.sessions, message)

    def secrets(self) -> dict[str, str]:
        """What nobody may be told, with the name it goes by."""
        return named_secrets(self.config.model_dump(), self.environ)
