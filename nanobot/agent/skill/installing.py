"""A skill comes into a workspace, whole or not at all, and leaves it again without being lost.

    skills/<name>/                      it is here
    skills/.new-<random>/               it is being written; renamed when every byte is on the disk
    skills/.replaced/<name>-<time>/     what was there before it, or was removed

Names that begin with a point are no skills.
"""

import os
import secrets
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath

from nanobot.agent.skill.book import SkillBook
from nanobot.agent.skill.bundle import Bundle
from nanobot.agent.skill.faults import Fault, faults_of, name_problem
from nanobot.agent.skill.manual import Manual, decoded, manual_of, one_line
from nanobot.agent.skill.needs import Needs
from nanobot.agent.skill.programs import digest
from nanobot.agent.skill.warnings import Warned, addresses_in, warnings_of
from nanobot.errors import NanobotError
from nanobot.utils.files import make_private_folder, sync_folder, write_whole
from nanobot.utils.locks import locked
from nanobot.utils.refusals import refusal

_NEW, _REPLACED = ".new-", ".replaced"
_FORGOTTEN_S = 3600.0


@dataclass(frozen=True, slots=True)
class Offer:
    """A skill that may be installed, and all a person has to know before they say yes."""

    name: str
    bundle: Bundle
    manual: Manual
    needs: Needs
    faults: tuple[Fault, ...]
    warned: tuple[Warned, ...]
    addresses: tuple[str, ...]
    """The hosts that its files name."""
    stands: bool
    """Whether there is a skill of that name in the workspace."""

    @property
    def license(self) -> str:
        """The license it names."""
        return one_line(self.manual.front.get("license"))

    @property
    def programs(self) -> Mapping[str, bytes]:
        """What of it is code."""
        return {file.path: file.data for file in self.bundle.files if file.is_program}

    @property
    def grave(self) -> tuple[Warned, ...]:
        """What nobody should agree to unseen."""
        return tuple(one for one in self.warned if one.grave)


class Installer:
    """Puts skills into the `skills` folder of a workspace. What it does blocks."""

    def __init__(self, skills: Path, book: SkillBook) -> None:
        self._skills = skills
        self._book = book

    def offer(self, bundle: Bundle, wanted: str = "") -> Offer:
        """What installing would mean. `wanted` is the name it is to have instead of its own.

        Raises NanobotError for one that cannot be installed: no good name, or a SKILL.md that cannot be read.
        """
        text, problem = decoded(bundle.manual)
        manual = Manual(problem=problem) if problem else manual_of(text)
        if manual.problem:
            raise NanobotError(
                f"{bundle.source} cannot be installed: {manual.problem}. `nanobot skills validate` says what to mend."
            )
        name = wanted or _name_of(manual, bundle)
        if problem := name_problem(name):
            hint = "" if wanted else " Name it with --as NAME."
            raise NanobotError(f"{name!r} is no name for a skill: it {problem}.{hint}")
        return Offer(
            name,
            bundle,
            manual,
            Needs.of(manual),
            tuple(faults_of(bundle, is_named=False, looks=False)),
            tuple(warnings_of(bundle)),
            tuple(addresses_in(bundle)),
            os.path.lexists(self._skills / name),
        )

    def install(self, offer: Offer, *, replaces: bool = False) -> Path:
        """Where the skill is now; one of its name that was there is kept in `.replaced`.

        Raises NanobotError where there is one and it is not to be replaced, StorageError for a disk that refuses.
        """
        place = self._skills / offer.name
        try:
            self._skills.mkdir(parents=True, exist_ok=True)
            make_private_folder(self._book.folder)
            with locked(self._book.folder / "installing.lock"):
                self._sweep()
                if os.path.lexists(place) and not replaces:
                    raise NanobotError(
                        f"There is a skill {offer.name} already, in {place}. --replace puts this one in its place and "
                        "keeps the old one; --as NAME gives this one another name."
                    )
                fresh = self._written(offer)
                self._book.note_installed(
                    offer.name,
                    str(offer.bundle.source.absolute()),
                    {path: digest(data) for path, data in offer.programs.items()},
                )
                aside = self._put_aside(offer.name)
                fresh.rename(place)  # at once: only between these two would a kill leave neither in its place
                sync_folder(self._skills)
                if aside is not None:
                    sync_folder(aside.parent)
        except OSError as error:
            raise refusal(f"The skill {offer.name} cannot be installed", error) from error
        return place

    def remove(self, name: str) -> Path:
        """Take a skill out of the workspace; where it is kept. Raises NanobotError, StorageError."""
        if not os.path.lexists(self._skills / name) or name_is_hidden(name):
            raise NanobotError(f"There is no skill {name} in {self._skills}. See `nanobot skills list`.")
        try:
            kept = self._put_aside(name)
            sync_folder(self._skills)
        except OSError as error:
            raise refusal(f"The skill {name} cannot be removed", error) from error
        self._book.forget(name)
        assert kept is not None  # noqa: S101 it was there
        return kept

    def _written(self, offer: Offer) -> Path:
        """All files of it, on the disk, under a name that is no skill's."""
        fresh = self._skills / f"{_NEW}{secrets.token_hex(6)}"
        fresh.mkdir()
        try:
            folders = {fresh}
            for file in offer.bundle.files:
                path = fresh / PurePosixPath(file.path)
                path.parent.mkdir(parents=True, exist_ok=True)
                folders.add(path.parent)
                mode = 0o755 if file.executable else 0o644
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
                try:
                    write_whole(descriptor, file.data)
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            for folder in folders:
                sync_folder(folder)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        return fresh

    def _put_aside(self, name: str) -> Path | None:
        """Move what has this name, a link as a link, where it is kept; None where there is nothing. Raises OSError."""
        place = self._skills / name
        if not os.path.lexists(place):
            return None
        kept = self._skills / _REPLACED
        kept.mkdir(exist_ok=True)
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        aside = kept / f"{name}-{stamp}"
        while os.path.lexists(aside):
            aside = kept / f"{name}-{stamp}-{secrets.token_hex(2)}"
        place.rename(aside)
        return aside

    def _sweep(self) -> None:
        """Delete what installs left that were killed long ago."""
        for left in self._skills.glob(f"{_NEW}*"):
            with suppress(OSError):
                if time.time() - left.lstat().st_mtime > _FORGOTTEN_S and not left.is_symlink():
                    shutil.rmtree(left, ignore_errors=True)


def name_is_hidden(name: str) -> bool:
    """Whether a name in the skills folder is none of a skill."""
    return name.startswith(".") or not name or "/" in name or "\\" in name


def _name_of(manual: Manual, bundle: Bundle) -> str:
    """Its own name where that is a good one, else its folder's or zip's."""
    own = manual.front.get("name")
    if isinstance(own, str) and not name_problem(own):
        return own
    return bundle.name
