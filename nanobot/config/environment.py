"""Values from outside the file: `${VAR}`, `file:` and `cmd:` references, and NANOBOT_ variables for missing keys.

pydantic-settings' own source of variables is not used: it also reads names without the prefix (`API`, `TOOLS`), knows
no keys of custom providers, and cannot say which variable a value is from.
"""

import json
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from nanobot.config.keypath import MISSING, KeyPath, get, nest, put, walk
from nanobot.config.section import Shape, in_camel_case
from nanobot.errors import ConfigError, SecretUnavailableError
from nanobot.security.references import WITHIN, References, is_reference, references_in
from nanobot.security.secrets import is_secret_name

PREFIX = "NANOBOT_"
_REFERENCE = re.compile(rf"\$\{{(?:(?P<variable>[A-Za-z_][A-Za-z0-9_]*)|(?P<secret>{WITHIN}))\}}")


class UnresolvedTextError(ValueError):
    """A string in the file that cannot be used; knows its key."""

    def __init__(self, path: KeyPath, what: str) -> None:
        super().__init__(what)
        self.path = path


def is_pointer(path: KeyPath, written: str) -> bool:
    """Whether the whole string refers to a secret. Under other keys, `file:` may be the start of a URL."""
    return is_reference(written) and bool(path) and is_secret_name(str(path[-1]))


def refers_elsewhere(path: KeyPath, written: str) -> bool:
    """Whether a string is, or contains, a reference."""
    return is_pointer(path, written) or ("${" in written and _REFERENCE.search(written) is not None)


def variables_in(written: str) -> list[str]:
    """The environment variables that a string refers to."""
    return [match["variable"] for match in _REFERENCE.finditer(written) if match["variable"]]


def strings_in(tree: Any) -> Iterator[tuple[KeyPath, str]]:
    """All strings of a tree, with their keys."""
    return ((path, value) for path, value in walk(tree) if isinstance(value, str))


def secret_files(tree: Any, environ: Mapping[str, str]) -> Iterator[tuple[KeyPath, str]]:
    """The `file:` references of a tree with their keys, variables expanded."""
    for path, text in strings_in(tree):
        for reference in references_in(text, whole=is_pointer(path, text)):
            if reference.startswith("file:"):
                yield path, _REFERENCE.sub(lambda match: environ.get(match["variable"] or "", match[0]), reference)


def resolve(tree: Any, environ: Mapping[str, str], secrets: References | None = None) -> Any:
    """The tree without references. Raises UnresolvedTextError, which shows no values, if that is not possible.

    `${VAR}`, `${file:...}` and `${cmd:...}` are replaced in every string; a whole `file:...` or `cmd:...` only under a
    key that holds a secret. Without `secrets`, files and commands stay as written.
    """
    if secrets is not None:
        used = {found for path, text in strings_in(tree) for found in references_in(text, whole=is_pointer(path, text))}
        secrets.follow({reference for reference in used if reference.startswith("cmd:")})
    resolved = deepcopy(tree)
    for path, value in walk(tree):
        for where, text in ((path[:-1], path[-1]), (path, value)):
            if isinstance(text, str) and text != text.encode("utf-8", "replace").decode():
                raise UnresolvedTextError(where, "contains half a character (a lone surrogate)")
        if isinstance(value, str) and refers_elsewhere(path, value):
            put(resolved, path, _resolve_text(value, path, environ, secrets))
    return resolved


def _resolve_text(text: str, path: KeyPath, environ: Mapping[str, str], secrets: References | None) -> str:
    def expand(match: re.Match[str]) -> str:
        variable = match["variable"]
        if not variable:
            return match[0] if secrets is None else _secret(match["secret"], path, secrets)
        if variable not in environ:
            raise UnresolvedTextError(
                path, f"needs the environment variable {variable}, which is not set. Set it, or write a value"
            )
        return environ[variable]

    if not is_pointer(path, text):
        return _REFERENCE.sub(expand, text)
    if text.startswith("file:"):
        text = _REFERENCE.sub(expand, text)
    return text if secrets is None else _secret(text, path, secrets)


def _secret(reference: str, path: KeyPath, secrets: References) -> str:
    try:
        return secrets.secret(reference)
    except SecretUnavailableError as error:
        raise UnresolvedTextError(path, str(error)) from None


@dataclass(frozen=True, slots=True)
class Filled:
    """A tree with values from the environment, the variable of each filled key, and variables that match no key."""

    tree: dict[str, Any]
    variables: dict[KeyPath, str]
    unknown_variables: dict[str, KeyPath]


def fill(tree: Mapping[str, Any], section: type[BaseModel], environ: Mapping[str, str]) -> Filled:
    """Fill keys that the tree does not set. Raises ConfigError, naming the variable, if one must hold JSON but does
    not.

    Only variables that begin with a section name count: NANOBOT_MAX_CONCURRENT_REQUESTS and the like are not ours.
    """
    root, values = Shape("", section), {}
    unknown_variables: dict[str, KeyPath] = {}
    for variable in sorted(name for name in environ if name.upper().startswith(PREFIX)):
        parts = tuple(variable[len(PREFIX) :].lower().split("__"))
        *_, (path, _) = walk(in_camel_case(nest(parts, ""), root))  # the deepest key is the only one
        if path[0] not in root.keys or (len(path) == 1 and not environ[variable].lstrip().startswith("{")):
            continue
        shape: Shape | None = root
        for name in path:
            shape = shape.child(name) if shape else None
        if shape is None:
            unknown_variables[variable] = path
        else:
            values[variable] = path, _parse_value(variable, environ[variable], shape)
    filled = Filled(deepcopy(dict(tree)) if values else dict(tree), {}, unknown_variables)
    for variable, (path, value) in values.items():
        _fill_missing(filled, path, value, variable)
    return filled


def _parse_value(variable: str, text: str, shape: Shape) -> Any:
    """The value of a variable: JSON for containers, else the string, which pydantic parses."""
    if shape.is_text:
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{variable} must contain JSON. Correct it, or unset it.") from error
    expected: tuple[type, ...] = (dict, list)
    words = "a list or an object"
    if shape.section is not None:
        expected, words = ((list,), "a list") if shape.container == "list" else ((dict,), "an object")
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
