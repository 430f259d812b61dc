"""A command line as the shell takes it apart: programs with their words, whatever quotes and operators stand around.

It follows the grammar of POSIX and bash as far as one can without running anything: quotes of all kinds,
here-documents, pipes and lists, groups, functions, substitutions, and variables that were set in the same line.
https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from nanobot.security.shell.scanning import ansi_quoted, behind_bracket, end_of, in_braces, next_substitution

_DEEPEST = 40
_LONGEST = 200_000
_RESERVED = frozenset({
    "if", "then", "else", "elif", "fi", "do", "done", "while", "until", "{", "}", "!", "time", "coproc", "[[", "]]",
})  # fmt: skip
_REDIRECT = re.compile(r"(\d*|\{\w+\})(<<<|<<-|<<|<>|<&|>>|>\||>&|&>>|&>|<|>)")
_ASSIGNS = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=")
_NO_ARGUMENTS = re.compile(r"\(\s*\)")
_PLAIN = re.compile(r"[^\s;&|()<>\\'\"$`{]+|\{|\s")
_PLAIN_IN_QUOTES = re.compile(r"[^\"\\$`]+")
_VARIABLE = re.compile(r"\$(\w+|[@*#?$!-])")
_NAMES = re.compile(r"(?<![\w$])[A-Za-z_]|\$")
_COMPUTED = re.compile(r"@[A-Za-z]\Z|\[(?![\d@*]+\])|\A\w+:(?![-=+?])")
"""Parameters whose value is run, or computed as arithmetic is."""
_CASE = re.compile(r"\bcase\b")
_END = frozenset(" \t\n;&|()<>")


@dataclass(frozen=True, slots=True)
class Redirect:
    """Where a command's input comes from or its output goes. The target of a here-document is its text."""

    operator: str
    target: str

    @property
    def writes(self) -> bool:
        """Whether the target is a file that is written."""
        plain = not (self.operator == ">&" and (self.target.isdigit() or self.target == "-"))
        return ">" in self.operator and plain


@dataclass(frozen=True, slots=True)
class Command:
    """One program with its words, unquoted; the first names it. `text` is what stood in the line."""

    argv: tuple[str, ...]
    redirects: tuple[Redirect, ...] = ()
    text: str = ""
    fed_by: tuple["Command", ...] = ()
    """What stands before it in its pipe, the nearest last."""
    inside: str = ""
    """The function in which it stands."""
    background: bool = False
    substituted: tuple["Command", ...] = ()
    """The commands whose output stands in its words."""

    @property
    def name(self) -> str:
        """The program, without its folder."""
        return self.argv[0].rpartition("/")[2] if self.argv else ""


@dataclass(frozen=True, slots=True)
class Line:
    """All commands of a line, those inside others too, in the order in which they stand."""

    commands: tuple[Command, ...]
    whole: bool = True
    """Whether all of it was understood; an open quote leaves a rest that the shell would refuse as well."""
    sets: bool = False
    """Whether it sets variables: `PATH` and many others decide what a program of a harmless name really runs."""


@dataclass(slots=True)
class _Found:
    commands: list[Command] = field(default_factory=list)
    whole: bool = True
    sets: bool = False


def read_line(text: str, variables: Mapping[str, str] | None = None) -> Line:
    """Take a line apart. Never raises: what cannot be understood is left out, and said."""
    found = _Found(whole=len(text) <= _LONGEST)
    _Reader(text[:_LONGEST], dict(variables or {}), found, 0).read()
    return Line(tuple(found.commands), found.whole, found.sets)


