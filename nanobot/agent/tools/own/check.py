"""What a user's own tool may not reach for, by its syntax tree: processes, sockets, raw files, eval, import tricks.

A courtesy, not a wall: it keeps a model from writing such a tool by habit. Whoever means harm finds a way around it,
which is why these files are loaded only where the owner says so.
"""

import ast

_MODULES = {
    "subprocess": "processes",
    "multiprocessing": "processes",
    "pty": "processes",
    "socket": "sockets",
    "socketserver": "sockets",
    "ctypes": "native libraries",
    "cffi": "native libraries",
    "importlib": "import tricks",
    "runpy": "import tricks",
    "pkgutil": "import tricks",
    "imp": "import tricks",
    "zipimport": "import tricks",
    "builtins": "import tricks",
    "code": "texts that are run",
    "fileinput": "raw files",
    "mmap": "raw files",
}
_MEMBERS = {
    **dict.fromkeys(
        ("os.system", "os.popen", "os.startfile", "os.fork", "os.forkpty", "os.kill", "os.killpg"), "processes"
    ),
    **dict.fromkeys(("asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell"), "processes"),
    **dict.fromkeys(("asyncio.open_connection", "asyncio.start_server"), "sockets"),
    **dict.fromkeys(("os.open", "os.fdopen", "os.remove", "os.unlink", "os.rmdir", "os.removedirs"), "raw files"),
    **dict.fromkeys(
        ("os.rename", "os.replace", "os.truncate", "os.chmod", "os.chown", "os.link", "os.symlink"), "raw files"
    ),
    **dict.fromkeys(("shutil.rmtree", "shutil.move", "shutil.copyfile", "shutil.copy", "shutil.copytree"), "raw files"),
    **dict.fromkeys(("io.open", "io.FileIO", "codecs.open", "pathlib.Path", "pathlib.PosixPath"), "raw files"),
    **dict.fromkeys(("pathlib.WindowsPath", "tokenize.open", "gzip.open", "bz2.open", "lzma.open"), "raw files"),
    **dict.fromkeys(("sys.modules", "sys.meta_path", "sys.path_hooks", "sys._getframe"), "import tricks"),
    "asyncio.subprocess": "processes",
}
_FAMILIES = {"os.exec": "processes", "os.spawn": "processes", "os.posix_spawn": "processes"}
_BUILTINS = {
    "open": "raw files",
    "eval": "texts that are run",
    "exec": "texts that are run",
    "compile": "texts that are run",
    "__import__": "import tricks",
    "__builtins__": "import tricks",
    "__loader__": "import tricks",
    "__spec__": "import tricks",
    "globals": "import tricks",
    "breakpoint": "texts that are run",
}
_ATTRIBUTES = frozenset(
    {"__subclasses__", "__globals__", "__builtins__", "__loader__", "__mro__", "__bases__", "__code__", "__import__"}
)
_BY_NAME = frozenset({"getattr", "setattr", "delattr", "vars", "dir"})
_OPENED_WIDE = frozenset({name.split(".")[0] for name in _MEMBERS})
_INSTEAD = {
    "processes": "describe the command to the agent, which has exec",
    "sockets": "leave requests to web_fetch",
    "raw files": "leave files to read_file and write_file",
}


def refusals(source: str) -> list[str]:
    """Why this file is not loaded, a sentence each; empty where nothing is found. Never raises."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        return [f"Line {error.lineno or 1} is no Python: {error.msg}."]
    except (ValueError, RecursionError, MemoryError) as error:
        return [f"It cannot be read as Python: {error}."]
    look = _Look()
    try:
        look.visit(tree)
    except RecursionError:
        return ["It is nested too deeply to be looked through."]
    return list(dict.fromkeys(look.found))


class _Look(ast.NodeVisitor):
    """Goes through a file once; `_known` says what its names stand for, as far as imports tell."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._known: dict[str, str] = {}

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._judge(alias.name, node)
            self._known[alias.asname or alias.name.split(".")[0]] = (
                alias.name if alias.asname else alias.name.split(".")[0]
            )

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level:
            self._say(node, "a file beside it", "import tricks")
            return
        self._judge(module, node)
        for alias in node.names:
            if alias.name == "*" and module.split(".")[0] in _OPENED_WIDE:
                self._say(node, f"everything of {module}", "import tricks")
            self._judge(f"{module}.{alias.name}", node)
            self._known[alias.asname or alias.name] = f"{module}.{alias.name}"

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr in _ATTRIBUTES:
            self._say(node, node.attr, "import tricks")
        if (name := self._dotted(node)) is not None:
            self._judge(name, node)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load) and node.id in _BUILTINS:
            self._say(node, node.id, _BUILTINS[node.id])

    def visit_Call(self, node: ast.Call) -> None:
        """A member by its name: of a module that would be a way around all of this."""
        if isinstance(node.func, ast.Name) and node.func.id in _BY_NAME and node.args:
            first = self._dotted(node.args[0])
            if first is not None:
                self._say(node, f"{node.func.id} on the module {first}", "import tricks")
        self.generic_visit(node)

    def _dotted(self, node: ast.expr) -> str | None:
        """`os.path.join` for what a chain of names stands for; None where it does not begin at an import."""
        if isinstance(node, ast.Name):
            return self._known.get(node.id)
        if isinstance(node, ast.Attribute):
            before = self._dotted(node.value)
            return f"{before}.{node.attr}" if before is not None else None
        return None

    def _judge(self, name: str, node: ast.AST) -> None:
        top = name.split(".")[0]
        kind = _MODULES.get(top) or _MEMBERS.get(name)
        kind = kind or next((kind for begins, kind in _FAMILIES.items() if name.startswith(begins)), None)
        if kind is not None:
            self._say(node, top if top in _MODULES else name, kind)

    def _say(self, node: ast.AST, what: str, kind: str) -> None:
        instead = f"; {_INSTEAD[kind]}" if kind in _INSTEAD else ""
        self.found.append(f"Line {getattr(node, 'lineno', 1)} uses {what}: {kind} are refused{instead}.")
