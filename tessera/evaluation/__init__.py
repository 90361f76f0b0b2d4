"""Loss by position, scores on tasks, accounting of parameters and FLOPs, provenance."""
