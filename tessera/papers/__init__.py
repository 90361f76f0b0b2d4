"""The papers' experiments: which runs a budget has, how one is done, tables and figures of all."""
