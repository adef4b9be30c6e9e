"""Benchmarks: the workloads by name, on real processes with durability on."""
