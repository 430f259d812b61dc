"""What models were used and what it cost: the ledger of requests, prices, and spending limits.

Import `Ledger` and `sum_up` from `ledger`, `find_price` from `prices`, `Budget` and `SpendingLimits` from `budget`.
"""
