"""The commands gen_configs, optimize and tune: their options and output, and the order of the steps."""
