"""Installs and removes skills of a workspace, atomically and without losing the previous one.

skills/<name>/                      the skill
skills/.new-<random>/               being written; renamed once everything is synced
skills/.replaced/<name>-<time>/     what was replaced or removed

Names that begin with a dot are not skills.
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

from nanobot.agent.skills.bundle import Bundle
from nanobot.agent.skills.lint import LintFinding, addresses_in, find_risks, lint_skill, name_problem
from nanobot.agent.skills.manual import Manual, decode_manual, one_line, parse_manual
from nanobot.agent.skills.needs import SkillNeeds
from nanobot.errors import NanobotError
from nanobot.utils.files import make_private_folder, sync_folder
from nanobot.utils.locks import file_lock
from nanobot.utils.storage_error import storage_error

_NEW, _REPLACED = ".new-", ".replaced"
_LEFTOVER_AGE_S = 3600.0


@dataclass(frozen=True, slots=True)
class SkillOffer:
    """A skill that can be installed, with what a person needs to know before agreeing."""

    name: str
    bundle: Bundle
    manual: Manual
    needs: SkillNeeds
    faults: tuple[LintFinding, ...]
    risks: tuple[LintFinding, ...]
    addresses: tuple[str, ...]
    """The hosts named in its files."""
    exists: bool
    """Whether the workspace already has a skill of that name."""

    @property
    def license(self) -> str:
        """The license named in its front matter."""
        return one_line(self.manual.front.get("license"))

    @property
    def programs(self) -> Mapping[str, bytes]:
        """The files that are code."""
        return {file.path: file.data for file in self.bundle.files if file.is_program}

    @property
    def is_suspicious(self) -> bool:
        """Whether nobody should install it without a look."""
        return any(risk.is_error for risk in self.risks)


class Installer:
    """Installs skills into the `skills` folder of a workspace. Methods block."""

    def __init__(self, skills: Path, lock: Path) -> None:
        """`lock` is the path of a lock file that no tool can write."""
        self._skills = skills
        self._lock = lock

    def offer(self, bundle: Bundle, name_override: str = "") -> SkillOffer:
        """Return what installing would mean. `name_override` replaces the skill's own name.

        Raises NanobotError if it cannot be installed: an invalid name or an unreadable SKILL.md.
        """
        text, problem = decode_manual(bundle.manual)
        manual = Manual(problem=problem) if problem else parse_manual(text)
        if manual.problem:
            raise NanobotError(
                f"{bundle.source} cannot be installed: {manual.problem}. `nanobot skills validate` shows what to fix."
            )
        name = name_override or _choose_name(manual, bundle)
        if problem := name_problem(name):
            hint = "" if name_override else " Name it with --as NAME."
            raise NanobotError(f"{name!r} is not a valid skill name: it {problem}.{hint}")
        return SkillOffer(
            name,
            bundle,
            manual,
            SkillNeeds.of(manual),
            tuple(lint_skill(bundle, checks_folder_name=False, with_risks=False)),
            tuple(find_risks(bundle)),
            tuple(addresses_in(bundle)),
            os.path.lexists(self._skills / name),
        )

    def install(self, offer: SkillOffer, *, replaces: bool = False) -> Path:
        """Install the skill and return its folder. A replaced one is kept in `.replaced`.

        Raises NanobotError if one exists and may not be replaced, StorageError on a storage failure.
        """
        target = self._skills / offer.name
        try:
            self._skills.mkdir(parents=True, exist_ok=True)
            make_private_folder(self._lock.parent)
            with file_lock(self._lock):
                self._sweep()
                if os.path.lexists(target) and not replaces:
                    raise NanobotError(
                        f"The skill {offer.name} already exists in {target}. --replace replaces it and keeps the old "
                        "one; --as NAME installs this one under another name."
                    )
                new_folder = self._write_new(offer)
                self._move_to_replaced(offer.name)
                new_folder.rename(target)
                sync_folder(self._skills)
        except OSError as error:
            raise storage_error(f"The skill {offer.name} cannot be installed", error) from error
        return target

    def remove(self, name: str) -> Path:
        """Remove a skill and return where it is kept. Raises NanobotError, StorageError."""
        is_hidden = name.startswith(".") or "/" in name or "\\" in name
        try:
            replaced_as = None if is_hidden else self._move_to_replaced(name)
        except OSError as error:
            raise storage_error(f"The skill {name} cannot be removed", error) from error
        if replaced_as is None:
            raise NanobotError(f"There is no skill {name} in {self._skills}. See `nanobot skills list`.")
        return replaced_as

    def _write_new(self, offer: SkillOffer) -> Path:
        """Write and sync all files under a temporary name."""
        new_folder = self._skills / f"{_NEW}{secrets.token_hex(6)}"
        new_folder.mkdir()
        try:
            for file in offer.bundle.files:
                path = new_folder / PurePosixPath(file.path)
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as written:
                    written.write(file.data)
                    written.flush()
                    os.fsync(written.fileno())
                path.chmod(0o755 if file.executable else 0o644)
            for folder in {(new_folder / file.path).parent for file in offer.bundle.files}:
                sync_folder(folder)
        except BaseException:
            shutil.rmtree(new_folder, ignore_errors=True)
            raise
        return new_folder

    def _move_to_replaced(self, name: str) -> Path | None:
        """Move what has this name into `.replaced`, a link as a link; None if there is nothing. Raises OSError."""
        target = self._skills / name
        if not os.path.lexists(target):
            return None
        replaced_as = self._skills / _REPLACED / f"{name}-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        replaced_as.parent.mkdir(exist_ok=True)
        target.rename(replaced_as)
        sync_folder(replaced_as.parent)
        sync_folder(self._skills)
        return replaced_as

    def _sweep(self) -> None:
        """Delete leftovers of installs killed long ago."""
        for leftover in self._skills.glob(f"{_NEW}*"):
            with suppress(OSError):
                if time.time() - leftover.lstat().st_mtime > _LEFTOVER_AGE_S and not leftover.is_symlink():
                    shutil.rmtree(leftover, ignore_errors=True)


def _choose_name(manual: Manual, bundle: Bundle) -> str:
    """Return the skill's own name if valid, else that of its folder or zip."""
    own_name = manual.front.get("name")
    if isinstance(own_name, str) and not name_problem(own_name):
        return own_name
    return bundle.name
