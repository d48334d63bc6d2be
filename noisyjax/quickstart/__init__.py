"""`noisyjax quickstart`: the whole story on one machine in minutes."""

from noisyjax.quickstart.arms import QUICKSTART
from noisyjax.quickstart.run import run_quickstart

__all__ = ["QUICKSTART", "run_quickstart"]
