"""Files and standard input, read as Arrow batches of a topic.

``formats``       which format an input has, and its records as batches
``blocks``        bytes of a pipe or file, cut between two records
``text_inputs``   blocks of lines and CSV as batches
``json_lines``    blocks of JSON lines as batches
``file_schemas``  the schema of a topic that can take a file
``fitting``       converts batches of a file to a topic's schema; errors name the column
``placing``       which partition a record of the input asks for
"""
