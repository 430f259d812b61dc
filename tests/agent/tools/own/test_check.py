"""What a file of the user's may not reach for, in many spellings; and what it may."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.agent.tools.own.check import refusals

REFUSED = r"""
import subprocess
import subprocess as s
from subprocess import run
import os; os.system('x')
import os as o; o.system('x')
import os.path; os.popen('x')
from os import system
from os import system as s
from os import *
from shutil import *
import os; f = os.execv
import os; os.spawnl(0, 'x')
import os; os.posix_spawn('x', [], {})
import os; os.remove('x')
import os; os.unlink('x')
import os; os.rmdir('x')
import shutil; shutil.rmtree('x')
from shutil import rmtree as r
import importlib
import importlib.util
from importlib import import_module
__import__('os')
x = __import__
x = __builtins__
open('x')
f = open
eval('1')
exec('1')
compile('1', '', 'eval')
import ctypes
from ctypes import CDLL
import socket
from socket import socket as plug
import pathlib; pathlib.Path('x')
import pathlib as p; p.Path('x')
from pathlib import Path
from pathlib import Path as P
import io; io.open('x')
import builtins; builtins.eval('1')
import multiprocessing
import asyncio; asyncio.create_subprocess_exec('x')
import asyncio; asyncio.subprocess.Process
from asyncio.subprocess import Process
import asyncio; asyncio.open_connection('x', 1)
import os; getattr(os, 'sys' + 'tem')('x')
import os; vars(os)['system']
().__class__.__bases__[0].__subclasses__()
(lambda: 0).__globals__
import sys; sys.modules['os']
globals()['x']
from . import other
from .other import x
import runpy
class A:\n    def f(self):\n        return open('x')
lambda: eval('1')
""".strip().splitlines()

ALLOWED = r"""
import json, re, math, datetime
import re; re.compile('x')
import os; os.path.join('a', 'b')
import os; os.environ.get('HOME')
from pathlib import PurePath
import asyncio; asyncio.sleep(1)
door.open()
note = 'open the socket and import subprocess'
class A:\n    def open(self): ...
getattr(self, 'x', None)
import httpx
def system(): ...\nsystem()
""".strip().splitlines()


@pytest.mark.parametrize("line", REFUSED)
def test_what_reaches_too_far_is_refused_with_its_line(line: str):
    found = refusals(line.replace("\\n", "\n"))

    assert found
    assert all(one.startswith("Line ") and "are refused" in one for one in found)


@pytest.mark.parametrize("line", ALLOWED)
def test_ordinary_code_is_let_through(line: str):
    assert refusals(line.replace("\\n", "\n")) == []


@given(st.text())
def test_whatever_is_in_a_file_it_is_judged(text: str):
    assert isinstance(refusals(text), list)


@pytest.mark.parametrize("text", ["(" * 5000, "\0", "x = " + "-" * 100_000 + "1", "\ud800"])
def test_what_breaks_parsers_is_a_refusal(text: str):
    assert refusals(text)
