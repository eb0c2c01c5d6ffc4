"""Cost of the hot paths as ratios to a floor measured in the same run: `python -m benchmarks`."""
