"""The policies, one module for each family of serving systems."""
