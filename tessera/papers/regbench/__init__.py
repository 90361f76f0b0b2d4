"""RegBench: in-context learning of random regular languages."""
