"""The server: one process, any number of replicas beside it, and nothing kept that a restart could lose."""
