"""Values from outside the file: `${VAR}`, `file:` and `cmd:` references, and NANOBOT_ variables for missing keys."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from nanobot.config import keys
from nanobot.config.loaded_from import KeyPath
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


@dataclass(slots=True)
class Resolved:
    """A tree without references, and the strings that contained them."""

    tree: Any
    references: dict[KeyPath, str] = field(default_factory=dict)


def resolve(tree: Any, environ: Mapping[str, str], secrets: References | None = None) -> Resolved:
    """Replace references by their values. Raises UnresolvedTextError, which shows no values, if that is not possible.

    `${VAR}`, `${file:...}` and `${cmd:...}` are replaced in every string; a whole `file:...` or `cmd:...` only under a
    key that holds a secret. Without `secrets`, files and commands stay as written.
    """
    if secrets is not None:
        secrets.follow(
            {
                reference
                for path, text in strings_in(tree)
                for reference in _references(path, text)
                if reference.startswith("cmd:")
            }
        )
    resolved = Resolved(None)
    resolved.tree = _resolve(tree, (), _Sources(environ, secrets), resolved.references)
    return resolved


def is_pointer(path: KeyPath, written: str) -> bool:
    """Whether the whole string refers to a secret. Under other keys, `file:` may be the start of a URL."""
    return is_reference(written) and bool(path) and is_secret_name(str(path[-1]))


def variables_in(written: str) -> list[str]:
    """The environment variables that a string refers to."""
    return [match["variable"] for match in _REFERENCE.finditer(written) if match["variable"]]


@dataclass(frozen=True, slots=True)
class _Sources:
    """Sources of values outside the file. Without `secrets`, references to them stay as they are."""

    environ: Mapping[str, str]
    secrets: References | None

    def text(self, written: str, path: KeyPath) -> str:
        """The value of a string. Raises UnresolvedTextError."""
        if not is_pointer(path, written):
            return _REFERENCE.sub(lambda match: self._expand(match, path), written)
        if written.startswith("file:"):
            written = _REFERENCE.sub(lambda match: self._expand(match, path), written)
        return self._secret(written, path, default=written)

    def _expand(self, match: re.Match[str], path: KeyPath) -> str:
        variable, secret = match["variable"], match["secret"]
        if secret:
            return self._secret(secret, path, default=match[0])
        if variable not in self.environ:
            raise UnresolvedTextError(
                path, f"needs the environment variable {variable}, which is not set. Set it, or write a value"
            )
        return self.environ[variable]

    def _secret(self, reference: str, path: KeyPath, *, default: str) -> str:
        if self.secrets is None:
            return default
        try:
            return self.secrets.secret(reference)
        except SecretUnavailableError as error:
            raise UnresolvedTextError(path, str(error)) from None


def strings_in(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """All strings of a tree, with their keys."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from strings_in(entry, (*path, key))
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from strings_in(entry, (*path, index))
    elif isinstance(value, str):
        yield path, value


def secret_files(tree: Any, environ: Mapping[str, str]) -> Iterator[tuple[KeyPath, str]]:
    """The `file:` references of a tree with their keys, variables expanded."""
    for path, text in strings_in(tree):
        for reference in _references(path, text):
            if reference.startswith("file:"):
                yield path, _REFERENCE.sub(lambda match: environ.get(match["variable"] or "", match[0]), reference)


def _references(path: KeyPath, text: str) -> list[str]:
    return references_in(text, whole=is_pointer(path, text))


def _resolve(value: Any, path: KeyPath, sources: _Sources, references: dict[KeyPath, str]) -> Any:
    if isinstance(value, dict):
        return {
            _reject_surrogates(key, path): _resolve(entry, (*path, key), sources, references)
            for key, entry in value.items()
        }
    if isinstance(value, list):
        return [_resolve(entry, (*path, index), sources, references) for index, entry in enumerate(value)]
    if not isinstance(value, str):
        return value
    if is_pointer(path, _reject_surrogates(value, path)) or ("${" in value and _REFERENCE.search(value)):
        references[path] = value
        return sources.text(value, path)
    return value


