"""Which values are secret, by the name of their key, and how they are shown: hardly."""

import re
from typing import Any

from nanobot.config.loaded_from import KeyPath
from nanobot.security.references import is_reference
from nanobot.security.secrets import Redactor, is_telling

SECRET_ENDINGS = ("key", "token", "secret", "password")
SECRET_MAPS = ("env", "headers", "extraHeaders", "extraBody", "extra_headers", "extra_body")
_HIDDEN = "••••"
_AS_TEXT = Redactor()
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def is_secret(path: KeyPath) -> bool:
    """Whether the value under a key must not be shown."""
    names = [part for part in path if isinstance(part, str)]
    if not names:
        return False
    return names[-1].lower().endswith(SECRET_ENDINGS) or any(name in SECRET_MAPS for name in names)


def shown(path: KeyPath, value: Any) -> Any:
    """The value as it may be shown: of a secret its last four characters, and only if it is long."""
    if isinstance(value, dict):
        return {name: shown((*path, name), entry) for name, entry in value.items()}
    if isinstance(value, list):
        entries = [_AS_TEXT.text(entry) if isinstance(entry, str) else entry for entry in value]  # --token=VALUE
        for index in range(1, len(value)):  # --token VALUE
            if str(value[index - 1]).startswith("-") and is_telling(str(value[index - 1])):
                entries[index] = _HIDDEN
        return [shown((*path, index), entry) for index, entry in enumerate(entries)]
    if value is None or value == "" or isinstance(value, bool):
        return value
    if is_secret(path):
        text = str(value)
        leads_on = is_reference(text) or "${" in text  # its end is that of a path, or of a command
        return _HIDDEN + (text[-4:] if len(text) >= 16 and not leads_on else "")
    return _USERINFO.sub(_HIDDEN, value) if isinstance(value, str) else value
