"""Training runs in a report: their curves, tables and sampled completions."""
