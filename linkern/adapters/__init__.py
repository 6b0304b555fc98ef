"""Published kernels: adapters for the referee, and their known failures."""
