"""The package checkpoint.erasure."""
