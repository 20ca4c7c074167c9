"""The sans-I/O core: leases, renewal policies, settlement rules and the ledger. Time comes in, actions go out.

Internal: the names for users are those that ``sqs_lease`` exports.
"""
