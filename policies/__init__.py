"""Scheduling policies of LLM serving systems, and the contract that lets both worlds run them."""
