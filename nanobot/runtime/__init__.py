"""The composition root: a config in, a working bot out. It maps the config to the policies and services below it."""

from nanobot.runtime.build import build_runtime as build_runtime
