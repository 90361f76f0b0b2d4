"""Loss by position on text of another kind (Memory Mosaics, figure 8; the kernels paper, figure 5)."""
