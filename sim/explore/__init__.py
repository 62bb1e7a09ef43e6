"""From one run to an answer: sweeps, capacity, diagnosis, claims."""
