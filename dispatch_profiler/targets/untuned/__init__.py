"""The configuration of an operation that nothing has tuned: rules that follow measurements."""
