"""The rules of a policy, and what holds one against them: supervision of a run, a mirror of the memory, checks."""
