"""Functions of which the source and the import must say the same; see test_static.py."""
