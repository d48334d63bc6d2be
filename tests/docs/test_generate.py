"""The reference pages say what the code says."""

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def pages() -> dict[Path, str]:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.pages()


def test_reference_is_current(pages):
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, f"run `make docs`: {path.name} is not current"


def test_every_key_is_explained_or_speaks_for_itself(pages):
    text = next(text for path, text in pages.items() if path.name == "config.md")
    for key in ("`out`°", "`settings`", "`max_tokens`", "`concurrency`°", "`model`", "`shard`°"):
        assert key in text
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) > 40
    assert not [line for line in rows if "anything" in line and "mapping to anything" not in line]


def test_every_verb_is_there(pages):
    text = next(text for path, text in pages.items() if path.name == "cli.md")
    for verb in ("eval", "report", "rescore", "bench ls", "bench show", "bench validate", "convert gguf", "quickstart"):
        assert f"## noisyjax {verb}\n" in text
