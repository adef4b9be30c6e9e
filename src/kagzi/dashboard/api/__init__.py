"""The HTTP API: every call of the contract that a client can want, as JSON over HTTP."""
