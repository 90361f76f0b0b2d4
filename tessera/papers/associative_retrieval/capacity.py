"""How many pairs a memory must hold for the exact match it shows."""


def capacity(share: float, num_pairs: int, num_values: int) -> float:
    """`k = n (v a - 1) / (v - 1)` pairs of n are held, the others guessed, for exact match a (ARMT, appendix A)."""
    return num_pairs * (num_values * share - 1) / (num_values - 1)


def capacity_error(share_error: float, num_pairs: int, num_values: int) -> float:
    """Standard error of `capacity` for that of the exact match; the estimate is linear in it."""
    return num_pairs * num_values / (num_values - 1) * share_error
