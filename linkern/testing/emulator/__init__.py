"""CUDA C++ on a CPU: thread by thread, in many orders, with sanitizers."""
