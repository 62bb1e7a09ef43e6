"""Policies as a user would write them, each one file for ``--policy FILE.py:CLASS``."""
