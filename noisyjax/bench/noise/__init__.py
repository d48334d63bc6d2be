"""Which noise a question gets, how much of it, whether it gives the answer away, and negatives found by BM25."""
