for i in $(seq 300); do echo "The $i. frog sat by the well, and the $i. princess threw her golden ball."; echo "<|end|>"; done > frogs.txt
printf 'model: {type: memory_mosaic, hidden_size: 64, num_layers: 2, num_heads: 2, num_persistent_slots: 64}\ntokenizer: {type: bpe, vocab_size: 300}\ndata: {source: frogs.txt, separator: "<|end|>", context: 64}\ntraining:\n  steps: 60\n  batch_size: 8\n  learning_rate: 3.0e-3\n  warmup_steps: 10\n  evaluate_every: 20\n  evaluate_sequences: 8\n  checkpoint_every: 30\n' > frogs.yaml
tessera info frogs.yaml
tessera train frogs.yaml --output runs/frogs
tessera generate runs/frogs --prompt "The 7. frog" --max-new-tokens 40 --temperature 0
tessera train frogs.yaml --output runs/frogs --resume
