"""Commands of MIOpenDriver, from the shell: launched and measured, compiled ahead of time, and checked."""
