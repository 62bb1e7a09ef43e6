"""Exact laws of queueing theory, reproduced by the real engine, policy, world and record."""
