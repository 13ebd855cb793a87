"""What all benchmarks share: stages as processes of their own, the machine, tables and charts, plain baselines."""
