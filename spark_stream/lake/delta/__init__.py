"""One Delta table, without I/O: actions, schemas, the state of the table, and the commit."""
