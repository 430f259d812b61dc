"""What stands elsewhere: `${VAR}`, `file:` and `cmd:` in texts of the file, NANOBOT_ variables for keys it lacks."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from nanobot.config import keys
from nanobot.config.loaded_from import KeyPath
from nanobot.errors import ConfigError
from nanobot.security.references import WITHIN, References, SecretUnavailableError, is_reference, references_in
from nanobot.security.secrets import is_telling

PREFIX = "NANOBOT_"
_REFERENCE = re.compile(rf"\$\{{(?:(?P<variable>[A-Za-z_][A-Za-z0-9_]*)|(?P<secret>{WITHIN}))\}}")


class BadTextError(ValueError):
    """A text of the file that cannot be used; knows its key."""

    def __init__(self, path: KeyPath, what: str) -> None:
        super().__init__(what)
        self.path = path


@dataclass(slots=True)
class Resolved:
    """A tree without references, and the texts that held them."""

    tree: Any
    references: dict[KeyPath, str] = field(default_factory=dict)


def resolve(tree: Any, environ: Mapping[str, str], secrets: References | None = None) -> Resolved:
    """Put in what stands elsewhere. Raises BadTextError for what is not there; never says a value.

    `${VAR}`, `${file:...}` and `${cmd:...}` are followed in every text; one that is `file:...` or `cmd:...` as a whole,
    where its key says that it is a secret. Without `secrets`, files and commands stay as they are written.
    """
    if secrets is not None:
        secrets.follow(
            {one for path, text in texts_in(tree) for one in _pointers(path, text) if one.startswith("cmd:")}
        )
    resolved = Resolved(None)
    resolved.tree = _resolve(tree, (), _Sources(environ, secrets), resolved.references)
    return resolved


def is_pointer(path: KeyPath, written: str) -> bool:
    """Whether the whole text points at a secret. Under any other key, `file:` may be the beginning of an address."""
    return is_reference(written) and bool(path) and is_telling(str(path[-1]))


def variables_in(written: str) -> list[str]:
    """The variables of the environment that a text takes in."""
    return [match["variable"] for match in _REFERENCE.finditer(written) if match["variable"]]


@dataclass(frozen=True, slots=True)
class _Sources:
    """Where what is not in the file comes from. Without `secrets`, what points at one stays as it is."""

    environ: Mapping[str, str]
    secrets: References | None

    def text(self, written: str, path: KeyPath) -> str:
        """What a text stands for. Raises BadTextError."""
        if not is_pointer(path, written):
            return _REFERENCE.sub(lambda match: self._entry(match, path), written)
        if written.startswith("file:"):
            written = _REFERENCE.sub(lambda match: self._entry(match, path), written)
        return self._secret(written, path, otherwise=written)

    def _entry(self, match: re.Match[str], path: KeyPath) -> str:
        variable, secret = match["variable"], match["secret"]
        if secret:
            return self._secret(secret, path, otherwise=match[0])
        if variable not in self.environ:
            raise BadTextError(
                path, f"needs the environment variable {variable}, which is not set. Set it, or write a value"
            )
        return self.environ[variable]

    def _secret(self, reference: str, path: KeyPath, *, otherwise: str) -> str:
        if self.secrets is None:
            return otherwise
        try:
            return self.secrets.secret(reference)
        except SecretUnavailableError as error:
            raise BadTextError(path, str(error)) from None


def texts_in(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Every text of a tree, with its key."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from texts_in(entry, (*path, key))
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from texts_in(entry, (*path, index))
    elif isinstance(value, str):
        yield path, value


def secret_files(tree: Any, environ: Mapping[str, str]) -> Iterator[tuple[KeyPath, str]]:
    """The `file:` references of a tree, each with its key, variables filled in."""
    for path, text in texts_in(tree):
        for one in _pointers(path, text):
            if one.startswith("file:"):
                yield path, _REFERENCE.sub(lambda match: environ.get(match["variable"] or "", match[0]), one)


def _pointers(path: KeyPath, text: str) -> list[str]:
    return references_in(text, whole=is_pointer(path, text))


def _resolve(value: Any, path: KeyPath, sources: _Sources, found: dict[KeyPath, str]) -> Any:
    if isinstance(value, dict):
        return {_sound(key, path): _resolve(entry, (*path, key), sources, found) for key, entry in value.items()}
    if isinstance(value, list):
        return [_resolve(entry, (*path, index), sources, found) for index, entry in enumerate(value)]
    if not isinstance(value, str):
        return value
    if is_pointer(path, _sound(value, path)) or ("${" in value and _REFERENCE.search(value)):
        found[path] = value
        return sources.text(value, path)
    return value


def _sound(text: str, path: KeyPath) -> str:
    """Refuse half a character (a lone surrogate): it could be neither sent nor saved."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadTextError(path, "holds half a character (a lone surrogate)") from error
    return text


