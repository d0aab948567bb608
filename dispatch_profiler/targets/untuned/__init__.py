"""The configuration of an untuned operation: rules that follow measurements."""
