"""Detects secret values by the name of their key, and masks them."""

import re
from typing import Any

from nanobot.config.loaded_from import KeyPath
from nanobot.security.references import is_reference
from nanobot.security.secrets import Redactor, is_secret_name

_SECRET_MAPS = ("env", "headers", "extraHeaders", "extraBody", "extra_headers", "extra_body")
_HIDDEN = "••••"
_AS_TEXT = Redactor()
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def is_secret(path: KeyPath) -> bool:
    """Whether the value of a key must not be shown."""
    names = [part for part in path if isinstance(part, str)]
    if not names:
        return False
    return is_secret_name(names[-1]) or any(name in _SECRET_MAPS for name in names)


def mask_value(path: KeyPath, value: Any) -> Any:
    """The value for display: of a long secret its last four characters, of a short one nothing."""
    if isinstance(value, dict):
        return {name: mask_value((*path, name), entry) for name, entry in value.items()}
    if isinstance(value, list):
        entries = [_AS_TEXT.text(entry) if isinstance(entry, str) else entry for entry in value]  # --token=VALUE
        for index in range(1, len(value)):  # --token VALUE
            if str(value[index - 1]).startswith("-") and is_secret_name(str(value[index - 1])):
                entries[index] = _HIDDEN
        return [mask_value((*path, index), entry) for index, entry in enumerate(entries)]
    if value is None or value == "" or isinstance(value, bool):
        return value
    if is_secret(path):
        text = str(value)
        is_pointer = is_reference(text) or "${" in text  # its last characters are those of a path or command
        return _HIDDEN + (text[-4:] if len(text) >= 16 and not is_pointer else "")
    return _USERINFO.sub(_HIDDEN, value) if isinstance(value, str) else value
