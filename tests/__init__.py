"""Tests, by behaviour seen through the public interfaces."""
