"""Topics in Spark: messages of a range of offsets are read, decoded and put into changes of a table."""
