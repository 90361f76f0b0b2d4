"""Three moons: training, continuations from every context length, and what the heads answer for."""
