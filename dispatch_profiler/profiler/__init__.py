"""The profiler: compiled modules -> verified and measured records."""
