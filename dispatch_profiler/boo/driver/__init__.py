"""The shell commands for MIOpenDriver's command lines: launch and measure them, compile them ahead, check them."""
