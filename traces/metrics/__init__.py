"""Metrics of a run record, the same functions for either world."""
