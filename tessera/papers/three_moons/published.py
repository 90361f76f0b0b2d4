"""The paper's setting of three moons. Its figures carry no numbers."""

# The training triple of the published figures.
TRIPLE = (0.5, 1.0, 2.5)
INVERSE_BANDWIDTH = 50.0
SETTING = {
    "steps": 500,
    "batch": 64,
    "observations": 800,
    "peak learning rate": 1e-2,
    "last learning rate": 5e-6,
    "sequences of an evaluation": 512,
    "longest context": 775,
    "predictions": 25,
    "inverse bandwidth": INVERSE_BANDWIDTH,
}
