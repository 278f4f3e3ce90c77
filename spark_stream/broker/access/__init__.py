"""Authentication of callers, and their permissions.

``authorizer``  authenticates callers, and decides by the rules on record
``jwts``        callers with JSON Web Tokens
``quotas``      limits of bytes and connections of each principal
``audit``       the log of refusals and of acts of administrators
"""
