"""One optimizer step: rows of tokens, log-probabilities of their targets, the compiled update."""