def _reject_surrogates(text: str, path: KeyPath) -> str:
    """Reject a lone surrogate, which can be neither sent nor saved."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UnresolvedTextError(path, "contains half a character (a lone surrogate)") from error
    return text


@dataclass(frozen=True, slots=True)
class Filled:
    """A tree with values from the environment, the keys that were filled, and variables that match no key."""

    tree: dict[str, Any]
    variables: dict[KeyPath, str]
    unknown_variables: tuple[str, ...]


def fill(tree: Mapping[str, Any], section: type[BaseModel], environ: Mapping[str, str]) -> Filled:
    """Fill keys that the tree does not set. Raises ConfigError, naming the variable, if one must hold JSON but does
    not.

    Only variables that begin with a section name count: NANOBOT_MAX_CONCURRENT_REQUESTS and the like are not ours.
    """
    result = dict(tree)
    variables: dict[KeyPath, str] = {}
    unknown_variables: list[str] = []
    for variable in sorted(name for name in environ if name.upper().startswith(PREFIX)):
        parts = variable[len(PREFIX) :].lower().split("__")
        first = next((shape for shape in keys.shapes(section).values() if shape.name == parts[0]), None)
        if first is None or (len(parts) == 1 and not environ[variable].lstrip().startswith("{")):
            continue
        path, shape = _find_key(parts, section)
        if shape is None:
            unknown_variables.append(variable)
            continue
        value = _parse_value(variable, environ[variable], shape)
        _set_missing(result, path, value, variable, variables)
    return Filled(result, variables, tuple(unknown_variables))


def as_tree(variable: str) -> dict[str, Any]:
    """The tree that a variable stands for, whether or not its keys are known."""
    first, *rest = variable[len(PREFIX) :].lower().split("__")
    tree: Any = ""
    for part in reversed(rest):
        tree = {part: tree}
    return {first: tree}


def _find_key(parts: list[str], section: type[BaseModel]) -> tuple[KeyPath, keys.Shape | None]:
    """The key that a variable stands for, if any."""
    path: list[str] = []
    inner: type[BaseModel] | None = section
    shape: keys.Shape | None = None
    in_map = False
    for part in parts:
        if inner is None:
            return (), None
        if in_map:
            path.append(part)
            shape, in_map = keys.Shape(part, inner, "", is_text=False), False
            continue
        name, shape = next(
            ((name, known) for name, known in keys.shapes(inner).items() if known.name == part), (part, None)
        )
        if shape is None:
            custom_section = keys.entry_section(inner)
            if custom_section is None:
                return (), None
            shape = keys.Shape(part, custom_section, "", is_text=False)
        path.append(name)
        inner, in_map = shape.section, shape.container == "map"
        if shape.container == "list":
            inner = None
    return tuple(path), shape


def _parse_value(variable: str, text: str, shape: keys.Shape) -> Any:
    """The value of a variable: JSON for containers, else the string, which pydantic parses."""
    if shape.is_text:
        return text
    expected_type = list if shape.container == "list" else (dict, list) if shape.section is None else dict
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{variable} must contain JSON. Correct it, or unset it.") from error
    if not isinstance(value, expected_type):
        kind = "a list" if expected_type is list else "an object" if expected_type is dict else "a list or an object"
        raise ConfigError(f"{variable} must contain {kind}, as JSON. Correct it, or unset it.")
    return keys.in_camel_case(value, shape.section) if isinstance(value, dict) and shape.section else value


def _set_missing(tree: dict[str, Any], path: KeyPath, value: Any, variable: str, variables: dict[KeyPath, str]) -> None:
    """Set a value where the tree has none, merging objects; parents are copied before they change."""
    holder = tree
    for name in path[:-1]:
        inner = holder.get(str(name), {})
        if not isinstance(inner, dict):
            return  # the file has an invalid value there, reported elsewhere
        holder[str(name)] = holder = dict(inner)
    _set_missing_entry(holder, path, value, variable, variables)


def _set_missing_entry(
    holder: dict[str, Any], path: KeyPath, value: Any, variable: str, variables: dict[KeyPath, str]
) -> None:
    key = str(path[-1])
    if key not in holder:
        holder[key] = value
        variables[path] = variable
    elif isinstance(value, dict) and isinstance(holder[key], dict):
        holder[key] = dict(holder[key])
        for name, entry in value.items():
            _set_missing_entry(holder[key], (*path, name), entry, variable, variables)
