"""The simulated world, in SimPy: arrivals, clients, engine, swap link."""
