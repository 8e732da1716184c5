"""Why a config was refused, in one line: the first key, class or value that is wrong, where it stands, what would be right."""

import dataclasses
import difflib
import importlib
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Union

from jsonargparse import ArgumentError, ArgumentParser

from pipeline.config import Given, annotation, find_class, parameters

Fault = tuple[str, str] | None
"""(dotted key, what is wrong with it)"""


def explain(given: Given, groups: Mapping[str, Any], options: Mapping[str, Any], said: str) -> str:
    """One line for a config that the parser refused.

    Args:
        given: what the user wrote.
        groups: top-level key -> class whose arguments stand under it, such as trainer.
        options: the other top-level keys and their types.
        said: the parser's own words, used when nothing better is found.
    """
    fault: Fault = None
    for key, cls in groups.items():
        fault = fault or _group_fault(given.tree.get(key), key, cls)
    for key, kind in options.items():
        if key in given.tree:
            fault = fault or _value_fault(given.tree[key], key, kind)
    if fault is None:
        return _shorten(said)
    key, message = fault
    return f"{message} (in {given.where(key)})"


def unknown_key(given: Given, known: Iterable[str]) -> str | None:
    """One line for the first top-level key that there is not, or None."""
    fault = _mapping_fault(given.tree, "", dict.fromkeys(known))
    return f"{fault[1]} (in {given.where(fault[0])})" if fault else None


def _near(name: str, names: Iterable[str]) -> str:
    names = list(names)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"there are: {', '.join(names)}"


def _mapping_fault(value: Any, prefix: str, known: Mapping[str, Any], owner: str = "a config") -> Fault:
    for key in value:
        if key not in known:
            return f"{prefix}{key}", f"{prefix}{key} is no argument of {owner}; {_near(str(key), known)}"
    return None


def _group_fault(value: Any, key: str, cls: Any) -> Fault:
    if value is None:
        return (key, f"{key} is missing; a config needs a {key}") if key in ("model", "data") else None
    if key in ("model", "data"):
        return _class_fault(value, key, cls)
    return _arguments_fault(value, key, cls)


def _class_fault(value: Any, key: str, base: Any) -> Fault:
    """A value that names a class: {class_path, init_args}."""
    if isinstance(value, str):
        value = {"class_path": value}
    if not isinstance(value, dict):
        return key, f"{key} is {value!r}; it must be a mapping with class_path and init_args"
    fault = _mapping_fault(value, f"{key}.", {"class_path": 0, "init_args": 0, "dict_kwargs": 0}, "a class")
    if fault:
        return fault
    path = value.get("class_path")
    if path is None:
        return key, f"{key}.class_path is missing"
    cls = find_class(path)
    if cls is None:
        return f"{key}.class_path", f"{key}.class_path: {_unresolved(path)}"
    if isinstance(base, type) and not (inspect.isclass(cls) and issubclass(cls, base)):
        return f"{key}.class_path", f"{key}.class_path: {path} is no {base.__name__}"
    fault = _arguments_fault(value.get("init_args") or {}, f"{key}.init_args", cls, path)
    if fault is None and base is not None:  # without a base it is a factory, whose first arguments come at the call
        fault = _missing_fault(value.get("init_args") or {}, f"{key}.init_args", cls, path)
    return fault


def _unresolved(path: Any) -> str:
    module, _, name = str(path).rpartition(".")
    if not module:
        return f"{path!r} is no dotted path of a class"
    try:
        members = vars(importlib.import_module(module))
    except ImportError as error:
        return f"cannot import {module}: {error}"
    names = [n for n, m in members.items() if inspect.isclass(m) and not n.startswith("_")]
    return f"{module} has no {name}; {_near(name, names)}"


def _arguments_fault(value: Any, key: str, cls: Any, owner: str | None = None) -> Fault:
    owner = owner or str(getattr(cls, "__name__", cls))
    if not isinstance(value, dict):
        return key, f"{key} is {value!r}; it must be a mapping of the arguments of {owner}"
    fault = _mapping_fault(value, f"{key}.", parameters(cls), owner)
    if fault:
        return fault
    for name, given in value.items():
        fault = _value_fault(given, f"{key}.{name}", annotation(cls, name))
        if fault:
            return fault
    return None


def _missing_fault(value: dict[str, Any], key: str, cls: Any, owner: str) -> Fault:
    for name, parameter in parameters(cls).items():
        if parameter.default is parameter.empty and name not in value:
            return key, f"{key}.{name} is missing; {owner} needs it"
    return None


def _value_fault(value: Any, key: str, kind: Any) -> Fault:
    options = typing.get_args(kind) if typing.get_origin(kind) in (Union, types.UnionType) else (kind,)
    if value is None and type(None) in options:
        return None
    for option in options:
        if typing.get_origin(option) in (Callable, Callable[..., Any]) or option is Callable or _is_callable(option):
            return _class_fault(value, key, None)
        if inspect.isclass(option) and (getattr(option, "__final__", False) or dataclasses.is_dataclass(option)):
            return _arguments_fault(value, key, option)
        if inspect.isclass(option) and option.__module__.partition(".")[0] in ("datamodules", "lit_models", "pipeline"):
            return _class_fault(value, key, option)
    if isinstance(value, dict) and "class_path" in value:
        return _class_fault(value, key, None)
    if isinstance(value, list):
        for i, item in enumerate(value):
            if isinstance(item, dict) and "class_path" in item:
                fault = _class_fault(item, f"{key}[{i}]", None)
                if fault:
                    return key, fault[1]
        if any(isinstance(item, dict) for item in value):
            return None
    parser = ArgumentParser(exit_on_error=False)
    try:
        parser.add_argument("--value", type=kind)
        parser.parse_object({"value": value})
    except ArgumentError:
        name = getattr(kind, "__name__", "") if inspect.isclass(kind) else str(kind).replace("typing.", "")
        return key, f"{key} is {value!r}; it must be of type {name}"
    except ValueError:  # a type the parser does not know
        return None
    return None


def _is_callable(kind: Any) -> bool:
    origin = typing.get_origin(kind)
    return origin is not None and getattr(origin, "__name__", "") == "Callable"


def _shorten(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return " ".join(lines)[:600]
