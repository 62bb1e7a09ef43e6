"""Model shapes and cards, one copy for both worlds."""
