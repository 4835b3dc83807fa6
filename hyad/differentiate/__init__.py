"""From a typed program to its derivatives, forwards and backwards."""
