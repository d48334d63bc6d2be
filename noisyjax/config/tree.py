"""Reading YAML into plain data, with the place every key came from.

Stricter than YAML 1.1 where its guesses hurt: only `true` and `false` are booleans (`no` and `on` are words), `1e-6`
is a number, `1:30` and `2025-01-01` are words, and a key given twice is an error instead of a silent last-one-wins.
"""

import re
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from noisyjax.errors import UsageError, nearest

Path_ = tuple[str | int, ...]
Origins = dict[Path_, str]
"""Path of a key -> where it was given: `file.yaml:12` or the override word itself."""

EXTENDS = "extends"


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalar rules of YAML 1.2's core schema."""


_TAG = "tag:yaml.org,2002:"
_REPLACED = {f"{_TAG}{name}" for name in ("bool", "int", "float", "timestamp")}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in rules if tag not in _REPLACED]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_FLOAT = r"^[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?$|^[-+]?[0-9]+[eE][-+]?[0-9]+$|^[-+]?\.inf$|^\.nan$"
_Loader.add_implicit_resolver(f"{_TAG}bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(f"{_TAG}int", re.compile(r"^[-+]?(?:0|[1-9][0-9]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(f"{_TAG}float", re.compile(_FLOAT), list("-+0123456789."))


def parse_yaml(text: str, where: str) -> tuple[Any, Origins]:
    """Plain data and the origin of every key. `where` names the source in messages; lines are counted from 1."""
    loader: _Loader | None = None
    origins: Origins = {}
    try:
        loader = _Loader(text)  # refuses control characters
        node = loader.get_single_node()
        data = None if node is None else _build(loader, node, (), where, origins)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UsageError(f"{where}{line}: not valid YAML: {problem}") from None
    finally:
        if loader is not None:
            loader.dispose()
    return data, origins


def _build(loader: _Loader, node: yaml.Node, path: Path_, where: str, origins: Origins) -> Any:
    """The node as plain data; every key's line goes into `origins`."""
    if isinstance(node, yaml.MappingNode):
        loader.flatten_mapping(node)
        out: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node, deep=True)
            line = f"{where}:{key_node.start_mark.line + 1}"
            if not isinstance(key, str | int | float | bool):
                raise UsageError(f"{line}: a key must be a word, not {key!r}")
            key = str(key)
            if key in out:
                raise UsageError(f"{line}: '{key}' is given twice")
            origins[(*path, key)] = line
            out[key] = _build(loader, value_node, (*path, key), where, origins)
        return out
    if isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            origins[(*path, i)] = f"{where}:{item.start_mark.line + 1}"
        return [_build(loader, item, (*path, i), where, origins) for i, item in enumerate(node.value)]
    return loader.construct_object(node, deep=True)


def packaged_configs() -> dict[str, Path]:
    """Name -> file of every config that comes with the package: `sweeps/quickstart` -> .../sweeps/quickstart.yaml."""
    root = Path(str(resources.files("noisyjax") / "configs"))
    return {p.relative_to(root).with_suffix("").as_posix(): p for p in sorted(root.rglob("*.yaml"))}


def find_config(name: str | Path, folder: Path = Path()) -> Path:
    """The file that `name` means: a path (from `folder`), or the bare name of a packaged config.

    Raises UsageError that names the nearest one.
    """
    path = folder / name
    if path.is_file():
        return path
    if path.is_dir():
        raise UsageError(f"{name} is a folder; a config is a YAML file")
    packaged = packaged_configs()
    wanted = str(name).removesuffix(".yaml")
    hits = [key for key in packaged if key == wanted or key.rsplit("/", 1)[-1] == wanted]
    if len(hits) == 1:
        return packaged[hits[0]]
    if hits:
        raise UsageError(f"config '{name}' is ambiguous: {', '.join(hits)}")
    raise UsageError(f"no config '{name}', neither a file nor a packaged one; {_nearest_config(path, packaged)}")


def _nearest_config(path: Path, packaged: Mapping[str, Path]) -> str:
    known = list(packaged)
    if path.parent == Path():
        known += [key.rsplit("/", 1)[-1] for key in packaged]
    if path.parent.is_dir():
        known += [str(p) for p in path.parent.glob("*.yaml")]
    return nearest(str(path), known) if known else "there are no YAML files here"


def read_tree(name: str | Path) -> tuple[dict[str, Any], Origins]:
    """The config file as one tree. `extends: other` in any mapping of it puts that file underneath the mapping."""
    return _read_file(find_config(name), ())


def _read_file(path: Path, seen: tuple[Path, ...]) -> tuple[dict[str, Any], Origins]:
    if path.resolve() in seen:
        raise UsageError(f"{path}: `{EXTENDS}` goes round in a circle")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    data, origins = parse_yaml(text, path.name)
    data = {} if data is None else data
    if not isinstance(data, dict):
        raise UsageError(f"{path}: a config is a mapping of keys to values, this is a {type(data).__name__}")
    return expand(data, origins, path.parent, (*seen, path.resolve()))


def expand(
    tree: dict[str, Any], origins: Origins, folder: Path = Path(), seen: tuple[Path, ...] = (), at: Path_ = ()
) -> tuple[dict[str, Any], Origins]:
    """`tree` with every `extends` followed, from `folder`. The tree's own keys win over those of the other file."""
    own: dict[str, Any] = {}
    found: Origins = {}
    for key, value in tree.items():
        own[key] = value
        if isinstance(value, dict):
            own[key], inner = expand(value, origins, folder, seen, (*at, key))
            found |= inner
    own.pop(EXTENDS, None)
    here = {path: place for path, place in origins.items() if path != (*at, EXTENDS)}
    if EXTENDS not in tree:
        return own, found | here
    base, base_origins = _read_file(find_config(str(tree[EXTENDS]), folder), seen)
    return merge(base, own), {(*at, *path): place for path, place in base_origins.items()} | found | here


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`, mapping by mapping. A mapping that changes its `kind` replaces the old one whole."""
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and value.get("kind", old.get("kind")) == old.get("kind"):
            out[key] = merge(old, value)
        else:
            out[key] = value
    return out


def parse_overrides(words: Iterable[str]) -> tuple[dict[str, Any], Origins]:
    """`a.b=3 c=[x,y]` as a tree. Values are YAML; an empty value is null."""
    tree: dict[str, Any] = {}
    origins: Origins = {}
    for word in words:
        key, sign, text = word.partition("=")
        path = tuple(key.split("."))
        if not sign or not all(path):
            raise UsageError(f"'{word}' is not an override: write key=value, with dots for inner keys")
        value, _ = parse_yaml(text, f"'{word}'")
        place: dict[str, Any] = tree
        for part in path[:-1]:
            inner = place.setdefault(part, {})
            if not isinstance(inner, dict):
                raise UsageError(f"'{word}' goes inside '{part}', which another override sets to {inner!r}")
            place = inner
        old = place.get(path[-1])
        place[path[-1]] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        origins[path] = f"'{word}'"
    return tree, origins
