"""Text sources, tokenizers, memory-mapped token stores and windows of tokens."""
