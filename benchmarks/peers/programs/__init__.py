"""Programs that run in the environments of peers, not in ours: they import nothing of this project but `dialog`."""
