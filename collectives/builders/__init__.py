"""The package collectives.builders."""
