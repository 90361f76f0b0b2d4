"""Many-shot classification: v2, v1 and the Llama twin learn new classes from examples in the context."""
