"""What the ARMT paper says of associative retrieval. Its figures are curves without numbers; these are its words."""

# Section 3, its figure of both tasks, and the appendices on curriculum, training details and ablation.
SETTING = {
    "layers": 4,
    "width": 128,
    "memory width or state size": 32,
    "parameters": 500_000,
    "pairs in training, remember": 200,
    "pairs in training, rewrite": 50,
}
# Exact match of ARMT, read off its words "perfect memory recall on lengths exceeding 10 times those used in training".
GENERALIZATION = {"trained pairs": 50, "tested pairs": 500, "factor": 10}
CLAIMS = {
    "rewrite, trained length": "ARMT recalls the latest value",
    "rewrite, 10 x the trained length": "ARMT recalls without loss; RMT and Mamba degrade slightly past theirs",
    "rewrite, no correction": "does not generalise over length: erased values stay in the normaliser",
    "remember, capacity": "ARMT and Mamba hold more pairs than RMT; PRMT no more than RMT",
}
