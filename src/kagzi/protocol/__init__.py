"""The contract between servers, workers and clients."""
