"""Three moons: training, continuations from every context length, and which moon each head follows."""
