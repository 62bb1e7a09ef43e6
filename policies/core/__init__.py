"""The contract: requests, plans, KV memory, engine, protocols, errors."""
