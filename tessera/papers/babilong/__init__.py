"""BABILong: facts of bAbI's stories hidden in books of any length, and questions about them."""
