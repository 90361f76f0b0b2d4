"""What the ARMT paper says of associative retrieval. Its figures are curves without numbers; these are its words."""

# Section 3, the appendices on training details and curriculum, and the scripts of the paper's repository.
SETTING = {
    "layers": 4,
    "width": 128,
    "memory_tokens": 4,
    "memory_width": 32,
    "batch": 512,
    "questions": 1,
    "learning_rate": 3e-4,
    "start": 0.02,
    "steps": "2,000 in the first stage, 10,000 in each later one, 15,000 in the last of remember",
    "pairs": {"remember": (1, 2, 3, 5, 10, 20, 40, 50, 50, 200), "rewrite": (1, 2, 3, 5, 10, 20, 40, 50)},
    "seeds": 3,
}
# Exact match of ARMT, read off its words "perfect memory recall on lengths exceeding 10 times those used in training".
GENERALIZATION = {"trained pairs": 50, "tested pairs": 500, "factor": 10}
CLAIMS = {
    "rewrite, trained length": "ARMT recalls the latest value",
    "rewrite, 10 x the trained length": "ARMT recalls without loss; RMT and Mamba degrade slightly past theirs",
    "rewrite, no correction": "does not generalise over length: erased values stay in the normaliser",
    "remember, capacity": "ARMT and Mamba hold more pairs than RMT; PRMT no more than RMT",
}
