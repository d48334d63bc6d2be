"""A YAML file plus `key=value` words, checked against a pydantic schema, with one readable message for all errors."""

import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from noisyjax.config.tree import Origins, Path_, expand, merge, parse_overrides, read_tree
from noisyjax.errors import UsageError, nearest


class Schema(BaseModel):
    """Base of every config schema: frozen, and a key nobody knows is an error.

    A field that cannot change results (an output folder, a degree of concurrency) is declared with
    `json_schema_extra={"affects_results": False}`; a run may be resumed with another value of it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def load[S: BaseModel](schema: type[S], source: str | Path | None, overrides: Iterable[str] = ()) -> S:
    """The config in `source` (a YAML path or the name of a packaged config; None for defaults only) with `overrides`.

    Raises UsageError that lists every problem with its place and the nearest known name.
    """
    base, origins = ({}, {}) if source is None else read_tree(source)
    over, over_origins = expand(*parse_overrides(overrides))
    return validate(schema, merge(base, over), str(source or schema.__name__), origins | over_origins)


def validate[S: BaseModel](schema: type[S], data: Mapping[str, Any], where: str, origins: Origins | None = None) -> S:
    """`data` as a `schema`; UsageError with one line per problem."""
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        lines = _problems(schema, data, error, origins or {})
    if len(lines) == 1:
        raise UsageError(f"{where}: {lines[0]}")
    raise UsageError(f"{where}: {len(lines)} problems\n" + "\n".join(f"  {line}" for line in lines))


def _problems(schema: type[BaseModel], data: Mapping[str, Any], error: ValidationError, origins: Origins) -> list[str]:
    """One line per key; the alternatives of a union that all failed share a line."""
    found: dict[Path_, list[str]] = {}
    for item in error.errors(include_url=False):
        path = _real_path(data, item["loc"], item["type"])
        text = _explain(schema, data, path, dict(item))
        texts = found.setdefault(path, [])
        if text not in texts:
            texts.append(text)
    return [_place(path, origins) + " or ".join(texts) for path, texts in found.items()]


def _real_path(data: Any, loc: Path_, kind: str) -> Path_:
    """pydantic puts union tags and function names into `loc`; keep what is really a key of the data."""
    path: list[str | int] = []
    here = data
    for i, part in enumerate(loc):
        inside = (isinstance(here, Mapping) and part in here) or (
            isinstance(here, list | tuple) and isinstance(part, int) and part < len(here)
        )
        if inside:
            here = here[part]
            path.append(part)
        elif kind == "missing" and i == len(loc) - 1:
            path.append(part)
    return tuple(path)


def _place(path: Path_, origins: Origins) -> str:
    """`engine.slots (file.yaml:7): `; the nearest enclosing key's line when the key itself was not written."""
    name = ".".join(map(str, path))
    for end in range(len(path), 0, -1):
        if path[:end] in origins:
            return f"{name} ({origins[path[:end]]}): "
    return f"{name}: " if name else ""


def _explain(schema: type[BaseModel], data: Any, path: Path_, item: dict[str, Any]) -> str:
    kind, message = item["type"], item["msg"]
    if kind == "extra_forbidden":
        known = {name for model in _models_at(schema, data, path[:-1]) for name in _keys(model)}
        return f"unknown key; {nearest(str(path[-1]), known)}"
    if kind == "missing":
        return "required, but missing"
    if kind == "value_error":
        return str(item["ctx"]["error"])
    if kind in ("literal_error", "enum", "union_tag_invalid", "union_tag_not_found"):
        return _explain_choice(item)
    return f"{message.replace('Input should be', 'expected', 1)}; got {_brief(item['input'])}"


def _explain_choice(item: dict[str, Any]) -> str:
    """A word that is not among the allowed ones."""
    context = item.get("ctx", {})
    text = str(context.get("expected", context.get("expected_tags", "")))
    allowed = [word.strip().strip("'") for word in text.replace(" or ", ", ").split(",") if word.strip()]
    if item["type"] == "union_tag_not_found":
        return f"the key {context.get('discriminator', "'kind'")} is missing"
    given = context.get("tag", item["input"])
    hint = nearest(given, allowed) if isinstance(given, str) else ""
    hint = "" if hint.startswith("known:") else f"; {hint}" if hint else ""
    return f"expected one of {', '.join(allowed)}; got {_brief(given)}{hint}"


def _brief(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({_TYPE_WORDS.get(type(value), type(value).__name__)})"


_TYPE_WORDS: Mapping[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true/false",
    list: "a list",
    dict: "a mapping",
    type(None): "nothing",
}


def _keys(model: type[BaseModel]) -> list[str]:
    return [info.alias or name for name, info in model.model_fields.items()]


def _models_at(annotation: Any, data: Any, path: Path_) -> list[type[BaseModel]]:
    """The schemas that may stand at `path`; where a union has a `kind`, only the ones of that kind."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _models_at(get_args(annotation)[0], data, path)
    if origin in (Union, types.UnionType):
        return [m for arg in get_args(annotation) for m in _models_at(arg, data, path)]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if not _kind_fits(annotation, data):
            return []
        if not path:
            return [annotation]
        info = annotation.model_fields.get(str(path[0]))
        inner = data.get(path[0]) if isinstance(data, Mapping) else None
        return _models_at(info.annotation, inner, path[1:]) if info else []
    if origin is not None and path:  # a list, tuple or dict of schemas
        inner = data[path[0]] if isinstance(data, list | tuple | dict) else None  # type: ignore[index]
        return [m for arg in get_args(annotation) for m in _models_at(arg, inner, path[1:])]
    return []


def _kind_fits(model: type[BaseModel], data: Any) -> bool:
    info = model.model_fields.get("kind")
    if info is None or get_origin(info.annotation) is not Literal or not isinstance(data, Mapping):
        return True
    return data.get("kind", info.default) in get_args(info.annotation)
