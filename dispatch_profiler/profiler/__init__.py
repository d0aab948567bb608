"""vmfbs -> verified, measured records."""