@dataclass(frozen=True, slots=True)
class Filled:
    """A tree with the environment in its gaps; the keys it filled; variables that look like keys but are none."""

    tree: dict[str, Any]
    variables: dict[KeyPath, str]
    strays: tuple[str, ...]


def fill(tree: Mapping[str, Any], section: type[BaseModel], environ: Mapping[str, str]) -> Filled:
    """Fill what the tree does not set. Raises ConfigError, naming the variable, where one holds no JSON but must.

    Only names that begin with a section of the config count: NANOBOT_MAX_CONCURRENT_REQUESTS and its like are not ours.
    """
    result = dict(tree)
    variables: dict[KeyPath, str] = {}
    strays: list[str] = []
    for variable in sorted(name for name in environ if name.upper().startswith(PREFIX)):
        parts = variable[len(PREFIX) :].lower().split("__")
        first = next((shape for shape in keys.shapes(section).values() if shape.name == parts[0]), None)
        if first is None or (len(parts) == 1 and not environ[variable].lstrip().startswith("{")):
            continue
        path, shape = _key_of(parts, section)
        if shape is None:
            strays.append(variable)
            continue
        value = _value(variable, environ[variable], shape)
        _put(result, path, value, variable, variables)
    return Filled(result, variables, tuple(strays))


def _key_of(parts: list[str], section: type[BaseModel]) -> tuple[KeyPath, keys.Shape | None]:
    """The key a variable stands for, if there is one."""
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
            own = keys.entry_section(inner)
            if own is None:
                return (), None
            shape = keys.Shape(part, own, "", is_text=False)
        path.append(name)
        inner, in_map = shape.section, shape.many == "map"
        if shape.many == "list":
            inner = None
    return tuple(path), shape


def _value(variable: str, text: str, shape: keys.Shape) -> Any:
    """The value in a variable: JSON where the key holds more than a word, else the text, which pydantic reads."""
    if shape.is_text:
        return text
    wanted = list if shape.many == "list" else (dict, list) if shape.section is None else dict
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{variable} must hold JSON. Correct it, or unset it.") from error
    if not isinstance(value, wanted):
        kind = "a list" if wanted is list else "an object" if wanted is dict else "a list or an object"
        raise ConfigError(f"{variable} must hold {kind}, as JSON. Correct it, or unset it.")
    return keys.in_camel_case(value, shape.section) if isinstance(value, dict) and shape.section else value


def _put(tree: dict[str, Any], path: KeyPath, value: Any, variable: str, variables: dict[KeyPath, str]) -> None:
    """Put a value where nothing stands, entry by entry; folders of the tree are copied before they change."""
    holder = tree
    for name in path[:-1]:
        inner = holder.get(str(name), {})
        if not isinstance(inner, dict):
            return  # the file has something else there: its own problem
        holder[str(name)] = holder = dict(inner)
    _put_entry(holder, path, value, variable, variables)


def _put_entry(holder: dict[str, Any], path: KeyPath, value: Any, variable: str, variables: dict[KeyPath, str]) -> None:
    key = str(path[-1])
    if key not in holder:
        holder[key] = value
        variables[path] = variable
    elif isinstance(value, dict) and isinstance(holder[key], dict):
        holder[key] = dict(holder[key])
        for name, entry in value.items():
            _put_entry(holder[key], (*path, name), entry, variable, variables)
