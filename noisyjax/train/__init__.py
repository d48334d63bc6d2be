"""Training: SFT and GRPO with the outcome and rationale-aware rewards, their state, and the way back to files."""
