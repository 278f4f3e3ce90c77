"""Who calls this broker, and what they may do.

``authorizer``   finds out who calls, and decides by the rules on record
``jwts``   who calls by a JSON Web Token
``audit``  writes down who was refused, and what administrators did
"""
