"""The project's own small benchmark: made-up facts, so that everything runs without a download.

Everything in data/ is written by `python -m noisyjax.bench.quickstart.generate`, in the upstream layouts: random
documents as HotPotQA has them, chats as WildChat has them, hard negatives as JSON lines. The people, places and
things are invented, so that no model knows the answers.
"""

from pathlib import Path

FOLDER = Path(__file__).parent / "data"
