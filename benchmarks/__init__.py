"""Speed and memory, each line a comparison inside one run. `make bench`, or `python -m benchmarks decode reuse`."""
