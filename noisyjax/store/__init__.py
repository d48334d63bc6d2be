"""The append-only sample store: durable samples, resume keys, one writer, a manifest. docs/store.md has the schema."""

from noisyjax.store.encode import decode_completion, decode_score
from noisyjax.store.folder import Folder, open_folder, remedy, write_text
from noisyjax.store.lock import Lock
from noisyjax.store.manifest import Manifest, check_model, model_identity
from noisyjax.store.run import Key, RunReader, RunWriter, check_place, is_run, key_of, open_readers

__all__ = [
    "Folder",
    "Key",
    "Lock",
    "Manifest",
    "RunReader",
    "RunWriter",
    "check_model",
    "check_place",
    "decode_completion",
    "decode_score",
    "is_run",
    "key_of",
    "model_identity",
    "open_folder",
    "open_readers",
    "remedy",
    "write_text",
]
