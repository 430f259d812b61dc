"""`nanobot config`: read and change config.json, checked as when it is loaded."""

import json as jsonlib
import os
import shlex
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from nanobot.cli.common import JsonOption, selected
from nanobot.cli.output import print_error, print_json, print_line, print_text
from nanobot.cli.setup import prompts
from nanobot.config import keypath, paths
from nanobot.config.keypath import MISSING, dotted, is_secret, mask_value
from nanobot.config.loader import check_text, find_key, load_config, set_key
from nanobot.config.saver import lock_config, to_document, write_document
from nanobot.errors import ConfigError, NanobotError, UsageError

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="For example agents.defaults.model.")]


def path() -> None:
    typer.echo(str(paths.get_config_path()))


def get(
    key: Annotated[str | None, typer.Argument(metavar="KEY", help="For example agents.defaults.model.")] = None,
    json: JsonOption = False,
) -> None:
    """Print a value as it applies, with defaults; without KEY what the file contains. Secrets are masked."""
    loaded = load_config(must_exist=selected.config is not None, secrets=False)
    if key is None:
        print_json(mask_value((), to_document(loaded)))
        return
    key_path = find_key(key)
    value = keypath.get(loaded.model_dump(by_alias=True), key_path)
    if value is MISSING:
        raise NanobotError(f"{dotted(key_path)} is not set.")
    plain = mask_value(key_path, value)
    if isinstance(plain, str) and not json:
        print_text(plain)
    else:
        print_json(plain)


def set_(
    key: KeyArgument,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="Text, or JSON for numbers, lists and objects.")],
) -> None:
    key_path = find_key(key)
    meanings: list[Any] = [value]
    with suppress(ValueError):
        meanings.insert(0, jsonlib.loads(value))
    set_key(paths.get_config_path(), key_path, meanings)
    shown = mask_value(key_path, value) if is_secret(key_path) else value
    typer.echo(f"{dotted(key_path)} = {shown}")


def edit() -> None:
    """Open the config file in $VISUAL or $EDITOR. What does not load is not saved."""
    file = paths.get_config_path()
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "")
    if not editor:
        raise UsageError(f"No editor is set. Set EDITOR, or change {file} yourself.")
    with lock_config(file):
        draft = file.with_name("config.draft.json")
        write_document(file.read_text(encoding="utf-8") if file.exists() else "{}\n", draft)
        try:
            _edit_until_valid(editor, draft, file)
        finally:
            draft.unlink()


def _edit_until_valid(editor: list[str], draft: Path, file: Path) -> None:
    before = draft.read_bytes()
    while True:
        if subprocess.run([*editor, str(draft)], check=False).returncode:
            raise NanobotError("The editor failed. Nothing was saved.")
        text = draft.read_text(encoding="utf-8")
        if text.encode() == before:
            print_line("Nothing was changed.")
            return
        try:
            check_text(text, file)
        except ConfigError as error:
            print_error(str(error))
            if not prompts.is_interactive() or not prompts.confirm("Edit again? (No discards your changes.)"):
                raise NanobotError("Nothing was saved.") from None
            continue
        write_document(text, file)
        print_line(f"Config saved: {file}")
        return
