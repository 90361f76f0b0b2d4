"""Length generalisation with every kernel (Sparse Attention as Compact Kernel Regression, section 4.3)."""
