"""Dumps that lie elsewhere: stores, nodes of a cluster, several places, indexes and kept dumps."""
