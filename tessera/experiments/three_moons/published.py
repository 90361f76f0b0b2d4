"""What the paper shows of three moons. Its figures carry no numbers; these are their statements."""

FIGURE_4 = {
    "heads": 1,
    "drops_after": ["lcm"],
    "words": "sharp transition after lcm(p1, p2, p3) observations; before it, the last observation is repeated",
}
FIGURE_5 = {
    "heads": 3,
    "drops_after": ["p1", "p2", "p3"],
    "words": "a drop after exactly p1, p2 and p3 observations; accurate after max(p1, p2, p3), long before the lcm",
}
FIGURE_10 = {"heads": 3, "words": "W_phi, W_psi and W_z dedicate one memory unit to each moon"}

SETTING = {
    "sequences_per_triple": 512,
    "contexts": [1, 775],
    "horizon": 25,
    "inverse_bandwidth": 50.0,
    "real_parameters": 54,
    "training_length": 800,
}
