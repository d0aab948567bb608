"""What commands print: streams, terminals, tables and counts; and an argument parser for a value `--`."""
