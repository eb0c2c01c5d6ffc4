"""Canonical schemas, the atomic Parquet writer, the ledger and the DuckDB connection. Computes no metric."""
