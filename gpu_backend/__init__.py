"""The real world: what runs a plan on a GPU."""
