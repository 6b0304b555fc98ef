"""Reports of a run: terminal tables, HTML page, bundle."""
