"""Simulated against measured: cases that others published, recorded runs, and how far the simulator is off them."""
