"""From a typed program to a faster one: ``optimise.py`` lists the passes, in order, with the reasons."""
