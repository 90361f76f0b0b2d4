"""Language models by depth and kernel (Memory Mosaics, section 7; the kernels paper, section 4.1)."""
