"""The operations: plain functions of a Connection, one module per noun. They read as the algorithm.

No operation begins or ends a transaction, and none does I/O but `conn.execute`: `database` runs them.
"""
