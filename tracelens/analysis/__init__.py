"""Runs queries, applies the model, returns frozen dataclasses. Prints and draws nothing."""
