"""What the user wrote, before any parser has seen it: merged, and with the place each value came from."""

import difflib
import importlib
import inspect
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import BadInput

DEFAULTS = Path(__file__).parent.parent / "configs" / "defaults.yaml"


class _StrictLoader(yaml.SafeLoader):
    """YAML in which a key given twice is an error instead of the last one winning; 1e-3 is a number."""


def _mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node)
        if key in seen:
            raise BadInput(f"{loader.name}, line {key_node.start_mark.line + 1}: the key {key!r} is given twice")
        seen.add(key)
    loader.flatten_mapping(node)
    return dict(loader.construct_pairs(node, deep=True))


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """A config file.

    Raises:
        BadInput: it is missing, no YAML, no mapping, or gives a key twice.
    """
    path = Path(path)
    try:
        with open(path, encoding="utf-8") as f:
            tree = yaml.load(f, _StrictLoader)  # noqa: S506 - a SafeLoader
    except FileNotFoundError:
        near = difflib.get_close_matches(str(path), [str(p) for p in path.parent.glob("*.yaml")], n=1)
        raise BadInput(f"no config file {path}" + (f"; did you mean {near[0]}?" if near else "")) from None
    except IsADirectoryError:
        raise BadInput(f"{path} is a folder, not a config file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        raise BadInput(f"{path} holds a {type(tree).__name__}; a config is a mapping of keys to values")
    return tree


class Given:
    """The values of the config files and the options after them, later ones over earlier ones.

    Attributes:
        tree: nested mapping of what was given.
        origin: dotted key -> the file it came from, or "the command line".
    """

    def __init__(self, argv: Iterable[str]) -> None:
        self.tree: dict[str, Any] = {}
        self.origin: dict[str, str] = {}
        words = list(argv)
        while words:
            word = words.pop(0)
            if not word.startswith("-"):
                continue
            name, equals, value = word.lstrip("-").partition("=")
            if not equals and words and not (words[0].startswith("--") and len(words[0]) > 2):
                value = words.pop(0)
            elif not equals:
                value = "true"
            if name in ("config", "c"):
                self._merge(self.tree, read_yaml(value), "", value)
            else:
                self._set(name.rstrip("+"), _parse(value))

    def _merge(self, into: dict[str, Any], tree: Mapping[str, Any], prefix: str, origin: str) -> None:
        for key, value in tree.items():
            name = f"{prefix}{key}"
            self.origin[name] = origin
            if isinstance(value, dict) and isinstance(into.get(key), dict):
                if value.get("class_path") not in (None, into[key].get("class_path")):
                    into[key] = {}  # another class: what was meant for the first does not carry over
                self._merge(into[key], value, f"{name}.", origin)
            elif isinstance(value, dict):
                into[key] = {}
                self._merge(into[key], value, f"{name}.", origin)
            else:
                into[key] = value

    def _set(self, dotted: str, value: Any) -> None:
        tree = self.tree
        *parents, last = dotted.split(".")
        for depth, key in enumerate(parents, 1):
            if isinstance(tree.get(key), (int, float)):
                name = ".".join(parents[:depth])
                raise BadInput(f"{name} is {tree[key]}, not a mapping that {dotted} could go into (in {self.where(name)})")
            if not isinstance(tree.get(key), dict):
                tree[key] = {"class_path": tree[key]} if isinstance(tree.get(key), str) else {}
            tree = tree[key]
        if isinstance(tree.get(last), dict) and isinstance(value, str):  # --model lit_models.gpt.LitGPT
            tree[last]["class_path"] = value
        else:
            tree[last] = value
        self.origin[dotted] = "the command line"

    def get(self, dotted: str) -> Any:
        tree: Any = self.tree
        for key in dotted.split("."):
            if not isinstance(tree, dict) or key not in tree:
                return None
            tree = tree[key]
        return tree

    def where(self, dotted: str) -> str:
        while dotted not in self.origin and "." in dotted:
            dotted = dotted.rpartition(".")[0]
        return self.origin.get(dotted, "the command line")


def _parse(value: str) -> Any:
    try:
        return yaml.load(value, _StrictLoader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError:
        return value


def find_class(path: Any) -> type | None:
    """The class (or function) at a dotted path, or None."""
    if not isinstance(path, str) or "." not in path:
        return None
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


def parameters(cls: Any) -> dict[str, inspect.Parameter]:
    """The keyword arguments a class takes, those of its bases included where it passes on **kwargs."""
    found: dict[str, inspect.Parameter] = {}
    for base in inspect.getmro(cls) if inspect.isclass(cls) else (cls,):
        function = base.__dict__.get("__init__") if inspect.isclass(base) else base
        if function is None:
            continue
        signature = inspect.signature(function)
        for name, parameter in signature.parameters.items():
            if name != "self" and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                found.setdefault(name, parameter)
        if not any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
            break
    return found


def annotation(cls: Any, name: str) -> Any:
    """The type of an argument, with string annotations resolved."""
    for base in inspect.getmro(cls) if inspect.isclass(cls) else (cls,):
        function = base.__dict__.get("__init__") if inspect.isclass(base) else base
        if function is not None and name in inspect.signature(function).parameters:
            try:
                return typing.get_type_hints(function).get(name, Any)
            except (NameError, TypeError):
                return Any
    return Any
