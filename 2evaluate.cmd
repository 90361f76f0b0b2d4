tessera train tiny training.steps=4 --output runs/one
tessera eval runs/one --sequences 20
tessera eval runs/one --sequences 20 --context 64 --plot loss.png
tessera eval runs/one --task associative_retrieval --lengths 2 4
tessera eval runs/one --sequences 20 --json
tessera tasks
