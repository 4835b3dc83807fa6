"""What programs are: the records, how they are read, made, checked and printed."""
