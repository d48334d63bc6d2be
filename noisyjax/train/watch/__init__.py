"""Seeing a run: its log of metrics, its progress display, its table of samples."""
