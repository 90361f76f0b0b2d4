"""How far two correct programs may be apart."""

# The same sums in another order, float64.
REORDERED_FLOAT64 = 1e-10
# The same sums in another order, float32, values of order one.
REORDERED_FLOAT32 = 1e-5
