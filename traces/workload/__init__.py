"""Where requests come from: trace files, generators, and the rules that turn their rows into requests."""
