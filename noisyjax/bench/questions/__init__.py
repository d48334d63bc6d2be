"""From files to questions: rows of any format, where a dataset's files lie, and what its reader makes of them."""
