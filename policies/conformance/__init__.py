"""Conformance: recorded decisions of real schedulers, replayed and compared step by step."""
