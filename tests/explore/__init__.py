"""Sweeps, capacity, diagnosis and claims."""
