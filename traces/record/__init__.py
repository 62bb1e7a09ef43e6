"""The run record: what happened, step by step and request by request."""
