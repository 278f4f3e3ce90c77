"""``isolog console``: a web page that shows a cluster live, and what became of its records.

It is a client like any other: it asks the brokers by their public actions, as the user who has
logged in, and knows nothing that this user may not know.

``app``       the server: the page, its API, and the stream of events
``guard``     what each request has to be: hosts, origins, headers
``sessions``  who has logged in, each with a connection of its own
``board``     asks for everything again and again, and tells the streams what has changed
``amiss``     what is amiss, in words: from all that the board knows, without I/O
``asking``    the questions to the brokers, and their answers as JSON values
``records``   a page of records with the state of each, and code that reads exactly them
``static/``   the page: plain modules of JavaScript and one style sheet
"""
