"""Web pages and the HTTP API: a client of the gRPC API with HTML on top."""
