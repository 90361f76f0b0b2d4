"""Questions about one of many documents: v2, its twin and models that cannot hold all documents."""
