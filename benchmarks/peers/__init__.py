"""Peers of Kagzi doing the same work on the same machine, each in an environment of its own, made on first use."""
