"""Bytes in, lines out: find files, undo compression, peel envelopes, read clocks. Knows no engine."""
