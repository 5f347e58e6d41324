"""Who holds what: room for the layouts and shards of a model on a topology."""
