"""Published claims checked, benchmarks, and studies; results are in README.md of this folder."""
