"""What is built on trainings: sweeps, comparisons of runs, the demo, plans."""
