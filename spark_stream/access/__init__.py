"""Access control: rules, quotas, callers and credentials, as pure values.

``rules``    rules and the decisions by them, quotas, and the permissions that a request needs
``callers``  authenticated callers, passwords, tokens and sessions

This package uses no store and no clock. The broker (``broker.access``) does.
"""
