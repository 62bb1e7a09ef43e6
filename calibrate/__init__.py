"""Cost models fitted to measured operator times."""
