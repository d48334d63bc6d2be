"""Records as one JSON line each, and back. docs/store.md describes the schema.

A line is UTF-8 JSON that ends in "\\n" and holds no other "\\n"; readers split on that byte alone, since texts may
contain every other kind of line end.
"""

import base64
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from noisyjax.records import Completion, Finish, Score, State

ARRAYS = ("ids", "logprobs", "entropy", "top_ids", "top_logprobs", "mass", "prompt_mass")
"""The fields of Completion that hold arrays."""


def to_line(record: Mapping[str, Any]) -> bytes:
    """One JSON line. Lone surrogates (an endpoint may send them) are escaped, NaN is refused (ValueError)."""
    try:
        text = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8") + b"\n"
    except UnicodeEncodeError:
        return json.dumps(record, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def encode_array(array: np.ndarray) -> dict[str, Any]:
    """`{"dtype": "<f4", "shape": [3], "data": base64}`: little-endian, row-major."""
    plain = np.ascontiguousarray(array)
    little = plain.astype(plain.dtype.newbyteorder("<"), copy=False)
    data = base64.b64encode(little.tobytes()).decode("ascii")
    return {"dtype": little.dtype.str.replace("|", "<"), "shape": list(array.shape), "data": data}


def decode_array(value: Mapping[str, Any]) -> np.ndarray:
    """The array that `encode_array` wrote, in native byte order."""
    flat = np.frombuffer(base64.b64decode(value["data"]), dtype=np.dtype(value["dtype"]))
    return flat.reshape(value["shape"]).astype(flat.dtype.newbyteorder("="))


def encode_completion(completion: Completion) -> dict[str, Any]:
    """Everything but `request_id` and `sample`, which the store's key replaces; absent fields are left out."""
    out: dict[str, Any] = {"finish": completion.finish.value, "text": completion.text}
    for name in ("reasoning", "error", "cost"):
        if (value := getattr(completion, name)) is not None:
            out[name] = value
    out["prompt_tokens"] = completion.prompt_tokens
    out["completion_tokens"] = completion.completion_tokens
    for name in ARRAYS:
        if (array := getattr(completion, name)) is not None:
            out[name] = encode_array(np.asarray(array))
    return out


def decode_completion(record: Mapping[str, Any], request_id: str = "", arrays: bool = True) -> Completion:
    """The Completion of a stored sample; `arrays=False` leaves the arrays None, which is much faster."""
    found = {name: decode_array(record[name]) for name in ARRAYS if name in record} if arrays else {}
    return Completion(
        request_id=request_id,
        sample=record["sample"],
        text=record["text"],
        finish=Finish(record["finish"]),
        reasoning=record.get("reasoning"),
        error=record.get("error"),
        cost=record.get("cost"),
        prompt_tokens=record.get("prompt_tokens", 0),
        completion_tokens=record.get("completion_tokens", 0),
        **found,
    )


def encode_score(score: Score) -> dict[str, Any]:
    """A score as JSON-ready data; a NaN metric is absent, so null."""
    return {
        "state": score.state.value,
        "value": _number(score.value),
        "extracted": score.extracted,
        "values": {name: _number(value) for name, value in score.values.items()},
        "note": score.note,
    }


def decode_score(record: Mapping[str, Any]) -> Score:
    return Score(
        state=State(record["state"]),
        value=record["value"],
        extracted=record.get("extracted"),
        values=record.get("values", {}),
        note=record.get("note", ""),
    )


def _number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(value)
