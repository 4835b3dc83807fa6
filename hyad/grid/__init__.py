"""From a typed program to one whose loops run in parallel, for one call on a GPU: ``gather.py`` lists the passes."""
