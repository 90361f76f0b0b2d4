"""BABILong: facts hidden in books of growing length, answered from a memory of fixed size."""
