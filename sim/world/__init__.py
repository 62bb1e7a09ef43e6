"""The simulated world, in SimPy: arrivals, clients, engine, swap link."""

from sim.lazy import lazy_package

lazy_package("simpy")  # its __init__ reads its own version by importlib.metadata, which takes longer than all of SimPy
