"""The gRPC API: one thin servicer for each service of the contract."""