class _Reader:
    """One text, read from left to right. Inner texts get a reader of their own, one level deeper."""

    def __init__(self, text: str, variables: dict[str, str], found: _Found, depth: int, function: str = "") -> None:
        self._text = text
        self._at = 0
        self._variables = variables
        self._found = found
        self._depth = depth
        self._function = function
        self._pipe: list[Command] = []
        self._documents: list[tuple[str, bool, bool, int]] = []
        self._words: list[str] = []
        self._redirects: list[Redirect] = []
        self._inner: list[Command] = []
        self._began = 0

    def read(self) -> None:
        if self._depth > _DEEPEST:
            self._found.whole = False
            return
        while self._at < len(self._text):
            self._step()
        self._end()

    def _step(self) -> None:
        char = self._text[self._at]
        if char in " \t" or self._text.startswith("\\\n", self._at):
            self._at += 1 if char != "\\" else 2
        elif char == "#":
            self._at = end_of(self._text, "\n", self._at)
        elif char == "\n":
            self._end()
            self._at += 1
            self._read_documents()
        elif (redirect := _REDIRECT.match(self._text, self._at)) and not self._is_process(redirect):
            self._read_redirect(redirect)
        elif char in ";&|()":
            self._read_operator(char)
        else:
            self._read_word()

    def _is_process(self, redirect: re.Match[str]) -> bool:
        return redirect[0] in "<>" and self._text.startswith("(", redirect.end())

    def _read_operator(self, char: str) -> None:
        two = self._text[self._at : self._at + 2]
        if char == "(" and len(self._words) == 1 and _NO_ARGUMENTS.match(self._text, self._at):
            self._function = self._words.pop()  # what follows is its body
            self._at = end_of(self._text, ")", self._at) + 1
            return
        if char == "(" and two == "((" and not self._words:
            self._read_arithmetic()
            return
        pipes = char == "|" and two != "||"
        self._end(pipes=pipes, background=char == "&" and two != "&&")
        self._at += 2 if two in ("&&", "||", ";;", "|&") else 1

    def _read_redirect(self, match: re.Match[str]) -> None:
        self._at = match.end()
        operator = match[2]
        while self._text[self._at : self._at + 1] in (" ", "\t"):
            self._at += 1
        quoted = self._text[self._at : self._at + 1] in ("'", '"', "\\")
        words = self._word() if self._at < len(self._text) and self._text[self._at] not in "\n;|()" else []
        target = words[0] if words else ""
        if operator in ("<<", "<<-"):
            self._documents.append((target, operator == "<<-", quoted, len(self._redirects)))
        self._redirects.append(Redirect(operator, target))

    def _read_word(self) -> None:
        if not self._words and not self._redirects:
            self._began = self._at
        start = self._at
        words = self._word()
        raw = self._text[start : self._at]
        if not self._words and len(words) == 1:
            if words[0] in _RESERVED and raw == words[0]:
                return
            if _ASSIGNS.match(raw):
                name, _, value = words[0].partition("=")
                self._variables[name.rstrip("+")] = value
                self._found.sets = True
                return
            if raw in ("for", "select", "case"):
                self._skip_header()
                return
            if raw == "function":
                self._skip_spaces()
                self._function = "".join(self._word())
                return
        self._words += words

    def _skip_header(self) -> None:
        """`for x in words`, `case word in`: the words are no command. A loop's variable may be any of them."""
        self._found.sets = True
        self._skip_spaces()
        name = "".join(self._word())
        self._skip_spaces()
        if self._text.startswith("in", self._at):
            self._at += 2
            values: list[str] = []
            while self._at < len(self._text) and self._text[self._at] not in ";\n":
                before = self._at
                self._skip_spaces()
                if self._at < len(self._text) and self._text[self._at] not in ";\n)&|(":
                    values += self._word()
                if self._at == before:
                    break
            if values:
                self._variables[name] = values[0]

    def _skip_spaces(self) -> None:
        while self._text[self._at : self._at + 1] in (" ", "\t"):
            self._at += 1

    def _read_documents(self) -> None:
        documents, self._documents = self._documents, []
        for word, strips, quoted, _ in documents:
            lines = []
            while self._at < len(self._text):
                end = end_of(self._text, "\n", self._at)
                line = self._text[self._at : end]
                self._at = end + 1
                if (line.lstrip("\t") if strips else line) == word:
                    break
                lines.append(line)
            body = "\n".join(lines)
            if not quoted:
                self._read_inner_of(body)
            self._give_document(word, body)
        self._inner = []

    def _give_document(self, word: str, body: str) -> None:
        """Into the command whose document it is: the newest that waits for one of this name."""
        for at in range(len(self._found.commands) - 1, -1, -1):
            command = self._found.commands[at]
            for index, redirect in enumerate(command.redirects):
                if redirect.operator in ("<<", "<<-") and redirect.target == word:
                    redirects = list(command.redirects)
                    redirects[index] = Redirect("<<<", body)
                    self._put(at, replace(command, redirects=tuple(redirects)))
                    return

    def _put(self, at: int, command: Command) -> None:
        """In the place of what stood there, also in the pipes that begin with it."""
        old, commands = self._found.commands[at], self._found.commands
        commands[at] = command
        for later in range(at + 1, len(commands)):
            if any(feeder is old for feeder in commands[later].fed_by):
                fed_by = tuple(command if feeder is old else feeder for feeder in commands[later].fed_by)
                commands[later] = replace(commands[later], fed_by=fed_by)

    def _end(self, *, pipes: bool = False, background: bool = False) -> None:
        """A command is over, if there was one."""
        if self._words or self._redirects:
            text = self._text[self._began : self._at].strip()
            command = Command(
                tuple(self._words), tuple(self._redirects), text, tuple(self._pipe), self._function, background,
                tuple(self._inner),
            )  # fmt: skip
            self._found.commands.append(command)
            self._pipe.append(command)
        if not pipes:
            self._pipe = []
        self._words, self._redirects, self._inner = [], [], []

    def _word(self) -> list[str]:
        """The next word, unquoted; several where braces or an unquoted variable make several of it."""
        parts: list[str] = [""]
        spread: list[list[str]] = []
        braces = False
        while (self._at < len(self._text) and self._text[self._at] not in _END) or self._at_process():
            char = self._text[self._at]
            if char in "<>":
                self._at += 1
                parts[-1] += self._bracketed("(", ")")
            elif char == "\\":
                parts[-1] += self._text[self._at + 1 : self._at + 2].replace("\n", "")
                self._at += 2
            elif char == "'":
                end = self._quote_end("'")
                parts[-1] += self._text[self._at + 1 : end]
                self._at = end + 1
            elif char == '"':
                parts[-1] += self._double()
            elif self._text.startswith("$'", self._at):
                said, self._at = ansi_quoted(self._text, self._at + 2)
                parts[-1] += said
            elif char in "$`":
                value = self._expansion()
                pieces = re.split(r"\s+", value) if not value.startswith("$") else [value]
                parts[-1] += pieces[0]
                parts += pieces[1:]
            else:
                braces = braces or char == "{"
                plain = _PLAIN.match(self._text, self._at)
                parts[-1] += plain[0] if plain else char
                self._at = plain.end() if plain else self._at + 1
        spread = [in_braces(part) if braces else [part] for part in parts]
        return [word for words in spread for word in words if word or len(parts) == 1]

    def _at_process(self) -> bool:
        return self._text[self._at : self._at + 2] in ("<(", ">(")

    def _quote_end(self, quote: str) -> int:
        end = self._text.find(quote, self._at + 1)
        if end < 0:
            self._found.whole = False
            return len(self._text)
        return end

    def _double(self) -> str:
        self._at += 1
        said = ""
        while self._at < len(self._text) and self._text[self._at] != '"':
            char = self._text[self._at]
            if char == "\\":
                after = self._text[self._at + 1 : self._at + 2]
                said += "" if after == "\n" else after if after in '$`"\\' else char + after
                self._at += 2
            elif char in "$`":
                said += self._expansion()
            else:
                plain = _PLAIN_IN_QUOTES.match(self._text, self._at)
                said += plain[0] if plain else char
                self._at = plain.end() if plain else self._at + 1
        self._found.whole = self._found.whole and self._at < len(self._text)
        self._at += 1
        return said

    def _expansion(self) -> str:
        """What `$...` or backticks stand for, as far as it is known; else as it is written."""
        if self._text[self._at] == "`":
            end = self._quote_end("`")
            inner = self._text[self._at + 1 : end]
            self._at = end + 1
            return self._substitution(inner)
        after = self._text[self._at + 1 : self._at + 2]
        if self._text.startswith("$((", self._at):
            start = self._at
            self._at += 1
            self._read_arithmetic()
            return self._text[start : self._at]
        if after == "(":
            self._at += 1
            return self._bracketed("(", ")")
        if after == "{":
            start, end = self._at, behind_bracket(self._text, self._at + 1, "{", "}")
            inner = self._text[start + 2 : end - 1]
            self._at = end
            return self._parameter(inner)
        match = _VARIABLE.match(self._text, self._at)
        if match is None:
            self._at += 1
            return "$"
        self._at = match.end()
        return self._value(match[1]) if match[1] in self._known() else match[0]

    def _read_arithmetic(self) -> None:
        """From its first bracket on. A name in it may stand for a text that is computed in turn, and runs commands."""
        start = self._at
        self._at = behind_bracket(self._text, start, "(", ")")
        inner = self._text[start : self._at]
        self._read_inner_of(inner)
        self._found.whole = self._found.whole and _NAMES.search(inner) is None

    def _parameter(self, inner: str) -> str:
        name = re.match(r"\w+", inner)
        self._found.whole = self._found.whole and _COMPUTED.search(inner) is None
        self._read_inner_of(inner)
        if name is None:
            return f"${{{inner}}}"
        if name[0] in self._known():
            return self._value(name[0])
        default = re.match(r"\w+:?[-=](.*)", inner, re.DOTALL)
        return default[1] if default else f"${{{inner}}}"

    def _known(self) -> Mapping[str, str]:
        return {"IFS": " ", **self._variables}

    def _value(self, name: str) -> str:
        return self._known()[name]

    def _bracketed(self, opening: str, closing: str) -> str:
        start = self._at
        self._at = behind_bracket(self._text, self._at, opening, closing)
        inner = self._text[start + 1 : self._at - 1]
        self._found.whole = self._found.whole and _CASE.search(inner) is None  # its brackets close nothing
        return self._substitution(inner)

    def _substitution(self, inner: str) -> str:
        """Commands in the middle of a word: they run, and their output stands there. An echo's is known."""
        before = len(self._found.commands)
        _Reader(inner, self._variables, self._found, self._depth + 1, self._function).read()
        ran = self._found.commands[before:]
        self._inner += ran
        if len(ran) == 1 and ran[0].name in ("echo", "printf") and not ran[0].redirects:
            return " ".join(word for word in ran[0].argv[1:] if word not in ("-n", "-e"))
        return f"$({inner})"

    def _read_inner_of(self, text: str) -> None:
        """The substitutions inside a text whose other words are no commands."""
        at = 0
        while (at := next_substitution(text, at)) >= 0:
            if text[at] == "`":
                end = end_of(text, "`", at + 1)
                self._substitution(text[at + 1 : end])
                at = end + 1
            else:
                end = behind_bracket(text, at + 1, "(", ")")
                self._substitution(text[at + 2 : end - 1])
                at = end
