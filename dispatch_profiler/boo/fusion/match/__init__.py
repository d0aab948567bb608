"""What becomes a region: operations and the steps that follow them, and what lies between regions."""
