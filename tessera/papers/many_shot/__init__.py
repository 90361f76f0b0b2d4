"""Many-shot classification: learn classes that were never seen from examples in the context."""
