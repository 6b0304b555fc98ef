"""The referee in pytest: plugin, conformance suite, parametrized checks."""
