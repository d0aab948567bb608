"""The compilers: IREE's, in a process of its own, and the null compiler of tests; and the CPU that `host` stands for."""
