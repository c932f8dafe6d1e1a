"""The SQL backends: one table model, one body of operations, a few hooks per dialect."""
