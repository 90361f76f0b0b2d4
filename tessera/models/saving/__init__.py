"""Models as folders: loading, model cards, and the code that travels with weights."""
