"""`noisyjax quickstart`: the whole story on one machine in minutes."""

from noisyjax.quickstart.run import ARMS, run_quickstart

__all__ = ["ARMS", "run_quickstart"]
