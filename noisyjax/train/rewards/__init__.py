"""Rewards: completions read, verdicts combined, copying and distraction measured."""
