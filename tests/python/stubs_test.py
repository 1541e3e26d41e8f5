#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stubs say what the package has: the same names, parameters and defaults."""
import ast
import inspect
import sys
from pathlib import Path

from parallel_cases import coterie, run_tests

FOLDER = Path(coterie.__file__).parent


def definitions(name):
    return {node.name: node for node in ast.parse((FOLDER / name).read_text()).body
            if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def parameters(function):
    """[(name, kind, default as text)] of a stub's function."""
    a = function.args
    positional = list(zip(a.args, [None] * (len(a.args) - len(a.defaults)) + a.defaults))
    found = [(x.arg, "positional", d) for x, d in positional]
    found += [(x.arg, "keyword", d) for x, d in zip(a.kwonlyargs, a.kw_defaults)]
    return [(n, k, None if d is None else ast.literal_eval(d)) for n, k, d in found]


def runtime_parameters(function):
    found = []
    for p in inspect.signature(function).parameters.values():
        if p.kind is not p.VAR_KEYWORD:
            kind = "keyword" if p.kind is p.KEYWORD_ONLY else "positional"
            found.append((p.name, kind, None if p.default is p.empty else p.default))
    return found


def test_functions_agree():
    stubs = definitions("__init__.pyi")
    for name in coterie.__all__:
        member = getattr(coterie, name)
        if inspect.isfunction(member):
            assert parameters(stubs[name]) == runtime_parameters(member), name
            assert member.__doc__, f"{name} has no docstring"
        elif inspect.isclass(member) and member.__module__ != "coterie._core":
            assert name in stubs, name
    extra = {n for n in stubs} - set(coterie.__all__)
    assert not extra, extra


def test_classes_agree():
    for name, stub in definitions("_core.pyi").items():
        members = {n for n in vars(getattr(coterie, name)) if not n.startswith("_")}
        assert {n.name for n in stub.body if isinstance(n, ast.FunctionDef)} == members, name


if __name__ == "__main__":
    sys.exit(run_tests(sys.modules[__name__]))
