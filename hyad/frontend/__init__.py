"""From the surface core and a signature to a typed program."""
