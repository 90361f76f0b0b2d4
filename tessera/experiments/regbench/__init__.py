"""RegBench as an experiment."""
