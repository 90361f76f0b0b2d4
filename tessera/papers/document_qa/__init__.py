"""Questions about one of many documents that have nothing to do with each other."""
