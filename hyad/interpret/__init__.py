"""Programs run as they are read, and differentiated as they run."""
