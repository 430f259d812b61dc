"""Values from outside the file: `${VAR}`, `file:` and `cmd:` references, and NANOBOT_ variables for missing keys.

pydantic-settings' own source of variables is not used: it also reads names without the prefix (`API`, `TOOLS`), knows
no keys of custom providers, and cannot say which variable a value is from.
"""

import json
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from nanobot.config.keypath import MISSING, InvalidKeyError, KeyPath, get, put, walk
from nanobot.config.section import Shape, in_camel_case
from nanobot.errors import ConfigError, SecretUnavailableError
from nanobot.security.references import WITHIN, References, is_reference, references_in
from nanobot.security.secrets import is_secret_name

PREFIX = "NANOBOT_"
_REFERENCE = re.compile(rf"\$\{{(?:(?P<variable>[A-Za-z_][A-Za-z0-9_]*)|(?P<secret>{WITHIN}))\}}")


def is_pointer(path: KeyPath, written: str) -> bool:
    """Whether the whole string refers to a secret. Under other keys, `file:` may be the start of a URL."""
    return is_reference(written) and bool(path) and is_secret_name(str(path[-1]))


def refers_elsewhere(path: KeyPath, written: str) -> bool:
    """Whether a string is, or contains, a reference."""
    return is_pointer(path, written) or _REFERENCE.search(written) is not None


def variables_in(written: str) -> list[str]:
    """The environment variables that a string refers to."""
    return [match["variable"] for match in _REFERENCE.finditer(written) if match["variable"]]


def strings_in(tree: Any) -> Iterator[tuple[KeyPath, str]]:
    return ((path, value) for path, value in walk(tree) if isinstance(value, str))


def secrets_in(tree: Any) -> Iterator[tuple[KeyPath, str]]:
    """The `file:` and `cmd:` references of a tree, with their keys."""
    for path, text in strings_in(tree):
        for reference in references_in(text, whole=is_pointer(path, text)):
            yield path, reference


def secret_files(tree: Any, environ: Mapping[str, str]) -> Iterator[tuple[KeyPath, str]]:
    """The `file:` references of a tree with their keys, variables expanded."""
    for path, reference in secrets_in(tree):
        if reference.startswith("file:"):
            yield path, _REFERENCE.sub(lambda match: environ.get(match["variable"] or "", match[0]), reference)


def resolve(tree: Any, environ: Mapping[str, str], secrets: References | None = None) -> Any:
    """The tree without references. Raises InvalidKeyError, which shows no values, if that is not possible.

    `${VAR}`, `${file:...}` and `${cmd:...}` are replaced in every string; a whole `file:...` or `cmd:...` only under a
    key that holds a secret. Without `secrets`, files and commands stay as written.
    """
    for path, value in walk(tree):
        for place, text in ((path[:-1], path[-1]), (path, value)):
            if isinstance(text, str) and text != text.encode("utf-8", "replace").decode():
                raise InvalidKeyError(place, "contains half a character (a lone surrogate)")
    if secrets is not None:
        secrets.follow({reference for _, reference in secrets_in(tree) if reference.startswith("cmd:")})
    return _resolve(tree, (), environ, secrets)


def _resolve(value: Any, path: KeyPath, environ: Mapping[str, str], secrets: References | None) -> Any:
    def secret(reference: str) -> str:
        if secrets is None:
            return reference
        try:
            return secrets.secret(reference)
        except SecretUnavailableError as error:
            raise InvalidKeyError(path, str(error)) from None

    def expand(match: re.Match[str]) -> str:
        variable = match["variable"]
        if not variable:
            return match[0] if secrets is None else secret(match["secret"])
        if variable not in environ:
            problem = f"needs the environment variable {variable}, which is not set. Set it, or write a value"
            raise InvalidKeyError(path, problem)
        return environ[variable]

    if isinstance(value, dict):
        return {key: _resolve(entry, (*path, key), environ, secrets) for key, entry in value.items()}
    if isinstance(value, list):
        return [_resolve(entry, (*path, index), environ, secrets) for index, entry in enumerate(value)]
    if not isinstance(value, str):
        return value
    if not is_pointer(path, value):
        return _REFERENCE.sub(expand, value)
    return secret(_REFERENCE.sub(expand, value) if value.startswith("file:") else value)


@dataclass(frozen=True, slots=True)
class Filled:
    """A tree with values from the environment, the variable of each filled key, and variables that match no key."""

    tree: dict[str, Any]
    variables: dict[KeyPath, str] = field(default_factory=dict)
    unknown_variables: dict[str, KeyPath] = field(default_factory=dict)


def fill(tree: Mapping[str, Any], root: Shape, environ: Mapping[str, str]) -> Filled:
    """Fill keys that the tree does not set; the variable of a single key wins over one of a whole section. Raises
    ConfigError, naming the variable, if one must hold JSON but does not.

    Only variables that begin with a section name count: NANOBOT_MAX_CONCURRENT_REQUESTS and the like are not ours.
    """
    filled = Filled(deepcopy(dict(tree)))
    names = (name for name in environ if name.upper().startswith(PREFIX))
    for variable in sorted(names, key=lambda name: (-name.count("__"), name)):
        path, shape = root.locate(variable[len(PREFIX) :].lower().split("__"))
        if path[0] not in root.keys or (len(path) == 1 and not environ[variable].lstrip().startswith("{")):
            continue
        if shape is None:
            filled.unknown_variables[variable] = path
        else:
            _fill_missing(filled, path, _parse_value(variable, environ[variable], shape), variable)
    return filled


def _parse_value(variable: str, text: str, shape: Shape) -> Any:
    """The value of a variable: JSON for containers, else the string, which pydantic parses."""
    if not (shape.section or shape.container):
        return text
    expected, words = (list, "a list") if shape.container == "list" else (dict, "an object")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, expected):
        raise ConfigError(f"{variable} must contain {words}, as JSON. Correct it, or unset it.")
    return in_camel_case(value, shape)


def _fill_missing(filled: Filled, path: KeyPath, value: Any, variable: str) -> None:
    """Set a value where the tree has none; objects are merged."""
    present = get(filled.tree, path)
    if present is MISSING:
        put(filled.tree, path, value)  # not if the file has an invalid value above it, which is reported elsewhere
        filled.variables[path] = variable
    elif isinstance(present, dict) and isinstance(value, dict):
        for name, entry in value.items():
            _fill_missing(filled, (*path, name), entry, variable)
