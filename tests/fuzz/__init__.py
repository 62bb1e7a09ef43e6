"""The property tests at length: ``make fuzz``."""
