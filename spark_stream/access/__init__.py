"""Who may do what: rules, quotas, callers and credentials, as pure values.

``rules``    rules and the decisions by them, quotas, and the permissions that a request needs
``callers``  who calls, for how long that is known, and passwords, tokens and sessions

Nothing here asks a store or a clock. The broker (``broker.access``) does.
"""
